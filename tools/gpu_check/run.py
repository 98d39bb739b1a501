#!/usr/bin/env python3
"""Run every check of the kernel that needs a GPU: build, tests, sanitizers, speed and endurance.

Every step (in the folder steps/) is a process of its own with a time budget: a step that fails,
hangs or crashes the device does not stop the other steps, and its results so far are kept. This
program writes result.json and log.txt into --out, or else into gpu_NAME_SET/ in $OUT or
benchmarks/results/. A call runs one set of steps, in the order of `SETS`. It does not compile
libraries that are packed in build/carried (carry.py). `--emulation` runs the same steps on a CPU at
toy size, which tests this program and measures no speed; `--toy` runs toy sizes on a GPU
(tools/fake_gpu).
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs as a script from anywhere

from benchmarks import machine
from qwen_megakernel.cli import parsing
from qwen_megakernel.native import compiling
from tools.gpu_check import carried

ROOT = Path(__file__).resolve().parents[2]
STEPS = Path(__file__).with_name("steps")  # a program; its registry.py lists every step
NO_GPU = 77

# The calls of a short hour, in their order; docs/gpu-setup.md explains what each decides. Each step
# has a number of seconds. If a call runs out of time it loses its last steps, so the most important
# ones come first. A step that compiles takes only seconds if its libraries were carried.
SETS = {
    "first": {
        "build": 150,
        "microbenchmark": 45,
        "validate_tiny": 60,
        "validate_0.6b": 60,
        "frame_times": 70,
        "stage_times": 60,
    },
    "why": {"variant_build": 150, "ncu": 45, "variants": 90, "tests": 110},
    "changed": {
        "build": 150,
        "frame_times": 70,
        "stage_times": 50,
        "validate_0.6b_long": 70,
        "validate_1.7b_long": 100,
    },
    "listeners": {
        "build": 150,
        "first_sound": 90,
        "prompt_times": 40,
        "vocoder_times": 30,
        "batch_curve": 90,
        "open_loop": 75,
    },
    "reliability": {
        "int8_build": 180,
        "endurance": 50,
        "abort": 40,
        "two_engines": 40,
        "sanitizer": 90,
        "int8_validate_0.6b": 70,
        "int8_frame_times": 60,
    },
    "more": {
        "build": 150,
        "benchmark": 100,
        "open_loop_long": 160,
        "capacity": 150,
        "peers": 90,
        "texts": 90,
        "memory": 120,
        "int8_validate_1.7b": 110,
        "million": 240,
    },
}
# The seconds of each call, including the time before and after the steps.
SECONDS = dict(zip(SETS, (240, 240, 240, 300, 300, 540), strict=True))
TOY_FACTOR = 4  # a CPU then does the GPU's work, and steps compile, too
END_SECONDS = 4  # time in which a step that stops early can end in order
LOG_LINES = 40  # lines of a failed step's log, shown again at the end

CLOCKS = "utilization.gpu,clocks.sm,clocks.mem,power.draw,temperature.gpu"
SAMPLE_SECONDS = 1.0
DEVICE = (
    "name,driver_version,memory.total,pcie.link.gen.current,mig.mode.current,compute_mode,"
    "clocks.max.sm,persistence_mode"
)


def main() -> int:
    """Run the steps, write the result, print a summary."""
    args = parse_args()
    if not args.emulation and not has_gpu():
        print("No GPU here: nvidia-smi finds none. --emulation runs the steps on the CPU.")
        return NO_GPU
    # No figure of a toy is a figure of a GPU.
    size = "--emulation" if args.emulation else "--toy" if args.toy else None
    name = args.name or (size.strip("-") if size else device_name())
    results = Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    folder = Path(args.out or results / f"gpu_{name}_{args.set}")
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    if found := carried.unpack(carried.CARRIED, compiling.build_cache()):
        print(f"{found} compiled libraries came with the checkout.", flush=True)
    conditions = machine.Conditions(idle_seconds=0)  # time on a GPU is expensive
    budgets = SETS[args.set]
    result: dict[str, Any] = {
        "set": args.set,
        "commit": args.commit or commit(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "emulation": size is not None,
        "device": None if args.emulation else query(DEVICE),
        "machine": machine.facts(),
        "nvcc": version("nvcc"),
        "steps": {},
    }
    with (
        (folder / "log.txt").open("w", encoding="utf-8") as log,
        carried.compiler_of(carried.CARRIED) as theirs,
    ):
        if theirs:
            result["carried_nvcc"] = theirs.strip().splitlines()[-1]
            print(f"They are of {result['carried_nvcc']}, not of {result['nvcc']}.", flush=True)
        for step in args.steps.split(","):
            left = args.seconds - (time.monotonic() - started)
            budget = budgets[step] * (TOY_FACTOR if args.toy else 1)
            found = run_step(step, min(budget, left), result["commit"], size, log)
            result["steps"][step] = found
            result["seconds"] = round(time.monotonic() - started, 1)
            print(f"{step:16} {found['status']:8} {found['seconds']:6.1f} s", flush=True)
            result["machine"] |= conditions.facts()
            # The result is written after every step, so it survives if this process is stopped.
            (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    report(result, folder)
    return int(any(s["status"] in ("failed", "timeout") for s in result["steps"].values()))


def run_step(step: str, seconds: float, commit: str, size: str | None, log: Any) -> dict[str, Any]:
    """Run a step in its own process group; return {"status", "seconds", "clocks", "result"}."""
    if seconds < 5:
        return {"status": "no time", "seconds": 0.0, "result": None}
    print(f"\n==== {step}", file=log, flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        output = Path(work) / "result.json"
        command = [sys.executable, str(STEPS), step, "--json", str(output)]
        command += [size] if size else []
        # The deadline is on this machine's clock, and the step divides what is left once torch is
        # imported.
        command += ["--until", str(started + seconds - END_SECONDS)]
        # Unbuffered, so that the output of a killed step is complete. The commit is passed on, for
        # a step may run without git's history.
        environment = {"PYTHONUNBUFFERED": "1", "QWEN_MEGAKERNEL_COMMIT": commit}
        with contextlib.nullcontext({}) if size else sampled() as clocks:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=os.environ | environment,
                start_new_session=True,
            )
            try:
                status = "ok" if process.wait(seconds) == 0 else "failed"
            except subprocess.TimeoutExpired:
                status = "timeout"
                os.killpg(process.pid, signal.SIGKILL)  # the step and all that it started
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)  # a process whose GPU hangs may not end at once
        result = read(output)
    if status == "ok" and result and "status" in result:
        status = result.pop("status")  # a step may return "refused", "skipped", "short", "timeout"
    found = {"status": status, "seconds": round(time.monotonic() - started, 1), "result": result}
    return found | {"clocks": clocks} if clocks else found


@contextlib.contextmanager
def sampled() -> Iterator[dict[str, Any]]:
    """Sample `CLOCKS` while the block runs; the yielded dict is filled in afterwards with the least
    and greatest value of each, from the samples in which the GPU was busy, if there are any. It
    stays empty if nvidia-smi reports nothing.
    """
    found: dict[str, Any] = {}
    samples: list[dict[str, float]] = []
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            samples.append(numbers(query(CLOCKS) or {}))
            over.wait(SAMPLE_SECONDS)

    thread = threading.Thread(target=work, daemon=True)  # nvidia-smi may hang with its GPU
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join(15)
    reported = [sample for sample in samples if sample]
    busy = [sample for sample in reported if sample.get("utilization.gpu")]
    for name in CLOCKS.split(",") if reported else ():
        if values := [sample[name] for sample in busy or reported if name in sample]:
            found[name] = [min(values), max(values)]
    if reported:
        found |= {"samples": len(reported), "busy": len(busy)}


def numbers(facts: dict[str, str]) -> dict[str, float]:
    """Return numbers from values like "1980 MHz"; leave out unreported ones ("[N/A]")."""
    found = {}
    for name, value in facts.items():
        with contextlib.suppress(ValueError):
            found[name] = float(value.split()[0])
    return found


def read(output: Path) -> dict[str, Any] | None:
    """Return the results that a step has written; None if it wrote nothing, or was killed while
    writing."""
    try:
        return json.loads(output.read_text())
    except (OSError, ValueError):
        return None


def report(result: dict[str, Any], folder: Path) -> None:
    """Print the main figures, then the ends of the logs of failed steps."""
    steps = result["steps"]
    times = steps.get("frame_times") or steps.get("int8_frame_times") or {}
    for row in (times.get("result") or {}).get("rows", []):
        print(
            f"{row['model']:18} {row['weights']:12}{row['streams']:3} streams  "
            f"{row['ms_per_frame']:8.3f} ms a frame  {row['gb_per_s']:7.0f} GB/s  "
            f"{100 * row['share_of_copy']:5.1f} % of a copy"
        )
    parts = re.split(r"^==== (\S+)\n", (folder / "log.txt").read_text(), flags=re.MULTILINE)
    for step, text in zip(parts[1::2], parts[2::2], strict=True):
        if steps[step]["status"] in ("failed", "timeout"):
            print(f"---- {step} {steps[step]['status']}; its last lines:")
            print("\n".join(text.splitlines()[-LOG_LINES:]))
    print(f"{folder}/result.json, {folder}/log.txt; {result['seconds']:.0f} s")


def has_gpu() -> bool:
    """Return whether nvidia-smi lists a GPU."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return done.returncode == 0 and "GPU" in done.stdout


def query(fields: str) -> dict[str, str] | None:
    """Return nvidia-smi's facts about the first GPU; None without a GPU."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    values = done.stdout.splitlines()[0].split(", ")
    return dict(zip(fields.split(","), values, strict=True))


def device_name() -> str:
    """Return the GPU's name as a folder name: nvidia_h200."""
    facts = query("name")
    return re.sub(r"\W+", "_", facts["name"]).lower() if facts else "unknown"


def version(tool: str) -> str | None:
    """Return the last line of `tool --version`."""
    try:
        done = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return (done.stdout.strip().splitlines() or [None])[-1]


def commit() -> str:
    """Return the commit of this checkout; "unknown" without git history."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = parsing.Parser("gpu_check.sh", description=__doc__)
    add = parsing.adder(parser)
    add("--name", "name for the result folder instead of the GPU's")
    add(
        "--out FOLDER",
        "folder for the results (default: benchmarks/results/gpu_NAME_SET)",
        parsing.file_name,
    )
    add("--emulation", "run toy sizes on the CPU, to test this program without a GPU", bool)
    add("--toy", "run toy sizes on the GPU", bool)
    add("--set", "which set of steps to run", SETS, "first")
    add("--steps", "run only these steps of the set, separated by commas")
    add("--seconds", "seconds for all steps together (default: as planned for the set)", float)
    add("--commit", "commit to record in the result, for a checkout without git history")
    args = parser.parse_args()
    budgets = SETS[args.set]
    args.seconds = args.seconds or SECONDS[args.set]
    args.steps = args.steps or ",".join(budgets)
    if unknown := set(args.steps.split(",")) - set(budgets):
        parser.error(f"unknown steps {', '.join(sorted(unknown))}; known: {', '.join(budgets)}")
    return args


if __name__ == "__main__":
    sys.exit(main())
