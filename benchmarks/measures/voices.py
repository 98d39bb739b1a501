"""Measure the time for cloning: a recording's x-vector, its codes, and a cached recording.

The default model has the released shapes and random weights; only the Base checkpoint's encoders
run, on the CPU. Processor time is reported beside wall time, which other work on the machine
stretches.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks import common, option_types
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.cli import options
from qwen_megakernel.cloning.voice_library import VoiceLibrary

RATE = 24000
TRANSCRIPT_WORDS_PER_SECOND = 3

METRICS = {
    "x_vector_ms": ("ms", "recording to x-vector"),
    "x_vector_cpu_ms": ("ms", "the same, processor time of all threads"),
    "codec_ms": ("ms", "recording to codes"),
    "codec_cpu_ms": ("ms", "the same, processor time of all threads"),
    "cached_voice_ms": ("ms", "an in-context voice whose recording is cached"),
}


@common.takes(
    common.option("--model", "name or folder of the model", str, "random-0.6b-base"),
    common.option("--seconds", "length of the recording in seconds", option_types.positive, 10.0),
    common.count("--threads", 2, "number of PyTorch threads"),
    common.count("--runs", 5, "number of runs whose figures count"),
    common.count("--warmup", 2, "number of runs before them, whose figures do not count", least=0),
    options.add_verbosity,
)
def voices(args: argparse.Namespace) -> int:
    """Measure and report."""
    torch.set_num_threads(args.threads)
    loaded = loading.load(loading.resolve(args.model))
    library = VoiceLibrary(loaded)
    for index in range(args.warmup):
        run_once(library, args.seconds, args.runs + index)
    runs = [run_once(library, args.seconds, index) for index in range(args.runs)]
    found = common.model_header(loaded.files, threads=args.threads) | {
        "settings": {
            "seconds": args.seconds,
            "warmup": args.warmup,
            # On a busy machine, threads that wait actively take the time that they wait for.
            "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY"),
        },
        "peak_memory_mb": common.peak_memory_mb(),
        "summary": {name: common.spread([run[name] for run in runs]) for name in METRICS},
        "runs": runs,
    }
    for name, (unit, meaning) in METRICS.items():
        best = min(run[name] for run in runs)
        figures = f"{found['summary'][name]['p50']:9.2f}  best {best:9.2f} {unit}"
        print(f"{name:18}{figures}  {meaning}")
    common.write_json(args.json, found)
    return 0


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the milliseconds of wall time, and of processor time, that `work` takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)


def run_once(voices: VoiceLibrary, seconds: float, index: int) -> dict[str, float]:
    """Clone a voice from a new recording, then create the same voice again."""
    generator = np.random.default_rng(index)
    samples = 0.1 * generator.standard_normal(round(seconds * RATE)).astype(np.float32)
    text = "word " * round(TRANSCRIPT_WORDS_PER_SECOND * seconds)
    x_vector = timed(lambda: voices.create(samples, rate=RATE))
    codec = timed(lambda: voices.encode(samples, RATE))
    voices.create(samples, text, rate=RATE)
    hits = voices.cache.hits
    cached = timed(lambda: voices.resolve(voices.create(samples, text, rate=RATE)))
    assert voices.cache.hits == hits + 1
    return {
        "x_vector_ms": x_vector[0],
        "x_vector_cpu_ms": x_vector[1],
        "codec_ms": codec[0],
        "codec_cpu_ms": codec[1],
        "cached_voice_ms": cached[0],
    }
