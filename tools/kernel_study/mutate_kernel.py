#!/usr/bin/env python3
"""Remove each synchronisation in csrc/ and record which tests fail: docs/kernel_mutations.md.

Every mutant runs tests/decoders/kernel/sanitized.cu twice: plain, where the codes should differ or
the launch fail, and under ThreadSanitizer. This needs g++ and takes a quarter of a minute for each
mutant. The exit code is 1 if no run notices a mutant that JUSTIFIED does not explain.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # runs as a script from anywhere

from benchmarks import kernel_pages, page_parts
from qwen_megakernel.cli import parsing
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.native import compiling

ROOT = Path(__file__).parents[2]
STAGES = ("weights", "matvec", "norm_rope", "attention", "short_attention", "short_context")
STAGES += ("prompt_attention", "prompt_context", "sampling", "layer", "frame", "forward")
SEEDS = range(24)  # orders of threads; the first that notices ends the search
# A barrier of the grid. The mutant still does the work of a block that waits there.
BARRIER = re.compile(r"c_?\.barrier\.sync\(Stage::\w+, (?:[\w.]|\(\))*\)")
BARRIER_WITH_WORK = re.compile(r"c_?\.barrier\.sync\(Stage::\w+, (?:[\w.]|\(\))*, (\w+)\)")
REMOVALS = (
    (re.compile(r"__syncthreads\(\);"), ";"),
    (re.compile(r"__syncwarp\(\);"), ";"),
    (BARRIER, "(__syncthreads(), true)"),
    (BARRIER_WITH_WORK, r"(__syncthreads(), \1(), true)"),
    (re.compile(r"copy_async_wait<(0|kSlots - kCount)>\(\);"), ";"),
    (re.compile(r"add_acquire_release\(ticket, 1\)"), "atomicAdd(ticket, 1u)"),
)


# (file, what is removed, its place among such lines of the file): why no run notices.
JUSTIFIED = {
    (
        "weights.cuh",
        "copy_async_wait<0>();",
        0,
    ): "Two copies into one slot may be under way at once "
    "where a forecast was wrong; the emulation completes copies in order, hardware need not.",
    ("matvec.cuh", "__syncthreads();", 0): "Only where activations come in chunks, which the small "
    "model of this run never needs; test_matvec.py does.",
}


def mutants(csrc: Path) -> Iterator[tuple[str, int, str, str]]:
    """Yield (file, line, what is removed, mutated text)."""
    for stage in STAGES:
        path = csrc / f"{stage}.cuh"
        text = path.read_text()
        found = sum(len(each.findall(text)) for each in (BARRIER, BARRIER_WITH_WORK))
        if found != text.count("barrier.sync("):
            raise SystemExit(
                f"{path}: a barrier is written in a way that this tool does not recognise."
            )
        for pattern, replacement in REMOVALS:
            for match in pattern.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                mutated = text[: match.start()] + match.expand(replacement) + text[match.end() :]
                yield path.name, line, " ".join(match.group().split()), mutated


def compile_program(csrc: Path, out: Path, objects: list[str], *flags: str) -> None:
    """Compile sanitized.cu with the sources in `csrc`."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import kernel_models

    config = kernel_models.sanitized_config()
    target = build.Target(None, "float32")
    values = build.definitions(config, target)
    definitions = [f"-D{name}={value}" for name, value in values.items()]
    source = ROOT / "tests" / "decoders" / "kernel" / "sanitized.cu"
    command = [
        *shlex.split(compiling.find_cxx()),
        "-std=c++17",
        "-O1",
        "-g",
        "-w",
        "-fno-strict-aliasing",
    ]
    command += [f"-I{csrc}", *flags, *definitions, "-x", "c++", str(source), "-x", "none"]
    subprocess.run([*command, *objects, "-lpthread", "-o", str(out)], check=True)


def outcomes(program: Path) -> Iterator[str]:
    """Yield the output of each seed, or "failed"; a seed runs when its result is requested."""
    for seed in SEEDS:
        settings = {"EMULATION_SEED": str(seed), "EMULATION_SMS": str(3 if seed % 4 else 2)}
        settings |= {"EMULATION_LAZY_COPIES": "1", "TSAN_OPTIONS": "halt_on_error=1"}
        settings |= {"EMULATION_SPIN_ROUNDS": "20000"}
        try:
            run = subprocess.run(
                [program], env=os.environ | settings, capture_output=True, text=True, timeout=120
            )
            yield "failed" if run.returncode or run.stderr else run.stdout
        except subprocess.TimeoutExpired:
            yield "failed"


def table_rows() -> list[list[str]]:
    """Return the table's rows: where, what was removed, which runs noticed, why none did."""
    return kernel_pages.rows_of(kernel_pages.MUTATIONS)


def noticed_rows() -> dict[tuple[str, str, int], list[str]]:
    """Return (file, what was removed, its place among such lines) -> row of a noticed mutant."""
    found: dict[tuple[str, str, int], list[str]] = {}
    places: Counter[tuple[str, str]] = Counter()
    for row in table_rows():
        file, removed = row[0].partition(":")[0], row[1].strip("`")
        if any(row[2:]):
            found[file, removed, places[file, removed]] = row
        places[file, removed] += 1
    return found


def main() -> int:
    """Print and write the table."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add(
        "--unnoticed",
        "test only mutants that no run has noticed yet, and keep the table's other rows; for "
        "when lines have moved, or this program has changed and the sources have not",
        bool,
    )
    add(
        "--stages NAMES",
        "test all mutants of these files, separated by commas, and keep the rows of noticed "
        f"mutants of all others; known files: {', '.join(STAGES)}",
    )
    args = parser.parse_args()
    csrc, rows, unnoticed = compiling.source_folder(), [], []
    changed = set((args.stages or "").split(",")) - {""}
    if unknown := changed - set(STAGES):
        parser.error(f"unknown stages {', '.join(sorted(unknown))}; known: {', '.join(STAGES)}")
    known = {
        key: row
        for key, row in noticed_rows().items()
        if args.unnoticed or (changed and key[0].removesuffix(".cuh") not in changed)
    }
    with tempfile.TemporaryDirectory() as work_name:
        work = Path(work_name)
        objects = []
        for unit in sorted((csrc / "emulation").glob("*.cpp")):
            objects.append(str(work / f"{unit.stem}.o"))
            command = [*shlex.split(compiling.find_cxx()), "-std=c++17", "-O2", "-c", str(unit)]
            subprocess.run([*command, "-o", objects[-1]], check=True)
        program = work / "program"
        compile_program(csrc, program, objects)
        expected = next(outcomes(program))
        places: Counter[tuple[str, str]] = Counter()
        for file, line, removed, text in mutants(csrc):
            place = places[file, removed]
            places[file, removed] += 1
            where = f"{file}:{line}"
            if (file, removed, place) in known:
                rows.append([where, *known[file, removed, place][1:]])
                continue
            mutated = work / "csrc"
            shutil.rmtree(mutated, ignore_errors=True)
            shutil.copytree(csrc, mutated)
            (mutated / file).write_text(text)
            compile_program(mutated, program, objects)
            plain = any(result != expected for result in outcomes(program))
            compile_program(mutated, program, objects, "-fsanitize=thread")
            tsan = "failed" in outcomes(program)
            row = [where, f"`{removed}`", "yes" if plain else "", "yes" if tsan else ""]
            row.append(JUSTIFIED.get((file, removed, place), ""))
            if not plain and not tsan and not row[-1]:
                unnoticed.append(row[0])
            rows.append(row)
            print(*row, flush=True)
    page_parts.write(kernel_pages.MUTATIONS, kernel_pages.kernel_mutations(rows))
    return int(bool(unnoticed))


if __name__ == "__main__":
    sys.exit(main())
