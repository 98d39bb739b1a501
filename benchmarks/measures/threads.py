"""How many threads should compute on a CPU, and how they should wait: alone and beside others.

Every case is a process of its own, `measure.py e2e` with `--threads`: OpenMP is told how to wait
before it is loaded. Busy programs are Python loops at the same priority.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import common
from qwen_megakernel.errors import QwenTTSError
from qwen_megakernel.native import cpu_threads

WAITING = {
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},  # as every command of this project sets it
    # libgomp's own default (300,000 turns of a loop, then sleep), which PyTorch alone would have.
    "busy": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "300000"},
}
FIGURES = ("first_chunk_ms", "rtf", "decode_ms_per_frame", "underruns_100ms")


@common.takes(
    common.option("--models", nargs="+", default=["demo-voice"], help="models to speak with"),
    common.option("--busy", nargs="+", type=int, default=[0, 1, 2], help="numbers of busy loops"),
    common.count("--runs", 5, "speeches of each case that are counted"),
    common.option("--max-frames", type=int, help="length of a speech at most"),
    common.add_plain_options,
)
def threads(args: argparse.Namespace) -> int:
    """Measure every case and report; the result file is written after each."""
    rows: list[dict[str, Any]] = []
    found = common.header() | {"settings": {"runs": args.runs, "max_frames": args.max_frames}}
    print(f"{'model':>12} {'busy':>4} {'threads':>7} {'waiting':>8} {'first chunk':>11} {'RTF':>6}")
    for model in args.models:
        for num_busy in args.busy:
            for num_threads in range(1, cpu_threads.available_cores() + 1):
                for waiting in WAITING if num_threads > 1 else ["passive"]:
                    case = {"busy": num_busy, "threads": num_threads, "waiting": waiting}
                    with busy_loops(num_busy):
                        row = {"model": model} | case | speak(args, model, num_threads, waiting)
                    rows.append(row)
                    first, rtf = row["first_chunk_ms"], row["rtf"]
                    print(
                        f"{model:>12} {num_busy:>4} {num_threads:>7} {waiting:>8} "
                        f"{first['p50']:>8.0f} ms {rtf['p50']:>6.2f}, at worst {rtf['p95']:.2f}",
                        flush=True,
                    )
                    common.write_json(args.json, found | {"rows": rows})
    return 0


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many programs that never rest."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def speak(args: argparse.Namespace, model: str, num_threads: int, waiting: str) -> dict[str, Any]:
    """The figures of one case, from a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        words = ["e2e", "--model", model, "--threads", num_threads, "--runs", args.runs]
        words += ["--warmup", 1, "--quiet", "--json", result, "--idle", 0]
        if args.max_frames:
            words += ["--max-frames", args.max_frames]
        done = subprocess.run(
            [sys.executable, Path(__file__).parents[1] / "measure.py", *map(str, words)],
            env=os.environ | WAITING[waiting],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise QwenTTSError(f"measure.py e2e ended with {done.returncode}: {done.stderr}")
        case = json.loads(result.read_text(encoding="utf-8"))
    facts = ("is_synthetic", "dtype", "backend", "instruction_set")
    return {name: case[name] for name in facts if name in case} | {
        name: case["summary"][name] for name in FIGURES
    }
