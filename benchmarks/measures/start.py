"""Measure how long a new process takes to its first sound, and what a person waits for on the way.

The cases run by turns. A time counts from the start of the process: to its end, or for the first
sound to the line that it prints.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import common
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.errors import QwenTTSError

FIRST_SOUND = """
import sys
from qwen_megakernel import TTSEngine
with TTSEngine.from_pretrained(sys.argv[1], warmup=False) as tts:
    next(iter(tts.stream(sys.argv[2], seed=1)))
    print(flush=True)
"""


@common.takes(
    common.option("--model", "model to speak with", str, "demo-voice"),
    common.option("--text", "text to speak", str, common.TEXT),
    common.count("--runs", 10, "number of processes of each case whose times count"),
    common.add_plain_options,
)
def start(args: argparse.Namespace) -> int:
    """Measure every case and report."""
    files = loading.resolve(args.model)
    with tempfile.TemporaryDirectory() as folder:
        program = ["-m", "qwen_megakernel"]
        speak = ["speak", args.text, "--model", args.model, "--seed", "1"]
        cases = {
            "import_torch": ["-c", "import torch"],
            "import": ["-c", "import qwen_megakernel"],
            "help": [*program, "--help"],
            "first_sound": ["-c", FIRST_SOUND, args.model, args.text],
            "speak": [*program, *speak, "--output", str(Path(folder) / "speech.wav")],
        }
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for index in range(1 + args.runs):  # the first fills the caches of files
            for name, words in cases.items():
                taken = run(words, until_line=name == "first_sound")
                seconds[name] += [taken] if index else []
    found = {f"{name}_s": common.spread(each) for name, each in seconds.items()}
    for name, spread in found.items():
        print(f"{name}: {spread['p50']:.3f}, at worst {spread['p95']:.3f}")
    settings = {"text": args.text, "runs": args.runs}
    header = common.model_header(files, backend="cpu", settings=settings)
    common.write_json(args.json, header | common.native_set("cpu") | {"summary": found})
    return 0


def run(words: list[str], *, until_line: bool) -> float:
    """Return the seconds of a process of Python to its end, or to its first line."""
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *words],
        env=common.with_bytecode(),
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        if until_line:
            process.stdout.readline()
            taken = time.perf_counter() - started
        _, errors = process.communicate()
        if process.returncode:
            raise QwenTTSError(f"A process ended with {process.returncode}: {errors.decode()}")
        return taken if until_line else time.perf_counter() - started
