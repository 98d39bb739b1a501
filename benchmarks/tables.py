"""Write the measured tables of the documents from the committed result files.

python benchmarks/tables.py            rewrite each document between its markers
python benchmarks/tables.py --check    exit 1 if that would change one
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

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


def speech_table() -> str:
    """One row a result file of benchmark.py: what ran where, and its p50 figures."""
    lines = [
        "| model | backend | machine | first frame | first samples | RTF | commit | file |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in load_results("benchmark_*.json"):
        p50 = {name: values["p50"] for name, values in result["summary"].items()}
        lines.append(
            f"| {model_of(result)} | {result['backend']}, {result['dtype']} "
            f"| {machine_of(result)} "
            f"| {p50['first_frame_ms']:.0f} ms | {p50['first_chunk_ms']:.0f} ms "
            f"| {p50['rtf']:.2f} | {result['commit']} | `{result['file']}` |"
        )
    return "\n".join(lines)


def voices_table() -> str:
    """One row a result file of measure_voices.py, p50."""
    lines = [
        "| model | machine | x-vector | codes | a remembered voice | commit | file |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in load_results("voices_*.json"):
        p50 = {name: values["p50"] for name, values in result["summary"].items()}
        lines.append(
            f"| {model_of(result)} | {machine_of(result)} | {p50['x_vector_ms']:.0f} ms "
            f"| {p50['codec_ms']:.0f} ms | {p50['cached_voice_ms']:.1f} ms "
            f"| {result['commit']} | `{result['file']}` |"
        )
    return "\n".join(lines)


def pipecat_table() -> str:
    """One row a result file of measure_pipecat.py."""
    lines = [
        "| mode | pipelines | machine | chunk to frame, p95 | event loop held | barge-in to engine "
        "told, p95 | commit | file |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in load_results("pipecat_*.json"):
        settings, summary = result["settings"], result["summary"]
        lines.append(
            f"| {'TOKEN' if settings['token'] else 'SENTENCE'} | {settings['pipelines']} "
            f"| {machine_of(result)} | {summary['overhead_ms']['p95']:.1f} ms "
            f"| {summary['loop_held_ms']['max']:.1f} ms CPU, "
            f"{summary['loop_held_wall_ms']['max']:.1f} ms by the clock "
            f"| {summary['quiet_ms']['p95']:.2f} ms | {result['commit']} | `{result['file']}` |"
        )
    return "\n".join(lines)


def load_table() -> str:
    """One row a level of a result file of bench_server.py."""
    lines = [
        "| model | load | machine | first byte | first audible | end to end "
        "| underrun, with 100 ms | xRT | commit | file |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in load_results("load_*.json"):
        busy = f", load average {result['machine']['load_1min']:.1f}"
        for level in result["levels"]:
            unit = "requests/s" if level["mode"] == "open" else "listeners"
            times = [
                " / ".join(f"{level['summary'][name][rank]:.0f}" for rank in ("p50", "p95", "p99"))
                for name in ("first_byte_ms", "first_audible_ms", "e2e_ms")
            ]
            lines.append(
                f"| {result['model']} | {level['load']:g} {unit} | {machine_of(result)}{busy} "
                f"| {' | '.join(times)} | {level['underrun_share']:.0%}, "
                f"{level['underrun_100ms_share']:.0%} | {level['xrt']:.2f} "
                f"| {result['commit']} | `{result['file']}` |"
            )
    return "\n".join(lines)


def server_table() -> str:
    """One row a figure of each result file of measure_server.py."""
    lines = ["| | p50 | p95 | longest | machine | commit | file |", "|---|---|---|---|---|---|---|"]
    for result in load_results("server_*.json"):
        settings, busy = result["settings"], f"load average {result['machine']['load_1min']:.1f}"
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
                lines.append(
                    f"| {title} | {' | '.join(figures)} | {machine_of(result)}, {busy} "
                    f"| {result['commit']} | `{result['file']}` |"
                )
    return "\n".join(lines)


DOCUMENTS: dict[str, Callable[[], str]] = {
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
    for name, table in DOCUMENTS.items():
        document = ROOT / name
        text = document.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        new = f"{before}{BEGIN}\n{table()}\n{END}{after}"
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
