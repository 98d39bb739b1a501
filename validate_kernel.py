"""Validate the decoders: the plain one against the official package, the others against the plain.

python validate_kernel.py --model tiny-random --steps 200

The others are the kernel and the CUDA-graph path; without a GPU the kernel runs by emulation and
the graphs' functions directly. Without the official package a recording of it serves
(--reference FILE, made by --save-reference), or the kernel alone is compared. Exit code 0: all
within tolerance; 1: something differs; 77: nothing could be compared on this machine.
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # which torch reads when it is imported

import torch

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.choices import BACKENDS, WEIGHTS
from qwen_megakernel.cli import options
from qwen_megakernel.decoders import int8
from qwen_megakernel.decoders.backends import Backend, choose_backend, make_decoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import EnvironmentError_, MissingPackageError
from qwen_megakernel.validation import cases as greedy_cases
from qwen_megakernel.validation import compare

NOTHING_TO_COMPARE = 77


def decoder(loaded: loading.Checkpoint, backend: Backend, dtype: torch.dtype):
    """A decoder with one slot."""
    sizes = DecoderSizes(
        num_slots=1, max_positions=1024, max_text_rows=256, device=backend.device, dtype=dtype
    )
    return make_decoder(loaded, backend, sizes)


def with_weights(loaded: loading.Checkpoint, weights: str | None) -> loading.Checkpoint:
    """The checkpoint with 8-bit layers, for all decoders to be compared; None: as it is."""
    if weights is None:
        return loaded
    return replace(loaded, talker=int8.quantize(loaded.talker, weights))


def fast_backends(requested: str) -> list[Backend]:
    """What is compared with the plain decoder; for "auto" all that this machine can run."""
    if requested == "torch":
        return []
    if requested != "auto":
        return [choose_backend(requested)]
    kernel = "kernel" if torch.cuda.is_available() else "emulation"
    return [choose_backend(kernel), choose_backend("graph")]


def validate_plain(loaded: loading.Checkpoint, args: argparse.Namespace) -> tuple[str, bool] | None:
    """The plain decoder in float32 against the official package, or a recording of it."""
    plain = decoder(loaded, Backend("torch", torch.device("cpu"), ""), torch.float32)
    rows = []
    if args.reference:
        cases = greedy_cases.load_cases(Path(args.reference))
        source = f"recording {args.reference}"
    else:
        try:
            cases = greedy_cases.official_cases(loaded, args.steps)
        except MissingPackageError as error:
            print(f"{error}\n", file=sys.stderr)
            return None
        source = "official package"
        rows.append(compare.compare_prompts(loaded, plain, cases))
    if args.save_reference:
        greedy_cases.save_cases(Path(args.save_reference), cases)
    tolerance = compare.OFFICIAL_TOLERANCE if args.tolerance is None else args.tolerance
    rows += compare.compare_forced(plain, cases, tolerance)
    rows += compare.compare_free(plain, cases, exact=True)
    return compare.report(f"plain decoder against {source}, float32, greedy", rows)


def validate_fast(
    loaded: loading.Checkpoint, backend: Backend, dtype: torch.dtype, args: argparse.Namespace
) -> tuple[str, bool]:
    """The kernel, its emulation or the graphs against the plain decoder in the same precision.

    Args:
        loaded: from `with_weights`; `args.weights` only names it.
    """
    plain = decoder(loaded, Backend("torch", backend.device, ""), dtype)
    fast = decoder(loaded, backend, dtype)
    exact = dtype == torch.float32
    tolerance = args.tolerance
    if tolerance is None:
        tolerance = compare.tolerance_of(backend.name, exact=exact)
    cases = greedy_cases.plain_cases(loaded, plain, args.steps)
    rows = []
    if backend.name != "graph":  # which has no way into the middle of its stack
        hidden = tolerance if exact else min(tolerance, compare.BF16_HIDDEN_TOLERANCE)
        rows += compare.compare_layers(fast, plain, cases[0], hidden)
    rows += compare.compare_forced(fast, cases, tolerance)
    rows += compare.compare_free(fast, cases, exact=exact)
    num_seeds = min(args.steps, compare.MAX_SEEDS)
    rows += compare.compare_sampling(fast, plain, cases[0], num_seeds)
    name = str(dtype).removeprefix("torch.") + (f", {args.weights}" if args.weights else "")
    return compare.report(f"{backend.name} against plain decoder, {name}", rows)


def main(args: argparse.Namespace) -> int:
    """Compare what can be compared and print the tables."""
    compare.forbid_reduced_precision()
    loaded = with_weights(loading.load(loading.resolve(args.model)), args.weights)
    print(f"{loaded.files.name}, {args.steps} frames")
    # The official package has no int8: there only our decoders are compared with each other.
    reports = [] if args.weights else [validate_plain(loaded, args)]
    try:
        names = (args.dtype,) if args.dtype else ("float32", "bfloat16")
        for backend in fast_backends(args.backend):
            for name in names:
                reports.append(validate_fast(loaded, backend, getattr(torch, name), args))
    except EnvironmentError_ as error:  # no compiler for the emulation, say
        if args.backend != "auto":
            raise
        print(f"{error}\n", file=sys.stderr)
    made = [report for report in reports if report]
    for text, _ in made:
        print(text)
    if not made:
        return NOTHING_TO_COMPARE
    return 0 if all(passed for _, passed in made) else 1


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny-random", help="hub id, folder or built-in name")
    parser.add_argument(
        "--steps", type=options.at_least(1), default=200, help="frames to compare in all"
    )
    backends = [name for name in BACKENDS if name != "coreml"]  # takes no bfloat16
    parser.add_argument(
        "--backend", default="auto", choices=backends, help="torch: only the plain one"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: both")
    parser.add_argument("--weights", choices=WEIGHTS, help="8-bit layers in all decoders")
    parser.add_argument("--tolerance", type=float, help="for logits, instead of the derived ones")
    parser.add_argument("--reference", metavar="FILE", help="a recording of the official package")
    parser.add_argument("--save-reference", metavar="FILE", help="keep this run as a recording")
    parser.add_argument("--quiet", action="store_true", help="errors only")
    parser.add_argument("--debug", action="store_true", help="log everything, show tracebacks")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    sys.exit(options.run(main, args))
