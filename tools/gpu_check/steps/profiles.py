"""Steps that show where a frame's time goes: stamps inside the kernel, and NVIDIA's profiler."""

import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from tools.gpu_check import nsight_compute, stage_times
from tools.gpu_check.kernel_timer import PROMPT_POSITIONS, ForcedStreams
from tools.gpu_check.steps import ROOT
from tools.gpu_check.steps.context import Context, find_program
from tools.gpu_check.steps.correctness import PATIENT_SECONDS

STREAM_COUNTS = (1, 16)


def stage_times_of_models(context: Context) -> dict[str, Any]:
    """Take stamps of every block and stage (stage_times.py), with 1 and 16 streams."""
    launches: list[dict[str, Any]] = []
    for name, streams in product(context.models, STREAM_COUNTS):
        launches.append(stage_times.measure(context, name, streams))
        print(stage_times.table(launches[-1]), flush=True)
        context.keep({"launches": launches})
    return {"launches": launches}


def ncu(context: Context) -> dict[str, Any]:
    """Profile a launch of few_step_kernel with Nsight Compute: why its warps wait, by instruction.

    If $OUT is set, the whole report is written there. Some hosts refuse the counters.
    """
    program = [sys.executable, str(Path(__file__).parent), "profiled_frames", "--json", os.devnull]
    if context.toy:
        size = "--emulation" if context.emulation else "--toy"
        subprocess.run([*program, size], cwd=ROOT, check=True)
        return {"status": "skipped", "why": "no ncu without a GPU"}
    tool = find_program("ncu")
    if tool is None:
        return {"status": "refused", "why": "ncu is not installed"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(os.environ.get("OUT") or folder) / "step_kernel.ncu-rep"
        command = nsight_compute.profile_command(tool, "step_kernel", report, program)
        left = max(1.0, context.deadline - time.monotonic())
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=left, check=False
            )
        except subprocess.TimeoutExpired:
            return {"status": "timeout"}
        print(done.stdout, done.stderr)
        if "ERR_NVGPUCTRPERM" in done.stdout + done.stderr:
            return {"status": "refused", "why": "this host does not permit GPU counters"}
        if done.returncode or not report.exists():
            raise SystemExit(f"ncu ended with {done.returncode}.")
        found: dict[str, Any] = {
            "metrics": nsight_compute.metrics(nsight_compute.page(tool, report, "details"))
        }
        context.keep(found)
        if source := nsight_compute.page(tool, report, "source"):
            found["hottest"] = nsight_compute.hottest(source)
    return found


def profiled_frames(context: Context) -> dict[str, Any]:
    """Run some steps of one stream of the smaller model; a profiler watches the last one."""
    sizes = {"num_slots": 1, "max_positions": PROMPT_POSITIONS + 64}
    decoder = context.decoder(context.load(context.models[0]), dtype=context.dtype, **sizes)
    decoder.launcher.timeout_seconds = PATIENT_SECONDS
    forced = ForcedStreams(decoder, 1, context.toy)
    return {"ms": forced.wall_ms(nsight_compute.SKIPPED + 1)}
