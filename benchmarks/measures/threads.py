"""Measure how many threads should compute on a CPU, and how they should wait, alone and beside
others.

Every case is a process of its own, `measure.py e2e` with `--threads`, because OpenMP reads the way
to wait when it is loaded. Busy programs are Python loops at the same priority.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.page_parts import digits
from qwen_megakernel.errors import QwenTTSError
from qwen_megakernel.native import cpu_threads

WAITING = {
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},  # every command of this project sets this
    # This is libgomp's own default (300,000 turns of a loop, then sleep), which PyTorch alone has.
    "busy": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "300000"},
}
BACKENDS = ("cpu", "torch")
NATIVE = "native"  # the threads of backend cpu wait in their own way (csrc/cpu/pool.h)
FIGURES = ("first_chunk_ms", "rtf", "decode_ms_per_frame", "underruns_100ms")


@common.takes(
    common.option("--models", "models to speak with", str, ["demo-voice"], nargs="+"),
    common.option("--backend", "backends to decode with", BACKENDS, list(BACKENDS), nargs="+"),
    common.option(
        "--busy", "numbers of busy loops to run at the same time", int, [0, 1, 2], nargs="+"
    ),
    common.count("--runs", 5, "number of speeches of each case whose figures count"),
    common.option("--max-frames", "longest speech in frames", int),
    common.add_plain_options,
)
def threads(args: argparse.Namespace) -> int:
    """Measure every case and report; write the result file after each."""
    rows: list[dict[str, Any]] = []
    found = common.header() | {"settings": {"runs": args.runs, "max_frames": args.max_frames}}
    print(f"{'model':>12} {'backend':>7} {'busy':>4} {'threads':>7} {'waiting':>8}")
    for model, backend, num_busy in product(args.models, args.backend, args.busy):
        for num_threads, waiting in ways(backend):
            case = {"model": model, "backend": backend, "busy": num_busy}
            case |= {"threads": num_threads, "waiting": waiting}
            with busy_loops(num_busy):
                row = case | speak(args, case)
            rows.append(row)
            first, rtf = row["first_chunk_ms"], row["rtf"]
            print(
                f"{model:>12} {backend:>7} {num_busy:>4} {num_threads:>7} {waiting:>8}  "
                f"first chunk {digits(first['p50'])} ms, RTF {digits(rtf['p50'])}, "
                f"at worst {digits(rtf['p95'])}",
                flush=True,
            )
            common.write_json(args.json, found | {"rows": rows})
    return 0


def ways(backend: str) -> Iterator[tuple[int, str]]:
    """Yield each number of threads, and how they wait for each other; one thread never does."""
    for num_threads in range(1, cpu_threads.available_cores() + 1):
        waiting = [NATIVE] if backend == "cpu" else list(WAITING)
        for how in waiting if num_threads > 1 else waiting[:1]:
            yield num_threads, how


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run `count` busy programs during the block."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def speak(args: argparse.Namespace, case: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of one case, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        words = ["e2e", "--runs", args.runs, "--warmup", 1, "--quiet", "--json", result]
        words += ["--idle", 0]  # the busy loops of this case would make it wait
        for name in ("model", "backend", "threads"):
            words += [f"--{name}", case[name]]
        if args.max_frames:
            words += ["--max-frames", args.max_frames]
        done = subprocess.run(
            [sys.executable, Path(__file__).parents[1] / "measure.py", *map(str, words)],
            env=os.environ | WAITING.get(case["waiting"], {}),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise QwenTTSError(f"measure.py e2e ended with {done.returncode}: {done.stderr}")
        found = json.loads(result.read_text(encoding="utf-8"))
    if found["threads"] != case["threads"]:
        raise QwenTTSError(f"measure.py e2e used {found['threads']} threads in the case {case}.")
    facts = ("is_synthetic", "dtype", "instruction_set")
    return {name: found[name] for name in facts if name in found} | {
        name: found["summary"][name] for name in FIGURES
    }
