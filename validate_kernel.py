"""Validate the decoders: the plain one against the official package, the others against the plain.

python validate_kernel.py --model tiny-random

The others are the kernel and the CUDA graphs; without a GPU the native CPU decoder, the kernel's
emulation, and the graphs' functions called directly. A recording can replace the official package
(--reference FILE, which --save-reference writes); without both, the plain decoder is not compared.
Without a GPU the run takes up to two minutes on two cores; --full compares more. The last line is
the verdict. Exit code 0: all within tolerance; 1: something differs; 77: nothing was compared.
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # which torch reads when it is imported

import torch

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.choices import BACKENDS, DTYPES, WEIGHTS, WEIGHTS_HELP
from qwen_megakernel.cli import options
from qwen_megakernel.decoders import int8
from qwen_megakernel.decoders.backends import Backend, choose_backend, make_decoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import MissingPackageError, SetupError
from qwen_megakernel.validation import cases as greedy_cases
from qwen_megakernel.validation import compare, progress
from qwen_megakernel.validation.compare import Report

NOTHING_TO_COMPARE = 77
FULL_STEPS = 200
EMULATED_STEPS = 30  # the emulation draws some two frames per second


def decoder(loaded: loading.Checkpoint, backend: Backend, dtype: torch.dtype):
    """Return a decoder with one slot."""
    sizes = DecoderSizes(
        num_slots=1, max_positions=1024, max_text_rows=256, device=backend.device, dtype=dtype
    )
    return make_decoder(loaded, backend, sizes)


def with_weights(loaded: loading.Checkpoint, weights: str | None) -> loading.Checkpoint:
    """Return the checkpoint with 8-bit layers for all decoders; `weights` None: as it is stored."""
    if weights is None:
        return loaded
    return replace(loaded, talker=int8.quantize(loaded.talker, weights))


def fast_backends(requested: str) -> list[Backend]:
    """Return what to compare with the plain decoder; for "auto" all that this machine can run."""
    if requested == "torch":
        return []
    if requested != "auto":
        return [choose_backend(requested)]
    names = ("kernel", "graph") if torch.cuda.is_available() else ("cpu", "emulation", "graph")
    return [choose_backend(name) for name in names]


def validate_plain(loaded: loading.Checkpoint, args: argparse.Namespace, title: str) -> Report:
    """Compare the plain decoder in float32 with the official package or a recording of it.

    Raises:
        MissingPackageError: the package is not installed and no recording is given.
    """
    plain = decoder(loaded, Backend("torch", torch.device("cpu"), ""), torch.float32)
    rows = []
    if args.reference:
        cases = greedy_cases.load_cases(Path(args.reference))
    else:
        with progress.bar(title, args.steps, quiet=args.quiet) as on_frames:
            cases = greedy_cases.official_cases(loaded, args.steps, on_frames)
        rows.append(compare.compare_prompts(loaded, plain, cases))
    if args.save_reference:
        greedy_cases.save_cases(Path(args.save_reference), cases)
    tolerance = compare.OFFICIAL_TOLERANCE if args.tolerance is None else args.tolerance
    rows += compare.compare_forced(plain, cases, tolerance)
    rows += compare.compare_free(plain, cases, exact=True)
    return Report(title, rows)


def validate_fast(
    loaded: loading.Checkpoint, backend: Backend, dtype: torch.dtype, args: argparse.Namespace
) -> Report:
    """Compare a backend with the plain decoder in the same precision.

    Args:
        loaded: from `with_weights`; `args.weights` is for the title alone.
    """
    title = title_of(backend, dtype, args)
    plain = decoder(loaded, Backend("torch", backend.device, ""), dtype)
    exact = dtype == torch.float32
    tolerance = args.tolerance
    if tolerance is None:
        tolerance = compare.tolerance_of(backend.name, exact=exact)
    num_seeds = min(args.steps, compare.MAX_SEEDS)
    fast = decoder(loaded, backend, dtype)  # may compile, so before the progress bar starts
    # The plain decoder draws the frames, then decodes with each of them given.
    with progress.bar(f"frames for {title}", 2 * args.steps, quiet=args.quiet) as on_frames:
        drawing = progress.WatchedDecoder(plain, on_frames)
        cases = greedy_cases.plain_cases(loaded, drawing, args.steps)
    with progress.bar(title, 2 * args.steps + num_seeds, quiet=args.quiet) as on_frames:
        fast = progress.WatchedDecoder(fast, on_frames)
        rows = []
        if backend.name in ("kernel", "emulation"):  # the others do not expose their layers
            hidden = tolerance if exact else min(tolerance, compare.BF16_HIDDEN_TOLERANCE)
            rows += compare.compare_layers(fast, plain, cases[0], hidden)
        rows += compare.compare_forced(fast, cases, tolerance)
        rows += compare.compare_free(fast, cases, exact=exact)
        rows += compare.compare_sampling(fast, plain, cases[0], num_seeds)
    return Report(title, rows)


def title_of(backend: Backend, dtype: torch.dtype, args: argparse.Namespace) -> str:
    """Return the title of a table of `validate_fast`."""
    name = str(dtype).removeprefix("torch.") + (f", {args.weights}" if args.weights else "")
    return f"{backend.name} against plain decoder, {name}"


def main(args: argparse.Namespace) -> int:
    """Compare what this machine can run; prints each table when it is made, and then a verdict."""
    compare.forbid_reduced_precision()
    loaded = with_weights(loading.load(loading.resolve(args.model)), args.weights)
    options.report_compiling(args)
    if args.steps is None:
        is_fast = args.full or torch.cuda.is_available() or args.backend == "torch"
        args.steps = FULL_STEPS if is_fast else EMULATED_STEPS
    print(f"{loaded.files.name}, {args.steps} frames", flush=True)
    reports: list[Report] = []
    left_out: list[str] = []

    def add(report: Report) -> None:
        print(report, flush=True)
        reports.append(report)

    # The official package has no int8 weights to compare with.
    if not args.weights:
        source = f"recording {args.reference}" if args.reference else "official package"
        try:
            add(validate_plain(loaded, args, f"plain decoder against {source}, float32, greedy"))
        except MissingPackageError as error:
            print(f"{error}\n", file=sys.stderr)
            left_out.append("official package")
    names = (args.dtype,) if args.dtype else ("float32", "bfloat16")
    for backend in fast_backends(args.backend):
        try:
            # The CPU decoder computes in float32 whatever the dtype.
            for name in ("float32",) if backend.name == "cpu" else names:
                add(validate_fast(loaded, backend, getattr(torch, name), args))
        except SetupError as error:  # such as no compiler for the emulation
            if args.backend != "auto":
                raise
            print(f"{error}\n", file=sys.stderr)
            left_out.append(backend.name)
    print(compare.verdict(reports, left_out))
    if not reports:
        return NOTHING_TO_COMPARE
    return 0 if all(report.passed for report in reports) else 1


def parse_args() -> argparse.Namespace:
    parser = options.Parser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", default="tiny-random", help="hub id, folder or built-in name of the model")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "--steps",
        type=options.at_least(1),
        help=f"codec frames to compare in each table (default: {FULL_STEPS}, or "
        f"{EMULATED_STEPS} where the kernel is emulated)",
    )
    amount.add_argument(
        "--full", action="store_true", help=f"compare {FULL_STEPS} frames, emulated or not"
    )
    backends = [name for name in BACKENDS if name != "coreml"]  # takes no bfloat16
    backend_help = (
        "decoder to compare with the plain one (default: auto, all); torch: the plain one"
    )
    add("--backend", default="auto", choices=backends, help=backend_help)
    add("--dtype", choices=DTYPES, help="number format to compare in (default: both)")
    add("--weights", choices=WEIGHTS, metavar="FORM", help=WEIGHTS_HELP)
    add("--tolerance", type=float, help="tolerance for logits (default: derived)")
    add("--reference", metavar="FILE", help="recording of the official package to compare with")
    add("--save-reference", metavar="FILE", help="file to record the official package's run in")
    options.add_verbosity(parser)
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    sys.exit(options.run(main, args))
