"""Measure the time for reading numbers and signs as words, and how much it delays the first sound.

Each text is cut to 300 characters. `normalize` off and on are compared alternately, for a text
without expressions, so that the load of the machine is the same for both.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from benchmarks import common
from qwen_megakernel import TTSEngine
from qwen_megakernel.cli import options
from qwen_megakernel.text.reading.lexicon import MAX_ENTRIES, Entry, Lexicon
from qwen_megakernel.text.reading.reader import Reading

CHARS = 300
DENSE = (
    "On March 5, 2026 at 3:05 pm Dr. Smith paid $12.50 for 1,234 apples (5 kg) at 12 Main St., "
    "and **everyone** in New York said it was fair; see https://example.com/docs. He began in 1984 "
    "with 3/4 of that, i.e. $1.2 million, and the 2nd version, v2.0.1, came on Nov. 23. It rained "
    "10% of the time, at -5 °C, from 9:00 to 17:30."
)[:CHARS]
NUMBERS = " ".join(str(7919 * number % 100_000) for number in range(1, 99))[:CHARS]
PLAIN = ("Your table for two is ready. We will meet you at the hotel on Friday. " * 5)[:CHARS]
METRICS = {
    "expressions_ms": "300 characters full of dates, times, money and Markdown",
    "numbers_ms": "300 characters of numbers alone",
    "plain_ms": "300 characters without an expression",
    "by_character_ms": "the first of these texts, one character at a time",
    "lexicon_ms": f"the same, whole, with a lexicon of {MAX_ENTRIES} entries",
    "first_chunk_off_ms": "first samples of a speech with normalize off",
    "first_chunk_on_ms": "first samples of the same text, without an expression, with normalize on",
}
LIMITS: dict[str, Any] = {
    **{f"{name}_ms": ("p50", 5.0) for name in ("expressions", "numbers", "plain", "lexicon")}
}


@common.takes(
    options.add_model_options,
    common.count("--runs", 50, "number of runs whose figures count"),
    common.count("--warmup", 5, "number of runs before them, whose figures do not count", least=0),
)
def reading(args: argparse.Namespace) -> int:
    """Measure and report; return 1 if a limit is missed."""
    lexicon = Lexicon(Entry(f"word{number} x", "y") for number in range(MAX_ENTRIES))
    made = Reading()

    def read(text: str, step: int = CHARS, with_lexicon: Lexicon | None = None) -> None:
        reader = made.reader("on", "english", with_lexicon)
        for begin in range(0, len(text), step):
            reader.feed(text[begin : begin + step])
        reader.end()

    work: dict[str, Callable[[], Any]] = {
        "expressions_ms": lambda: read(DENSE),
        "numbers_ms": lambda: read(NUMBERS),
        "plain_ms": lambda: read(PLAIN),
        "by_character_ms": lambda: read(DENSE, step=1),
        "lexicon_ms": lambda: read(DENSE, with_lexicon=lexicon),
    }
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    with options.engine_from_args(args) as tts:
        for index in range(-args.warmup, args.runs):
            figures = {name: _milliseconds(each) for name, each in work.items()}
            for normalize in ("off", "on"):
                figures[f"first_chunk_{normalize}_ms"] = _first_chunk(tts, normalize)
            if index >= 0:
                for name, figure in figures.items():
                    values[name].append(figure)
    return common.hold_against(LIMITS, args, ("model", "runs", "warmup"), METRICS, values)


def _milliseconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - begin)


def _first_chunk(tts: TTSEngine, normalize: str) -> float:
    begin = time.perf_counter()
    with tts.stream(PLAIN, normalize=normalize, seed=1, max_frames=2) as stream:
        next(stream)
        first = 1000 * (time.perf_counter() - begin)
        list(stream)
    return first
