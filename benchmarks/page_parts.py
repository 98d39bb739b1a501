"""Functions that the generated pages share: they load results, make tables and write a page."""

import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from benchmarks.machine import MAX_LOAD_PER_CORE, MAX_STOLEN_SHARE

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
COLUMNS = 120  # width of prose
FRAME_MS = 80


def write(page: str, lines: list[str], *, check: bool = False) -> bool:
    """Write a page, or only the text between its markers if it has any.

    Args:
        page: its path in this repository.
        lines: the result of a generator of `PAGES`.
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
    return json.loads((RESULTS / name).read_text(encoding="utf-8")) | {"file": name}


def load_results(pattern: str) -> list[dict[str, Any]]:
    """Return the contents of all result files of this name, in order."""
    return [load_result(path.name) for path in sorted(RESULTS.glob(pattern))]


def gpu_results() -> dict[str, list[dict[str, Any]]]:
    """Return the results of tools/gpu_check.sh by GPU, without those of the emulation."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("gpu_*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if not result["emulation"]:
            name = (result["device"] or {}).get("name", "unnamed GPU")
            found.setdefault(name, []).append(result | {"file": f"{path.parent.name}/{path.name}"})
    return found


NATIVE = "instruction_set"  # the key under which results of native code name theirs
DISTURBED, UNKNOWN = "†", "‡"
FOOTNOTES = {
    DISTURBED: f"{DISTURBED} Taken at a load average above {MAX_LOAD_PER_CORE} per core, or while "
    f"more than {100 * MAX_STOLEN_SHARE:.0f} % of the CPU time was stolen by the host.",
    UNKNOWN: f"{UNKNOWN} The load before the run, or the time stolen in it, is not recorded.",
}


def machine_name(machine: dict[str, Any]) -> str:
    """Name a machine by its GPU, its CPU, the cores used and the instruction sets."""
    sets = machine["instruction_sets"]
    # The newer ones imply the older.
    told = " ".join(s for s in sets if s not in ("avx2", "avx512f")) or " ".join(sets[-1:])
    parts = [machine["processor"], f"{machine['cores']} cores", told]
    if machine.get("gpu"):
        parts.insert(0, machine["gpu"]["name"])
    return ", ".join(part for part in parts if part)


def machine_of(result: dict[str, Any]) -> str:
    """Name the machine of a result, and the instruction set of native code there."""
    name = machine_name(result["machine"])
    return f"{name}, decoder in {result[NATIVE]}" if NATIVE in result else name


def not_native(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without native code's instruction set, for figures of other programs."""
    return {name: found for name, found in result.items() if name != NATIVE}


def timed_on(result: dict[str, Any]) -> str:
    """Return `machine_of`, with a mark if the machine disturbed the figures or may have done so."""
    mark = mark_of(result["machine"])
    return f"{machine_of(result)} {mark}" if mark else machine_of(result)


def mark_of(machine: dict[str, Any]) -> str:
    """Return the footnote's mark for figures of this machine, from the recorded load."""
    load, stolen = machine["load_before_run"], machine["stolen_share"]
    is_loaded = (load or 0) > MAX_LOAD_PER_CORE * (machine["online_cores"] or machine["cores"])
    if is_loaded or (stolen or 0) > MAX_STOLEN_SHARE:
        return DISTURBED
    return UNKNOWN if load is None or stolen is None else ""


def backend_of(result: dict[str, Any]) -> str:
    """Return the backend, its precision, and its weights if the command names them."""
    weights = re.search(r"--weights[ =](\S+)", result["command"])
    return ", ".join([result["backend"], result["dtype"], *(weights.groups() if weights else ())])


def model_of(result: dict[str, Any]) -> str:
    """Name the model that was measured, and say whether its weights are random."""
    return result["model"] + (" (random weights)" if result["is_synthetic"] else "")


def cell(value: Any) -> str:
    """Format a value of a table for a reader."""
    if value is None:
        return "–"
    if isinstance(value, float):
        if 0 < abs(value) < 0.1:
            return digits(value, 2)
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)


def digits(value: float, count: int = 3) -> str:
    """Format a value with `count` significant digits, without an exponent."""
    if value == 0:
        return "0"
    places = count - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, places)}f}"


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return the lines of a Markdown table, with the footnotes of its marks."""
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| {' | '.join(map(cell, row))} |" for row in rows]
    return lines + footnotes(lines)


def footnotes(lines: Sequence[str]) -> list[str]:
    """Return the explanations of the marks in some lines, each after an empty line."""
    notes = [note for mark, note in FOOTNOTES.items() if any(mark in line for line in lines)]
    return [line for note in notes for line in ("", note)]


def source_of(result: dict[str, Any]) -> list[str]:
    """Return the last two cells of a row: the measured commit and the result file."""
    return [result["commit"], f"`{result['file']}`"]


def value(row: dict[str, Any], column: str) -> Any:
    """Return row["a"]["b"] for "a.b", or None if there is no such value."""
    found: Any = row
    for name in column.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def paragraph(text: str, indent: str = "") -> list[str]:
    """Break a paragraph into lines of at most `COLUMNS`; inline code stays in one line.

    Args:
        indent: the beginning of all lines but the first.
    """
    lines = [""]
    for word in re.findall(r"(?:`[^`]*`|[^\s`])+", text):
        if not lines[-1].strip():
            lines[-1] += word
        elif len(lines[-1]) + 1 + len(word) <= COLUMNS:
            lines[-1] += f" {word}"
        else:
            lines.append(indent + word)
    return lines


# ---- tables that name the machine, commit and file of their figures ------------------------------


Rows = list[tuple[dict[str, Any], list[Any]]]  # results, each with the cells of its row


def sourced_table(columns: Sequence[str], rows: Rows) -> list[str]:
    """Return a table of figures, and below it the machine, the commit and the file of each.

    Args:
        columns: the heads of the cells.
        rows: their results have `machine`, `commit` and `file`, and `instruction_set` if native
            code made the figures.
    Returns:
        Lines of Markdown. Rows name their machine by a letter only where the machines differ, and
        the native code's instruction set only where that differs.
    """
    machines = list(dict.fromkeys(machine_name(result["machine"]) for result, _ in rows))
    names = dict(zip(machines, ascii_uppercase, strict=False)) if len(machines) > 1 else {}
    mixed = len({result[NATIVE] for result, _ in rows if NATIVE in result}) > 1
    lines = []
    for result, (first, *rest) in rows:
        row = [f"{cell(first)} {mark_of(result['machine'])}".rstrip(), *rest]
        row += [result.get(NATIVE)] if mixed else []
        row += [names[machine_name(result["machine"])]] if names else []
        lines.append(f"| {' | '.join(map(cell, row))} |")
    heads = [*columns, *["native code"] * mixed, *["machine"] * bool(names)]
    notes = footnotes(lines)
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *lines]
    lines += [""] if machines else []
    for machine in machines:
        its = [result for result, _ in rows if machine_name(result["machine"]) == machine]
        code = (
            "" if mixed else "".join({f"; native code in {r[NATIVE]}" for r in its if NATIVE in r})
        )
        head = f"- {names[machine]}: {machine}" if names else f"On {machine}"
        lines += paragraph(f"{head}{code}. From {files_of(its)}.", "  " if names else "")
    return lines + notes


def files_of(results: Sequence[dict[str, Any]]) -> str:
    """Name the files of some results, each once, by the measured commit."""
    commits: dict[str, dict[str, None]] = {}
    for result in results:
        commits.setdefault(result["commit"], {})[f"`{result['file']}`"] = None
    return "; ".join(f"{', '.join(files)} at commit {commit}" for commit, files in commits.items())


Cell = str | Callable[[dict[str, Any]], str]  # a format of a result, or a function of it


def result_table(pattern: str, columns: dict[str, Cell]) -> list[str]:
    """Return a table with a row for each result file of this name, and their sources."""
    rows: Rows = []
    for result in load_results(pattern):
        cells = [
            c.format_map(result) if isinstance(c, str) else c(result) for c in columns.values()
        ]
        rows.append((result, cells))
    return sourced_table(list(columns), rows)


def spaced_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    return [*table(columns, rows), ""]
