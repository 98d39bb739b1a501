#!/usr/bin/env python3
"""Compile the kernel for every architecture and write ptxas' report: docs/kernel_ptxas.md.

This needs nvcc and no GPU. All builds take an hour of a core, so a run may compile some of them;
the page then keeps its rows of the others. The exit code is 1 if a kernel spills or needs more
registers than its block may have.
"""

import re
import resource
import sys
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # runs as a script from anywhere

from benchmarks import kernel_pages, page_parts
from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.choices import INT8_STACKS
from qwen_megakernel.cli import parsing
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.errors import BuildError
from qwen_megakernel.native import compiling

MODELS = ("random-0.6b", "random-1.7b")
WEIGHTS = ("bf16", *INT8_STACKS)
REGISTERS_PER_SM = 65536
ENTRY = re.compile(
    r"entry function '\w*?\d+(few_step|step|forward)_kernel\w*'.*?"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers",
    re.DOTALL,
)


def rows(model: str, weights: str, arch: str) -> list[list[str]]:
    """Return a row for each kernel: [model, weights, arch, kernel, threads, registers, stack,
    spills, CPU s].
    """
    config = parse_model_config(model_config(model))
    target = build.Target(arch, "bfloat16", int8=INT8_STACKS.get(weights, ()))
    threads = build.definitions(config, target)["NUM_THREADS"]
    is_known = compiling.found(build.recipe(config, target)) is not None
    before = compiler_seconds()
    try:
        log = (build.build(config, target).parent / "build.log").read_text()
    except BuildError as error:
        print(error, file=sys.stderr)
        log = (compiling.build_cache() / "failed.log").read_text()
    seconds = "–" if is_known else f"{compiler_seconds() - before:.0f}"
    return [
        [model, weights, arch, kernel, str(threads), registers, stack, f"{stores}/{loads}", seconds]
        for kernel, stack, stores, loads, registers in ENTRY.findall(log)
    ]


def with_others(made: list[list[str]]) -> list[list[str]]:
    """Return a run's rows and the page's rows of all other builds, in the order of a whole run."""
    builds = product(MODELS, WEIGHTS, build.ARCHITECTURES)
    order = {each: index for index, each in enumerate(builds)}
    new = {tuple(row[:3]) for row in made}
    kept = [
        row
        for row in kernel_pages.rows_of(kernel_pages.PTXAS)
        if tuple(row[:3]) in order.keys() - new
    ]
    return sorted(kept + made, key=lambda row: order.get((row[0], row[1], row[2]), len(order)))


def compiler_seconds() -> float:
    """Return the CPU seconds of all child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Print and write the table."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add(
        "--arch",
        "GPU architectures, separated by commas (default: all)",
        str,
        ",".join(build.ARCHITECTURES),
    )
    add(
        "--model",
        "models to compile for, separated by commas (default: all)",
        str,
        ",".join(MODELS),
    )
    add(
        "--weights",
        f"kinds of weights, separated by commas (default: {','.join(WEIGHTS)})",
        str,
        ",".join(WEIGHTS),
    )
    args = parser.parse_args()
    table = []
    failed = False
    for model in args.model.split(","):
        for weights, arch in product(args.weights.split(","), args.arch.split(",")):
            found = rows(model, weights, arch)
            failed |= len(found) != 3
            for row in found:
                failed |= row[7] != "0/0" or row[6] != "0"
                failed |= int(row[5]) * int(row[4]) > REGISTERS_PER_SM
                table.append(row)
                print(*row, flush=True)
    page_parts.write(kernel_pages.PTXAS, kernel_pages.kernel_ptxas(with_others(table)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
