"""Measure how fast a converted model starts, and how much memory its processes share.

The original, whose weights are packed at every start, and the converted model run by turns. Every
process loads the model, speaks, and waits until all processes have spoken; then each reports its
memory.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import common
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.choices import VOCODER_WEIGHTS, WEIGHTS
from qwen_megakernel.errors import QwenTTSError

TEXT = "This takes two seconds to say, and so it has every chunk size."
# A part of a process's mappings -> its name in a result; "pss": a shared page counts in parts.
KINDS = {"Rss": "resident_mb", "Pss": "pss_mb", "Anonymous": "private_mb"}
FIGURES = ("load_s", "first_chunk_ms", "decode_ms_per_frame", "peak_mb", *KINDS.values())

PROCESS = """
import sys
from benchmarks.measures import processes
processes.speak(sys.argv[1], sys.argv[2] or None, int(sys.argv[3]))
"""


@common.takes(
    common.option("--model", "model to convert and to speak with", str, "random-0.6b"),
    common.option("--weights", "form of its weights", WEIGHTS),
    common.option(
        "--vocoder-weights",
        "number format of the vocoder's weights in the converted model",
        VOCODER_WEIGHTS,
        "float32",
    ),
    common.option("--processes", "numbers of processes at a time", int, [1, 2], nargs="+"),
    common.count("--runs", 3, "number of runs of each case"),
    common.count("--max-frames", 40, "longest speech in frames"),
    common.add_plain_options,
)
def processes(args: argparse.Namespace) -> int:
    """Convert the model, measure every case and report."""
    files = loading.resolve(args.model)
    with tempfile.TemporaryDirectory() as folder:
        converted = str(Path(folder) / "converted")
        command = [sys.executable, "-m", "qwen_megakernel", "convert", args.model, "-o", converted]
        command += ["--weights", args.weights] if args.weights else []
        command += ["--vocoder-weights", args.vocoder_weights]
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        settings = {"weights": args.weights, "vocoder_weights": args.vocoder_weights}
        settings |= {"runs": args.runs, "max_frames": args.max_frames}
        settings |= {
            "convert_s": time.perf_counter() - started,
            "convert_peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1.024e-3,
        }
        cases = {(name, n): [] for n in args.processes for name in ("packed", "mapped")}
        for _ in range(args.runs):
            for (name, count), found in cases.items():
                model = converted if name == "mapped" else args.model
                found += together(count, model, args.weights, args.max_frames)
    rows: list[dict[str, Any]] = []
    for (name, count), found in cases.items():
        row = {figure: common.spread([each[figure] for each in found]) for figure in FIGURES}
        rows.append({"form": name, "processes": count} | row)
        shown = ", ".join(f"{figure} {row[figure]['p50']:.4g}" for figure in FIGURES)
        print(f"{name}, {count} at a time: {shown}")
    header = common.model_header(files, backend="cpu", dtype="float32", settings=settings)
    common.write_json(args.json, header | common.native_set("cpu") | {"rows": rows})
    return 0


def together(count: int, model: str, weights: str | None, max_frames: int) -> list[dict[str, Any]]:
    """Return the figures of processes that speak at the same time."""
    words = [sys.executable, "-c", PROCESS, model, weights or "", str(max_frames)]
    how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    how |= {"cwd": Path(__file__).parents[2], "env": common.with_bytecode()}
    with ExitStack() as stack:
        running = [stack.enter_context(subprocess.Popen(words, **how)) for _ in range(count)]
        spoken = [process.stdout.readline() for process in running]
        if not all(spoken):
            raise QwenTTSError("A process ended before it had spoken.")
        for process in running:
            process.stdin.write("\n")
            process.stdin.flush()
        memory = [process.stdout.readline() for process in running]
    return [json.loads(a) | json.loads(b) for a, b in zip(spoken, memory, strict=True)]


def speak(model: str, weights: str | None, max_frames: int) -> None:
    """Load a model, speak twice, print the figures of the second speech, and later the memory."""
    from qwen_megakernel import TTSEngine

    started = time.perf_counter()
    with TTSEngine.from_pretrained(model, backend="cpu", weights=weights, warmup=False) as tts:
        load_s = time.perf_counter() - started
        voice = tts.voices[0] if tts.voices else None
        for seed in (1, 2):
            before = dict(tts.spent_ms)
            stream = tts.stream(TEXT, voice=voice, seed=seed, max_frames=max_frames)
            times = [chunk.t_ms for chunk in stream]
        spent = tts.spent_ms["decode"] - before.get("decode", 0.0)
        found = {"load_s": load_s, "first_chunk_ms": times[0]}
        found |= {"decode_ms_per_frame": spent / len(stream.codes)}
        print(json.dumps(found), flush=True)
        sys.stdin.readline()
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
        sizes = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
        memory = {name: sizes[kind] * 1.024e-3 for kind, name in KINDS.items()}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1.024e-3
        print(json.dumps(memory | {"peak_mb": peak}), flush=True)
