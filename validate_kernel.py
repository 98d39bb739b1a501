"""Compare the decoders: the plain one with the official package, all others with the plain one.

python validate_kernel.py --model tiny-random

With a GPU, the others are the kernel and the CUDA-graph path; without one, the CPU decoder, the
kernel by emulation, and the graphs' functions, called directly. Without the official package, a
recording of it serves (--reference FILE, made by --save-reference), or the plain decoder is not
checked. Without a GPU this takes up to two minutes on two cores; --full compares more frames. The
last line is the verdict. The exit code is 0 if all differences are within tolerance, 1 if not, 77
if this machine can compare nothing.
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import torch

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.choices import BACKENDS, WEIGHTS
from qwen_megakernel.cli import options, parsing, running
from qwen_megakernel.decoders import quantization
from qwen_megakernel.decoders.backends import Backend, choose_backend, make_decoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import MissingPackageError, SetupError, UsageError
from qwen_megakernel.output_files import check_writable
from tools.validation import cases as greedy_cases
from tools.validation import compare, official, progress
from tools.validation.compare import Report

NOTHING_TO_COMPARE = 77
FULL_STEPS = 200
EMULATED_STEPS = 30  # the emulation draws about two frames a second


def decoder(loaded: loading.Checkpoint, backend: Backend, dtype: torch.dtype):
    """Return a decoder with one slot."""
    sizes = DecoderSizes(num_slots=1, max_positions=1024, device=backend.device, dtype=dtype)
    return make_decoder(loaded, backend, sizes)


def with_weights(loaded: loading.Checkpoint, weights: str | None) -> loading.Checkpoint:
    """Return the checkpoint with 8-bit layers, for all compared decoders; None: as it is."""
    if weights is None:
        return loaded
    return replace(loaded, talker=quantization.quantize(loaded.talker, weights))


def fast_backends(requested: str, weights: str | None, left_out: list[str]) -> list[Backend]:
    """Return the backends to compare with the plain decoder; for "auto", all that can run here.

    Args:
        left_out: receives the names of those that do not run such weights.
    """
    if requested == "torch":
        return []
    if requested != "auto":
        return [choose_backend(requested, weights=weights)]
    found = []
    for name in ("kernel", "graph") if torch.cuda.is_available() else ("cpu", "emulation", "graph"):
        try:
            found.append(choose_backend(name, weights=weights))
        except UsageError as error:
            print(f"{error}\n", file=sys.stderr)
            left_out.append(name)
    return found


def validate_plain(loaded: loading.Checkpoint, args: argparse.Namespace, title: str) -> Report:
    """Compare the plain decoder in float32 with the official package, or with a recording of it.

    Raises:
        MissingPackageError: there is neither the package nor a recording.
    """
    plain = decoder(loaded, Backend("torch", torch.device("cpu"), ""), torch.float32)
    rows = []
    if args.reference:
        cases = greedy_cases.load_cases(Path(args.reference))
    else:
        options.say(args, "loading the official package")
        official.package()  # takes seconds, which are no part of the estimate
        with progress.bar(title, args.steps, quiet=args.quiet) as on_frames:
            cases = greedy_cases.official_cases(loaded, args.steps, on_frames)
        rows.append(compare.compare_prompts(loaded, plain, cases))
    if args.save_reference:
        greedy_cases.save_cases(Path(args.save_reference), cases)
    tolerance = compare.OFFICIAL_TOLERANCE if args.tolerance is None else args.tolerance
    rows += compare.compare_forced(plain, cases, tolerance)
    rows += compare.compare_free(plain, cases, tolerance=tolerance)
    return Report(title, rows)


def validate_fast(
    loaded: loading.Checkpoint, backend: Backend, dtype: torch.dtype, args: argparse.Namespace
) -> Report:
    """Compare the decoder of a backend with the plain decoder in the same precision.

    Args:
        loaded: from `with_weights`; `args.weights` only names it.
    """
    title = title_of(backend, dtype, args)
    plain = decoder(loaded, Backend("torch", backend.device, ""), dtype)
    exact = dtype == torch.float32
    tolerance = args.tolerance
    if tolerance is None:
        tolerance = compare.tolerance_of(backend.name, exact=exact, weights=args.weights)
    num_seeds = min(args.steps, compare.MAX_SEEDS)
    fast = decoder(loaded, backend, dtype)  # this may compile, which is no part of the estimate
    # The plain decoder draws the frames; the other one is forced along them.
    with progress.bar(f"frames for {title}", 2 * args.steps, quiet=args.quiet) as on_frames:
        drawing = progress.WatchedDecoder(plain, on_frames)
        cases = greedy_cases.plain_cases(loaded, drawing, args.steps)
    with progress.bar(title, 2 * args.steps + num_seeds, quiet=args.quiet) as on_frames:
        fast = progress.WatchedDecoder(fast, on_frames)
        rows = []
        if backend.name in ("kernel", "emulation"):  # other backends give no access to their stacks
            hidden = tolerance if exact else min(tolerance, compare.BF16_HIDDEN_TOLERANCE)
            rows += compare.compare_layers(fast, plain, cases[0], hidden)
        rows += compare.compare_forced(fast, cases, tolerance)
        rows += compare.compare_free(fast, cases, tolerance=tolerance if exact else None)
        rows += compare.compare_sampling(fast, plain, cases[0], num_seeds)
    return Report(title, rows)


def title_of(backend: Backend, dtype: torch.dtype, args: argparse.Namespace) -> str:
    """Return the title of a table of `validate_fast`."""
    name = str(dtype).removeprefix("torch.") + (f", {args.weights}" if args.weights else "")
    return f"{backend.name} against plain decoder, {name}"


def main(args: argparse.Namespace) -> int:
    """Compare the decoders; print each table when it is made, and a verdict at the end."""
    if args.save_reference:
        check_writable(Path(args.save_reference), "a recording")
    compare.forbid_reduced_precision()
    loaded = with_weights(loading.load(loading.resolve(args.model)), args.weights)
    options.log_progress(args, "native.compiling")
    if args.steps is None:
        is_fast = args.full or torch.cuda.is_available() or args.backend == "torch"
        args.steps = FULL_STEPS if is_fast else EMULATED_STEPS
    print(f"{loaded.files.name}, {args.steps} frames", flush=True)
    reports: list[Report] = []
    left_out: list[str] = []

    def add(report: Report) -> None:
        print(report, flush=True)
        reports.append(report)

    # The official package has no int8, so int8 decoders are compared with each other only.
    if not args.weights:
        source = f"recording {args.reference}" if args.reference else "official package"
        try:
            add(validate_plain(loaded, args, f"plain decoder against {source}, float32, greedy"))
        except MissingPackageError as error:
            print(f"{error}\n", file=sys.stderr)
            left_out.append("official package")
    names = (args.dtype,) if args.dtype else ("float32", "bfloat16")
    for backend in fast_backends(args.backend, args.weights, left_out):
        try:
            # The CPU decoder computes in float32 whatever dtype it is given.
            for name in ("float32",) if backend.name == "cpu" else names:
                add(validate_fast(loaded, backend, getattr(torch, name), args))
        except SetupError as error:  # for example, no compiler for the emulation
            if args.backend != "auto":
                raise
            print(f"{error}\n", file=sys.stderr)
            left_out.append(backend.name)
    print(compare.verdict(reports, left_out))
    if not reports:
        return NOTHING_TO_COMPARE
    return 0 if all(report.passed for report in reports) else 1


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add("--model", "model to load: hub id, folder or built-in name", str, "tiny-random")
    add_either = parsing.adder(parser.add_mutually_exclusive_group())
    add_either(
        "--steps",
        f"codec frames to compare in each table (default: {FULL_STEPS}, or "
        f"{EMULATED_STEPS} where the kernel is emulated)",
        parsing.at_least(1),
    )
    add_either("--full", f"compare {FULL_STEPS} frames, emulated or not", bool)
    backends = [name for name in BACKENDS if name != "coreml"]  # it takes no bfloat16
    add(
        "--backend",
        "backend to compare with the plain decoder (default: all that this machine can run); "
        "torch: compare the plain decoder only",
        backends,
        "auto",
    )
    add("--dtype", "number format to compare in (default: both)", ("float32", "bfloat16"))
    add("--weights", "compare with 8-bit layers in all decoders", WEIGHTS)
    add(
        "--tolerance",
        "largest difference of logits to accept (default: derived for each comparison)",
        float,
    )
    add("--reference FILE", "recording to use in place of the official package", parsing.file_name)
    add(
        "--save-reference FILE",
        "file to which this run of the official package is written, as a recording",
        parsing.file_name,
    )
    add("--quiet", "print errors only", bool)
    add("--debug", "log everything, and show Python tracebacks of errors", bool)
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    sys.exit(running.run(main, args))
