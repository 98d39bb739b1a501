"""Run a program under NVIDIA's compute-sanitizer, and read its findings."""

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "synccheck")
REFUSALS = ("not supported", "unable to", "error 999", "could not")  # the tool prints these
# The program prints this: its grid found no room beside the tool (cudaError_t; kernel/library.py).
LAUNCH_REFUSED = re.compile(r"^.*CUDA error (?:701|720|801)\b.*$", re.MULTILINE)
SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+)", re.MULTILINE)


def command(program: str, tool: str) -> list[str]:
    """Return the words to put in front of a command, so that one of `TOOLS` watches it."""
    words = [program, "--tool", tool, "--error-exitcode", "9"]
    words += ["--target-processes", "application-only"]  # not the compilers that it starts
    words += ["--launch-timeout", "0"]  # `run` sets the limit; the tool's is 10 s or 60 s
    if tool == "memcheck":  # torch looks for entry points that the driver lacks
        words += ["--report-api-errors", "no"]
    return words


def run(watched: Sequence[str], seconds: float, cwd: Path | None = None) -> dict[str, str]:
    """Return {"status": "ok", "failed", "refused" or "timeout", "says": the tool's last line}."""
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
        os.killpg(process.pid, signal.SIGKILL)  # the tool and the program that it watches
        output, _ = process.communicate()
        status = "timeout"
    print(f"-- {' '.join(watched)}: {status}\n{output}")
    lines = [line for line in output.splitlines() if line.startswith("=========")]
    says = lines[-1] if lines else output[-200:]
    found = max(map(int, SUMMARY.findall(output)), default=None)
    if status == "ok" and found is None:
        status = "refused"  # the program ran and the tool did not watch
    if status == "failed" and any(word in line.lower() for word in REFUSALS for line in lines):
        status = "refused"
    # One error may be the program's exit code; any more were found in its launches.
    if status == "failed" and (found or 0) <= 1 and (refused := LAUNCH_REFUSED.search(output)):
        status, says = "refused", refused[0]
    return {"status": status, "says": says}
