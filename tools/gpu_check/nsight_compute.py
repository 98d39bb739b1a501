"""NVIDIA's Nsight Compute: where ncu is, how one launch is profiled, and what its report says."""

import csv
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from qwen_megakernel.decoders.kernel import build

SECTIONS = ("SpeedOfLight", "WarpStateStats", "SourceCounters", "InstructionStats")
SECTIONS += ("MemoryWorkloadAnalysis", "LaunchStats", "Occupancy")
SKIPPED = 3  # launches before the one that is profiled: they warm up
HOTTEST = 80  # instructions of the report that are kept


def find() -> str | None:
    """The program, on the path or where nvcc comes from."""
    toolkit = Path(build.find_nvcc()).resolve().parents[1]
    places = [os.environ["PATH"], toolkit / "bin", "/usr/local/cuda/bin"]
    return shutil.which("ncu", path=os.pathsep.join(map(str, places)))


def profile_command(program: str, kernel: str, report: Path, watched: Sequence[str]) -> list[str]:
    """What profiles one launch of `kernel` in the command `watched`, with counters by source line.

    Clocks stay as they are: what a launch takes under ncu is not what is asked.
    """
    words = [program, "--clock-control", "none", "--kernel-name", f"regex:{kernel}"]
    words += ["--launch-skip", str(SKIPPED), "--launch-count", "1"]
    for section in SECTIONS:
        words += ["--section", section]
    return [*words, "--force-overwrite", "--export", str(report), *watched]


def page(program: str, report: Path, name: str) -> list[dict[str, str]]:
    """A page of a report, "details" or "source": a row for each metric or instruction; none where
    ncu does not give it."""
    command = [program, "--import", str(report), "--page", name, "--csv"]
    if name == "source":
        command += ["--print-source", "sass"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"-- {' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return []
    return rows(done.stdout)


def rows(text: str) -> list[dict[str, str]]:
    """The rows of a CSV page behind its header, which is its first line with a quoted name."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"')), len(lines))
    return list(csv.DictReader(lines[start:]))


def metrics(details: Sequence[dict[str, str]]) -> dict[str, str]:
    """{"section: metric": "value unit"} of a details page."""
    return {
        f"{row['Section Name']}: {row['Metric Name']}": (
            f"{row['Metric Value']} {row.get('Metric Unit') or ''}".strip()
        )
        for row in details
        if row.get("Metric Name") and row.get("Metric Value")
    }


def hottest(source: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The instructions in which warps were sampled most, with what they waited for."""
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
