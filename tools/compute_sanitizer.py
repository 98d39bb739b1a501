"""NVIDIA's compute-sanitizer: where it is, how a program runs under it, and what it has found."""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from qwen_megakernel import build_tts

TOOLS = ("memcheck", "racecheck", "synccheck")
REFUSALS = ("not supported", "unable to", "error 999", "could not")  # said by the tool itself


def find() -> str | None:
    """The program, on the path or where nvcc comes from."""
    toolkit = Path(build_tts.find_nvcc()).resolve().parents[1]
    places = [os.environ["PATH"], toolkit / "bin", toolkit / "compute-sanitizer"]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(map(str, places)))


def command(program: str, tool: str) -> list[str]:
    """What to write before the command that is to be watched by one of `TOOLS`."""
    words = [program, "--tool", tool, "--error-exitcode", "9"]
    if tool == "memcheck":  # torch asks the driver for entry points that are not there
        words += ["--report-api-errors", "no"]
    return words


def run(watched: Sequence[str], seconds: float, cwd: Path | None = None) -> dict[str, str]:
    """{"status": "ok", "failed", "refused" or "timeout", "says": the last word of a tool}."""
    process = subprocess.Popen(
        watched,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        status = "failed" if process.returncode else "ok"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the tool and what it watches
        output, _ = process.communicate()
        status = "timeout"
    print(f"-- {' '.join(watched)}: {status}\n{output}")
    lines = [line for line in output.splitlines() if line.startswith("=========")]
    if status == "failed" and any(word in line.lower() for word in REFUSALS for line in lines):
        status = "refused"
    return {"status": status, "says": lines[-1] if lines else output[-200:]}
