"""Write the measured tables of the documents from the committed result files.

python benchmarks/tables.py            rewrite each document between its markers
python benchmarks/tables.py --check    exit 1 if that would change one
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def load_results(pattern: str) -> list[dict]:
    """Result files of this name, in order."""
    found = []
    for path in sorted(RESULTS.glob(pattern)):
        found.append(json.loads(path.read_text(encoding="utf-8")) | {"file": path.name})
    return found


def machine_of(result: dict) -> str:
    """What a result was measured on."""
    machine = result["machine"]
    if machine["gpu"]:
        return machine["gpu"]["name"]
    return f"{machine['processor']}, {machine['cores']} threads"


def model_of(result: dict) -> str:
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


def source_of(result: dict) -> list[str]:
    """The last two cells of a row: the commit that was measured, and the result file."""
    return [result["commit"], f"`{result['file']}`"]


def median_of(result: dict) -> dict[str, float]:
    """p50 of every figure."""
    return {name: values["p50"] for name, values in result["summary"].items()}


def busy_machine_of(result: dict) -> str:
    """The machine, and how busy it was: what else ran counts in wall time."""
    return f"{machine_of(result)}, load average {result['machine']['load_1min']:.1f}"


def speech_table() -> list[str]:
    """One row a result file of benchmark.py: what ran where, and its p50 figures."""
    columns = ["model", "backend", "machine", "first frame", "first samples", "RTF"]
    rows = []
    for result in load_results("benchmark_*.json"):
        p50 = median_of(result)
        rows.append(
            [
                model_of(result),
                f"{result['backend']}, {result['dtype']}",
                machine_of(result),
                f"{p50['first_frame_ms']:.0f} ms",
                f"{p50['first_chunk_ms']:.0f} ms",
                f"{p50['rtf']:.2f}",
                *source_of(result),
            ]
        )
    return table([*columns, "commit", "file"], rows)


def voices_table() -> list[str]:
    """One row a result file of `measure.py voices`, p50."""
    columns = ["model", "machine", "x-vector", "codes", "a remembered voice"]
    rows = []
    for result in load_results("voices_*.json"):
        p50 = median_of(result)
        rows.append(
            [
                model_of(result),
                machine_of(result),
                f"{p50['x_vector_ms']:.0f} ms",
                f"{p50['codec_ms']:.0f} ms",
                f"{p50['cached_voice_ms']:.1f} ms",
                *source_of(result),
            ]
        )
    return table([*columns, "commit", "file"], rows)


def pipecat_table() -> list[str]:
    """One row a result file of `measure.py pipecat`."""
    columns = ["mode", "pipelines", "machine", "chunk to frame, p95", "event loop held"]
    columns += ["barge-in to engine told, p95", "commit", "file"]
    rows = []
    for result in load_results("pipecat_*.json"):
        settings, summary = result["settings"], result["summary"]
        rows.append(
            [
                "TOKEN" if settings["token"] else "SENTENCE",
                settings["pipelines"],
                machine_of(result),
                f"{summary['overhead_ms']['p95']:.1f} ms",
                f"{summary['loop_held_ms']['max']:.1f} ms CPU, "
                f"{summary['loop_held_wall_ms']['max']:.1f} ms by the clock",
                f"{summary['quiet_ms']['p95']:.2f} ms",
                *source_of(result),
            ]
        )
    return table(columns, rows)


def load_table() -> list[str]:
    """One row a level of a result file of the load test."""
    columns = ["model", "load", "machine", "first byte", "first audible", "end to end"]
    columns += ["underrun, with 100 ms", "xRT", "commit", "file"]
    rows = []
    for result in load_results("load_*.json"):
        for level in result["levels"]:
            unit = "requests/s" if level["mode"] == "open" else "listeners"
            times = [
                " / ".join(f"{level['summary'][name][rank]:.0f}" for rank in ("p50", "p95", "p99"))
                for name in ("first_byte_ms", "first_audible_ms", "e2e_ms")
            ]
            rows.append(
                [
                    result["model"],
                    f"{level['load']:g} {unit}",
                    busy_machine_of(result),
                    *times,
                    f"{level['underrun_share']:.0%}, {level['underrun_100ms_share']:.0%}",
                    f"{level['xrt']:.2f}",
                    *source_of(result),
                ]
            )
    return table(columns, rows)


def server_table() -> list[str]:
    """One row a figure of each result file of `measure.py server`."""
    rows = []
    for result in load_results("server_*.json"):
        settings = result["settings"]
        names = {
            "first_byte_overhead_ms": "first byte",
            "real_first_byte_overhead_ms": f"first byte, {settings['model']}",
            "chunk_overhead_ms": f"chunk, {settings['streams']} streams",
            "crowd_chunk_overhead_ms": f"chunk, {settings['crowd']} streams",
            "underruns_added": f"gaps added to each of {settings['crowd']} streams",
        }
        for name, title in names.items():
            if name in result["summary"]:
                unit = " ms" if name.endswith("_ms") else ""
                figures = [
                    f"{result['summary'][name][key]:.1f}{unit}" for key in ("p50", "p95", "max")
                ]
                rows.append([title, *figures, busy_machine_of(result), *source_of(result)])
    return table(["figure", "p50", "p95", "longest", "machine", "commit", "file"], rows)


DOCUMENTS: dict[str, Callable[[], list[str]]] = {
    "README.md": speech_table,
    "docs/voices.md": voices_table,
    "docs/pipecat.md": pipecat_table,
    "docs/operations.md": load_table,
    "docs/serving.md": server_table,
}


def main() -> int:
    """Rewrite or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale = []
    for name, lines in DOCUMENTS.items():
        document = ROOT / name
        text = document.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        new = "\n".join([f"{before}{BEGIN}", *lines(), f"{END}{after}"])
        if new != text:
            stale.append(name)
            if not args.check:
                document.write_text(new, encoding="utf-8")
    if args.check and stale:
        print("not what the result files say:", *stale, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
