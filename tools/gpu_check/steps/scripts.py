"""Steps that run one of the repository's scripts in a process of its own, as a user does.

A step of benchmarks/measure.py returns `rows`, which benchmarks/pages.py turns into
docs/performance.md.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tools.gpu_check.steps import ROOT
from tools.gpu_check.steps.context import Context
from tools.gpu_check.steps.speed import STREAM_COUNTS

RATES, ALL_RATES, RATE_SECONDS = "20,80", "1,10,20,40,80", 6
# Seconds of wall time; a speech that has begun is played to its end.
LISTENERS, LISTEN_SECONDS = "64,128,256", 4
MEMORY_STREAMS = (1, 8, 64)


def benchmark(context: Context) -> dict[str, Any]:
    """Measure what a user of the engine sees: run benchmark.py, and many streams."""
    common = ["--model", context.drawn(context.models[0]), "--seed", "1"]
    common += ["--backend", context.backend.name]
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
    """Measure the stages from text to first sound, on the kernel and on the graphs, and compare the
    first request with the tenth.
    """
    runs = ["--runs", "3" if context.toy else "20"]
    fast = context.own_backend
    return measure(context, "first-sound", *([*runs, *_on(name)] for name in (fast, "graph")))


def open_loop(context: Context) -> dict[str, Any]:
    """Measure first sound under requests that arrive at random: the two rates that have goals, on
    the smaller model.
    """
    return measure(context, "open-loop", _rates(context, RATES), models=context.models[:1])


def open_loop_long(context: Context) -> dict[str, Any]:
    """Run `open_loop` at every rate and for every model."""
    return measure(context, "open-loop", _rates(context, ALL_RATES))


def _rates(context: Context, rates: str) -> list[str]:
    load = ["--rps", "4" if context.toy else rates]
    load += ["--duration", "1" if context.toy else str(RATE_SECONDS)]
    return [*load, *_many(context), *_on(context.own_backend)]


def capacity(context: Context) -> dict[str, Any]:
    """Measure how many listeners that play their speech in real time can be served."""
    load = ["--listeners", "2" if context.toy else LISTENERS]
    load += ["--duration", "1" if context.toy else str(LISTEN_SECONDS)]
    return measure(context, "open-loop", [*load, *_many(context), *_on(context.own_backend)])


def _on(backend: str) -> list[str]:
    return ["--backend", backend]


def _many(context: Context) -> list[str]:
    few = ["--streams", "4", "--max-frames", "4"]
    return few if context.toy else ["--streams", "256"]


def peers(context: Context) -> dict[str, Any]:
    """Compare these decoders and the official package on one checkpoint."""
    return measure(context, "peers", ["--frames", "4" if context.toy else "80"], drawn=False)


def memory(context: Context) -> dict[str, Any]:
    """Measure load time and memory for 1, 8 and 64 slots."""
    few = _on(context.own_backend) + (["--max-frames", "2"] if context.toy else [])
    counts = MEMORY_STREAMS[:1] if context.toy else MEMORY_STREAMS
    options = (["--streams", str(n), *few] for n in counts)
    return measure(context, "memory", *options, drawn=False)  # loading is a part of it


def texts(context: Context) -> dict[str, Any]:
    """Measure texts of three lengths; first packets of 1 and 3 frames; the system's voice."""
    runs, frames = ("1", "4") if context.toy else ("5", "200")
    options = ["--runs", runs, "--max-frames", frames, *_on(context.own_backend)]
    return measure(context, "texts", options)


def measure(
    context: Context,
    name: str,
    *options: list[str],
    models: Sequence[str] | None = None,
    drawn: bool = True,
) -> dict[str, Any]:
    """Return the rows of a measurement, run once for each of `options` and each model.

    If a run fails or runs out of time, its results so far are kept.

    Args:
        models: some of the context's; None: all.
        drawn: True: random weights without a file; False: weights that are written to a file first.
    """
    rows, results = [], []
    kept = {"rows": rows, "runs": results}
    for each, model in product(options, models or context.models):
        weights = context.drawn(model) if drawn else model
        command = ["benchmarks/measure.py", name, "--model", weights, *each, "--quiet"]
        code, found = _run(command, max(0.0, context.deadline - time.monotonic()))
        where = {"model": model} | {k: found[k] for k in ("backend",) if k in found}
        rows += [where | row for row in found.pop("rows", [])]
        results.append(found)
        context.keep(kept)
        if code is None:
            return kept | {"status": "timeout"}
        if code:
            raise SystemExit(f"{name} for {model} ended with {code}.")
    return kept


def _run(command: list[str], seconds: float | None = None) -> tuple[int | None, dict[str, Any]]:
    """Return a script's exit code, None after `seconds`, and its result ({} if incomplete)."""
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
