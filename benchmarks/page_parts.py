"""What the generated pages share: result files, tables, and the helper that writes a page."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

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


def machine_of(result: dict[str, Any]) -> str:
    """What a result was measured on."""
    machine = result["machine"]
    if machine["gpu"]:
        return machine["gpu"]["name"]
    return f"{machine['processor']}, {machine['cores']} threads"


def model_of(result: dict[str, Any]) -> str:
    """Which model was measured, and whether its weights are real."""
    return result["model"] + (" (random weights)" if result["is_synthetic"] else "")


def cell(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return lines + [f"| {' | '.join(map(cell, row))} |" for row in rows]


def source_of(result: dict[str, Any]) -> list[str]:
    """The last two cells of a row: the commit that was measured, and the result file."""
    return [result["commit"], f"`{result['file']}`"]


def busy_machine_of(result: dict[str, Any]) -> str:
    """The machine, and how busy it was: what else ran counts in wall time."""
    return f"{machine_of(result)}, load average {result['machine']['load_1min']:.1f}"


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
