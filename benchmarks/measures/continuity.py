"""Measure how late the second sentence of a conversation is heard if it continues the first one.

An agent gives two sentences at once. The listener plays the first one so that a second of it is
left when its last chunk arrives; by then the words of the first sentence must have been found, and
the prompt with them computed. Runs with and without continuity alternate, and the very first one
counts, too.
"""

import argparse
import functools
import itertools
import time
from typing import Any

import numpy as np

from benchmarks import common
from qwen_megakernel import TTSEngine, Voice
from qwen_megakernel.cli import options
from qwen_megakernel.engine.conversation import Conversation

FIRST = "Your table for two is ready, and the waiter will take you there."
SECOND = "We will meet you at the hotel on Friday."
LEFT_MS = 1000  # what the listener has not heard of the first sentence when all of it has arrived
SECONDS = (2.5, 8.0)  # of the first sentence; random weights may say nothing, or never end
METRICS = {
    "off_ms": "from the last chunk of the first sentence to the first one of the second",
    "context_ms": "the same, if the second sentence continues the first one",
    "later_ms": f"by which the second is heard later then, with {LEFT_MS} ms of the first left",
}
LIMITS = {"later_ms": 10.0}


@common.takes(
    functools.partial(options.add_model_options, default="random-0.6b-base"),
    common.count("--runs", 10, "number of runs of each kind"),
)
def continuity(args: argparse.Namespace) -> int:
    """Measure and report; return 1 if a limit is missed."""
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    with options.engine_from_args(args) as tts:
        width = tts.config.talker.stack.hidden_size
        x_vector = np.random.default_rng(0).standard_normal(width).astype(np.float32)
        how: dict[str, Any] = {"voice": Voice("voice", x_vector)}
        how["seed"] = _seed_that_ends(tts, how)
        for _ in range(args.runs):
            off, context = (_between(tts, how, talk) for talk in (None, Conversation()))
            later = max(context - LEFT_MS, 0) - max(off - LEFT_MS, 0)
            for name, figure in zip(METRICS, (off, context, later), strict=True):
                values[name].append(figure)
        facts = common.engine_header(tts) | {"weights": tts.weights}
    return common.hold_against(LIMITS, args, ("model", "runs"), METRICS, values, facts)


def _seed_that_ends(tts: TTSEngine, how: dict[str, Any]) -> int:
    """Return the first seed with which the first sentence has an end, and a usual length."""
    least, most = (round(seconds / tts.seconds_per_frame) for seconds in SECONDS)
    for seed in itertools.count():
        said = tts.synthesize(FIRST, **how, seed=seed, max_frames=most)
        if said.finish_reason == "eos" and len(said.codes) >= least:
            return seed
    raise AssertionError


def _between(tts: TTSEngine, how: dict[str, Any], talk: Conversation | None) -> float:
    """Return the milliseconds between the two sentences, as their reader receives them."""
    how = how | {"continuity": "context" if talk else "off", "conversation": talk}
    with tts.stream(FIRST, **how) as first, tts.stream(SECOND, **how, max_frames=2) as second:
        for _ in first:
            ended = time.perf_counter()
        next(second)
        return 1000 * (time.perf_counter() - ended)
