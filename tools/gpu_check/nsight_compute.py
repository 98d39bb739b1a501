"""Profile one launch with NVIDIA's Nsight Compute (ncu), and read its report."""

import csv
import subprocess
from collections.abc import Sequence
from pathlib import Path

SECTIONS = ("SpeedOfLight", "WarpStateStats", "SourceCounters", "InstructionStats")
SECTIONS += ("MemoryWorkloadAnalysis", "LaunchStats", "Occupancy")
SKIPPED = 3  # launches before the profiled one, which warm up
HOTTEST = 80  # instructions to keep from the report


def profile_command(program: str, kernel: str, report: Path, watched: Sequence[str]) -> list[str]:
    """Return the command that profiles a launch of `kernel` in `watched`, by line of source.

    Clocks are left alone: the duration of a launch under ncu is not a result.
    """
    words = [program, "--clock-control", "none", "--kernel-name", f"regex:{kernel}"]
    words += ["--launch-skip", str(SKIPPED), "--launch-count", "1"]
    for section in SECTIONS:
        words += ["--section", section]
    return [*words, "--force-overwrite", "--export", str(report), *watched]


def page(program: str, report: Path, name: str) -> list[dict[str, str]]:
    """Return a page of a report, "details" or "source", as one row for each metric or instruction;
    [] if ncu does not return it.
    """
    command = [program, "--import", str(report), "--page", name, "--csv"]
    if name == "source":
        command += ["--print-source", "sass"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"-- {' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return []
    return rows(done.stdout)


def rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a CSV page after its header, the first line with a quoted name."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"')), len(lines))
    return list(csv.DictReader(lines[start:]))


def metrics(details: Sequence[dict[str, str]]) -> dict[str, str]:
    return {
        f"{row['Section Name']}: {row['Metric Name']}": (
            f"{row['Metric Value']} {row.get('Metric Unit') or ''}".strip()
        )
        for row in details
        if row.get("Metric Name") and row.get("Metric Value")
    }


def hottest(source: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return the instructions in which warps were sampled most, with what they waited for."""
    samples = next((name for name in source[0] if "Samples" in name or "Sampling" in name), None)
    if samples is None:
        return []
    kept = sorted(source, key=lambda row: -_number(row[samples]))[:HOTTEST]
    return [{k: v for k, v in row.items() if k and v not in ("", "0", None)} for row in kept]


def _number(text: str | None) -> float:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return 0.0
