"""Measure how late the second sentence of a conversation is heard if it continues the first one.

The listener has a second of the first sentence left to hear when all of it has arrived. The second
sentence is there by then, or it comes while the rest is heard. In that second, the words of the
first sentence are found, and the vocoder runs over its frames; then comes the prompt, of which what
depends on the second sentence is new. Runs with and without continuity alternate, no two of them
say the same, and the very first one counts, too.
"""

import argparse
import functools
import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import common
from qwen_megakernel import TTSEngine, Voice
from qwen_megakernel.cli import options
from qwen_megakernel.engine.conversation import Conversation

FIRST = "Your table for two is ready, and the waiter will take you there."
WORDS = "we will meet you and all of your friends at the hotel on Friday"  # of the second one
LEFT_MS = 1000  # what the listener has not heard of the first sentence when all of it has arrived
COMES_MS = 700  # after that, when the second sentence comes later
SECONDS = (2.5, 8.0)  # of the first sentence; random weights may say nothing, or never end
METRICS = {
    "at_once_off_ms": "from the last chunk of the first sentence to the first one of the second",
    "at_once_context_ms": "the same, if the second sentence continues the first one",
    "heard_later_ms": f"by which it is heard later then, with {LEFT_MS} ms of the first left",
    "off_ms": f"from a second sentence that comes {COMES_MS} ms later to its first chunk",
    "context_ms": "the same, if it continues the first one",
    "later_ms": "by which its first chunk comes later then",
}
LIMITS: dict[str, Any] = {"heard_later_ms": 10.0}


@common.takes(
    functools.partial(options.add_model_options, default="random-0.6b-base"),
    common.count("--runs", 10, "number of runs of each kind"),
)
def continuity(args: argparse.Namespace) -> int:
    """Measure and report; return 1 if a limit is missed."""
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    with options.engine_from_args(args) as tts:
        assert isinstance(tts, TTSEngine)
        width = tts.config.talker.stack.hidden_size
        x_vector = np.random.default_rng(0).standard_normal(width).astype(np.float32)
        how: dict[str, Any] = {"voice": Voice("voice", x_vector)}
        seeds, order = _seeds_that_end(tts, how), random.Random(0)
        for _ in range(args.runs):
            at_once, later = (
                _both_ways(tts, how | {"seed": next(seeds)}, _mixed(order), comes)
                for comes in (0, COMES_MS)
            )
            heard = [max(each - LEFT_MS, 0) for each in at_once]
            figures = *at_once, heard[1] - heard[0], *later, later[1] - later[0]
            for name, figure in zip(METRICS, figures, strict=True):
                values[name].append(figure)
        facts = common.engine_header(tts) | {"weights": tts.weights}
    return common.hold_against(LIMITS, args, ("model", "runs"), METRICS, values, facts)


def _seeds_that_end(tts: TTSEngine, how: dict[str, Any]) -> Iterator[int]:
    """Yield the seeds with which the first sentence has an end, and a usual length."""
    least, most = (round(seconds / tts.seconds_per_frame) for seconds in SECONDS)
    for seed in itertools.count():
        said = tts.synthesize(FIRST, **how, seed=seed, max_frames=most)
        if said.finish_reason == "eos" and len(said.codes) >= least:
            yield seed


def _mixed(order: random.Random) -> str:
    words = WORDS.split()
    return " ".join(order.sample(words, len(words))).capitalize() + "."


def _both_ways(tts: TTSEngine, how: dict[str, Any], words: str, comes_ms: float) -> list[float]:
    """Return `_first_chunk` without and with continuity."""
    return [_first_chunk(tts, how, words, talk, comes_ms) for talk in (None, Conversation())]


def _first_chunk(
    tts: TTSEngine, how: dict[str, Any], words: str, talk: Conversation | None, comes_ms: float
) -> float:
    """Return the milliseconds to the first chunk of the second sentence.

    Args:
        words: of the second sentence.
        talk: None: without continuity.
        comes_ms: when the second sentence comes, from where the milliseconds count: after the last
            chunk of the first one. 0: both sentences are given at once.
    """
    how = how | {"continuity": "context" if talk else "off", "conversation": talk}
    second = None
    with tts.stream(FIRST, **how) as first:
        if not comes_ms:
            second = tts.stream(words, **how, max_frames=2)
        for _ in first:
            begin = time.perf_counter()
        if second is None:
            begin += comes_ms / 1000
            time.sleep(max(0, begin - time.perf_counter()))
            second = tts.stream(words, **how, max_frames=2)
        with second:
            next(second)
            return 1000 * (time.perf_counter() - begin)
