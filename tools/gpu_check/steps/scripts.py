"""Steps that run a script of ours in a process of its own: what a user and a listener meet.

A step of benchmarks/measure.py returns `rows`, which benchmarks/pages.py turns into
docs/performance.md.
"""

import json
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

from tools.gpu_check.steps import ROOT
from tools.gpu_check.steps.context import Context
from tools.gpu_check.steps.speed import STREAM_COUNTS

RATES, RATE_SECONDS = "1,10,20,40,80", 6
LISTENERS, LISTEN_SECONDS = "64,128,256", 4  # by the clock: a speech that has begun is heard out
MEMORY_STREAMS = (1, 8, 64)


def benchmark(context: Context) -> dict[str, Any]:
    """benchmark.py, and many streams: what a user of the engine sees."""
    common = ["--model", context.models[0], "--backend", context.backend.name, "--seed", "1"]
    common += ["--runs", "1" if context.toy else "3", "--warmup", "1"]
    common += ["--max-frames", "4" if context.toy else "60"]
    commands = {"benchmark.py": ["benchmark.py"]}
    for streams in (2,) if context.toy else STREAM_COUNTS[1:]:
        script = ["benchmarks/measure.py", "streams", "--streams", str(streams)]
        commands[f"{streams} streams"] = script
    found = {}
    for name, command in commands.items():
        code, found[name] = _run([*command, *common])
        if code or not found[name]:
            raise SystemExit(f"{name} ended with {code}.")
        context.keep(found)
    return found


def first_sound(context: Context) -> dict[str, Any]:
    """Text to first sound by stage; the first request against the tenth."""
    return measure(context, "first-sound", ["--runs", "3" if context.toy else "20"])


def open_loop(context: Context) -> dict[str, Any]:
    """First sound under requests that come when they like."""
    load = ["--rps", "4" if context.toy else RATES]
    load += ["--duration", "1" if context.toy else str(RATE_SECONDS)]
    return measure(context, "open-loop", load + _many(context))


def capacity(context: Context) -> dict[str, Any]:
    """Listeners who play what they hear."""
    load = ["--listeners", "2" if context.toy else LISTENERS]
    load += ["--duration", "1" if context.toy else str(LISTEN_SECONDS)]
    return measure(context, "open-loop", load + _many(context))


def _many(context: Context) -> list[str]:
    few = ["--streams", "4", "--max-frames", "4"]
    return few if context.toy else ["--streams", "256"]


def peers(context: Context) -> dict[str, Any]:
    """Our decoders and the official package on one checkpoint."""
    return measure(context, "peers", ["--frames", "4" if context.toy else "80"], backend=False)


def memory(context: Context) -> dict[str, Any]:
    """Load time and memory for 1, 8 and 64 slots."""
    few = ["--max-frames", "2"] if context.toy else []
    counts = MEMORY_STREAMS[:1] if context.toy else MEMORY_STREAMS
    return measure(context, "memory", *(["--streams", str(n), *few] for n in counts))


def texts(context: Context) -> dict[str, Any]:
    """Short, medium and long texts; first packets of 1 and 3 frames; the system's own voice."""
    runs, frames = ("1", "4") if context.toy else ("5", "200")
    return measure(context, "texts", ["--runs", runs, "--max-frames", frames])


def measure(
    context: Context, name: str, *options: list[str], backend: bool = True
) -> dict[str, Any]:
    """Rows of a measurement, run once for each of `options` and each model.

    Of one that fails, or whose time is up, what it has written until then is kept.
    """
    rows, results = [], []
    kept = {"rows": rows, "runs": results}
    for each, model in product(options, context.models):
        command = ["benchmarks/measure.py", name, "--model", model, *each, "--quiet"]
        if backend:  # a CPU's own fast one, or the kernel
            command += ["--backend", "torch" if context.emulation else "kernel"]
        code, found = _run(command, max(0.0, context.deadline - time.monotonic()))
        rows += [{"model": model} | row for row in found.pop("rows", [])]
        results.append(found)
        context.keep(kept)
        if code is None:
            return kept | {"status": "timeout"}
        if code:
            raise SystemExit(f"{name} for {model} ended with {code}.")
    return kept


def _run(command: list[str], seconds: float | None = None) -> tuple[int | None, dict[str, Any]]:
    """A script's exit code, None after `seconds`, and its result: {} for none or half of one."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, *command, "--json", str(file), "--idle", "0"]
        try:
            code = subprocess.run(command, cwd=ROOT, check=False, timeout=seconds).returncode
        except subprocess.TimeoutExpired:
            code = None
        try:
            return code, json.loads(file.read_text())
        except (OSError, ValueError):
            return code, {}
