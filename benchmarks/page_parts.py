"""What the generated pages share: result files, tables, and the helper that writes a page."""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import MAX_LOAD_PER_CORE, MAX_STOLEN_SHARE

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write(page: str, lines: list[str], *, check: bool = False) -> bool:
    """Write a page, or what is between its markers if it has some.

    Args:
        page: its path in this repository.
        lines: what a generator of `PAGES` returns.
        check: write nothing.
    Returns:
        Whether the page was out of date.
    """
    document = ROOT / page
    old = document.read_text(encoding="utf-8")
    new = "\n".join(lines) + "\n"
    if BEGIN in old:
        before, rest = old.split(BEGIN)
        new = f"{before}{BEGIN}\n{new}{END}{rest.split(END)[1]}"
    if new != old and not check:
        document.write_text(new, encoding="utf-8")
    return new != old


def load_result(name: str) -> dict[str, Any]:
    """One result file."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8")) | {"file": name}


def load_results(pattern: str) -> list[dict[str, Any]]:
    """Result files of this name, in order."""
    return [load_result(path.name) for path in sorted(RESULTS.glob(pattern))]


DISTURBED, UNKNOWN = "†", "‡"
FOOTNOTES = {
    DISTURBED: f"{DISTURBED} Taken at a load average above {MAX_LOAD_PER_CORE} per core, or while "
    f"more than {100 * MAX_STOLEN_SHARE:.0f} % of the CPU time was stolen by the host.",
    UNKNOWN: f"{UNKNOWN} The load before the run, or the time stolen in it, is not recorded.",
}


def machine_of(result: dict[str, Any]) -> str:
    """The machine of a result: its GPU and its CPU, cores used and instruction sets."""
    machine = result["machine"]
    if (sets := machine.get("instruction_sets")) is None:
        told = "instruction sets not recorded"
    else:  # the newer ones tell of the older
        told = " ".join(s for s in sets if s not in ("avx2", "avx512f")) or " ".join(sets[-1:])
    parts = [machine["processor"], f"{machine['cores']} cores", told]
    if machine.get("gpu"):
        parts.insert(0, machine["gpu"]["name"])
    if "instruction_set" in result:
        parts.append(f"decoder in {result['instruction_set']}")
    return ", ".join(part for part in parts if part)


def timed_on(result: dict[str, Any]) -> str:
    """`machine_of`, with the mark of figures that it disturbed or may have disturbed."""
    mark = mark_of(result["machine"])
    return f"{machine_of(result)} {mark}" if mark else machine_of(result)


def mark_of(machine: dict[str, Any]) -> str:
    """The footnote of figures that were taken on a machine as a result file tells of it."""
    load, stolen = machine.get("load_before_run"), machine.get("stolen_share")
    # Files of schema 1 have the load at the end of the run, in which the run has its own share: an
    # excess proves that something else ran beside it, and a small one proves nothing.
    at_most = load if load is not None else machine.get("load_1min", 0) - machine["cores"]
    cores = machine.get("online_cores") or machine["cores"]
    if at_most > MAX_LOAD_PER_CORE * cores or (stolen or 0) > MAX_STOLEN_SHARE:
        return DISTURBED
    return UNKNOWN if load is None or stolen is None else ""


def backend_of(result: dict[str, Any]) -> str:
    """What decoded, in which precision, and from which weights where the command names them."""
    weights = re.search(r"--weights[ =](\S+)", result["command"])
    return ", ".join([result["backend"], result["dtype"], *(weights.groups() if weights else ())])


def model_of(result: dict[str, Any]) -> str:
    """Which model was measured, and whether its weights are real."""
    return result["model"] + (" (random weights)" if result["is_synthetic"] else "")


def cell(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "–"
    if isinstance(value, float):
        if 0 < abs(value) < 0.1:
            return digits(value, 2)
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)


def digits(value: float, count: int = 3) -> str:
    """A value to so many significant digits, without an exponent."""
    if value == 0:
        return "0"
    places = count - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, places)}f}"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of a Markdown table, with the footnotes of the marks in it."""
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return lines + footnotes(lines)


def footnotes(lines: Sequence[str]) -> list[str]:
    """What explains the marks in some lines, each after an empty line."""
    notes = [note for mark, note in FOOTNOTES.items() if any(mark in line for line in lines)]
    return [line for note in notes for line in ("", note)]


def source_of(result: dict[str, Any]) -> list[str]:
    """The last two cells of a row: the commit that was measured, and the result file."""
    return [result["commit"], f"`{result['file']}`"]


# ---- tables between the markers of a page --------------------------------------------------------


Cell = str | Callable[[dict[str, Any]], str]  # a format of a result, or a function of it


def result_table(pattern: str, columns: dict[str, Cell]) -> list[str]:
    """One row for each result file of this name, with its commit and its own name behind."""
    rows = []
    for result in load_results(pattern):
        cells = (
            c.format_map(result) if isinstance(c, str) else c(result) for c in columns.values()
        )
        rows.append([*cells, *source_of(result)])
    return table([*columns, "commit", "file"], rows)


def spaced_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A Markdown table and the empty line behind it."""
    return [*table(columns, rows), ""]
