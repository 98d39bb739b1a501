"""Measure the CPU time of each change of the sound, for a second of changed speech.

A speech passes each chain in the engine's longest chunks, as a reader's thread takes them.
"""

import argparse
import time
from typing import Any

import numpy as np

from benchmarks import common
from qwen_megakernel.cli import options
from qwen_megakernel.sound.chain import finish, new_chain, push
from qwen_megakernel.speech_options import SoundOptions

TEXT = "Your table for two is ready. We will meet you at the hotel on Friday."
CHUNK_FRAMES = 10
STEPS: dict[str, tuple[SoundOptions, str]] = {
    "slow_ms": (SoundOptions(speed=0.5), "speed 0.5"),
    "fast_ms": (SoundOptions(speed=1.25), "speed 1.25"),
    "twice_ms": (SoundOptions(speed=2), "speed 2"),
    "telephone_ms": (SoundOptions(sample_rate=8000), "sample_rate 8000"),
    "studio_ms": (SoundOptions(sample_rate=48000), "sample_rate 48000"),
    "loud_ms": (SoundOptions(volume=12), "volume 12 dB, which the limiter turns down"),
    "edges_ms": (
        SoundOptions(leading_silence=60, trailing_silence=200),
        "silence at the edges of 60 and 200 ms at most",
    ),
}
METRICS = {name: meaning for name, (_, meaning) in STEPS.items()}
LIMITS: dict[str, Any] = {
    **{name: ("p50", 15.0) for name in ("slow_ms", "fast_ms", "twice_ms")},
    **{name: ("p50", 2.0) for name in ("telephone_ms", "studio_ms")},
}


@common.takes(
    options.add_model_options,
    common.count("--runs", 30, "number of runs whose figures count"),
    common.count("--warmup", 3, "number of runs before them, whose figures do not count", least=0),
)
def sound(args: argparse.Namespace) -> int:
    """Measure and report; return 1 if a limit is missed."""
    with options.engine_from_args(args) as tts:
        speech, rate = tts.synthesize(TEXT, seed=1).audio, tts.sample_rate
        size = round(CHUNK_FRAMES * tts.seconds_per_frame * rate)
    pieces = np.split(speech, range(size, len(speech), size))
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    for index in range(-args.warmup, args.runs):
        for name, (how, _) in STEPS.items():
            figure = _milliseconds(how, pieces, rate)
            if index >= 0:
                values[name].append(figure)
    return common.hold_against(LIMITS, args, ("model", "runs", "warmup"), METRICS, values)


def _milliseconds(how: SoundOptions, pieces: list[np.ndarray], rate: int) -> float:
    """Return the CPU time of this thread for a second of changed speech."""
    chain = new_chain(how, rate)
    assert chain
    begin = time.thread_time()
    num_samples = sum(len(push(chain, piece)) for piece in pieces) + len(finish(chain))
    spent = time.thread_time() - begin
    return 1000 * spent * (how.sample_rate or rate) / num_samples
