"""Measure how a voice changes over minutes of speech: its rate, pitch, loudness and identity.

A few passages are spoken again and again, each by a request of its own. Each is compared with the
first time that it was spoken, because texts differ in their rate and melody. With --url, the
passages are requests to a server with OpenAI's endpoint; otherwise the engine speaks them. Nothing
here needs another model, except that a Base checkpoint's own speaker encoder compares the voice's
identity.
"""

import argparse
import functools
import io
import itertools
import json
import math
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import soundfile
from tqdm import tqdm

from benchmarks import common
from qwen_megakernel.audio import to_int16
from qwen_megakernel.cli import options, parsing
from qwen_megakernel.engine.conversation import Conversation
from qwen_megakernel.engine.drift_guard import BAND, MIN_SPEECH_S, Figures
from qwen_megakernel.errors import SetupError
from tools.demo_voice import shards
from tools.demo_voice.evaluate import REFERENCES

PASSAGES = (
    "The train leaves at nine in the morning, and it takes three hours to reach the coast. There "
    "is a small cafe on board where you can buy coffee, tea and sandwiches on the way.",
    "Most people bring a book with them, or they look out of the window at the fields. In summer "
    "the sun is bright and the grass is green, and in winter there is often snow on the hills.",
    "When you arrive, turn left at the station and walk along the river for ten minutes. You will "
    "see an old stone bridge, a market square, and behind it the hotel with the red door.",
    "Please tell the woman at the desk that you have a table for two at seven in the evening. She "
    "will give you the key, and she can also tell you which of the boats goes to the island.",
)
MIN_S = 0.5
# The limits over three minutes of a steady voice.
LIMITS = {"rate_percent": 3.0, "pitch_semitones": 0.5, "loudness_db": 1.0}

Speech = tuple[np.ndarray, int]  # [num_samples] float32, and their rate
Speak = Callable[[str], Speech]


def drifts(passages: list[Figures]) -> list[dict[str, float]]:
    """Return for each passage how far it is from the first time that it was spoken."""
    return [
        {"speech_s": each.speech_s, "pitch_hz": each.pitch_hz}
        | each.changes_from(passages[index % len(PASSAGES)])
        for index, each in enumerate(passages)
    ]


def slope(rows: list[dict[str, float]], name: str) -> float:
    """Return the change of a figure from the beginning to the end, by a straight line."""
    values = np.array([row[name] for row in rows])
    known = np.isfinite(values)
    if known.sum() < 2:
        return 0.0
    place = np.arange(len(values))
    return float(np.polyfit(place[known], values[known], 1)[0] * (len(values) - 1))


@contextmanager
def speaker(args: argparse.Namespace) -> Iterator[tuple[Speak, Any, dict[str, Any]]]:
    """Yield what speaks a passage, the engine (None: a server does), and facts of a result."""
    if args.url:
        facts = common.header() | {"url": args.url, "model": args.request.get("model", "tts-1")}
        yield functools.partial(_request, args, uuid.uuid4().hex), None, facts
        return
    with options.engine_from_args(args) as tts:
        talk = Conversation()
        speech, seeds = options.speech_options(args, tts), itertools.count(args.seed or 0)
        if speech.get("continuity") == "context":
            speech["conversation"] = talk

        def speak(text: str) -> Speech:
            spoken = tts.synthesize(text, **speech | {"seed": next(seeds)})
            return spoken.audio, spoken.sample_rate

        yield speak, tts, common.engine_header(tts)


def _request(args: argparse.Namespace, session: str, text: str) -> Speech:
    body = {"model": "tts-1", "input": text, "response_format": "wav"} | args.request
    if args.voice:
        body["voice"] = args.voice
    if args.continuity == "context":
        body |= {"continuity": "context", "session": session}
    request = urllib.request.Request(
        f"{args.url.rstrip('/')}/v1/audio/speech",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"} | dict(args.header),
    )
    try:
        with urllib.request.urlopen(request, timeout=args.timeout) as answer:
            data = answer.read()
    except OSError as error:
        said = error.read().decode(errors="replace")[:300] if hasattr(error, "read") else ""
        raise SetupError(f"{args.url} did not speak: {error}.", said) from error
    samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    return samples.mean(1), rate


def _header(text: str) -> tuple[str, str]:
    name, _, value = text.partition(":")
    return name.strip(), value.strip()


@common.takes(
    functools.partial(options.add_model_options, default="demo-voice"),
    options.add_speech_options,
    common.count("--seconds", 180, "seconds of speech to measure"),
    common.option("--url", "address of a server with OpenAI's endpoint, without /v1"),
    common.option(
        "--request JSON",
        'further fields of the body of a request, such as {"model": "tts-1"}',
        json.loads,
        {},
    ),
    common.option(
        "--header NAME:VALUE",
        "header of a request, such as one with an API key",
        list,
        type=_header,
    ),
    common.option("--timeout", "seconds of a request", parsing.at_least(1), 600),
)
def drift(args: argparse.Namespace) -> int:
    """Measure and report; return 1 if the voice of our engine drifts beyond a limit."""
    passages: list[Figures] = []
    seconds = 0.0
    with (
        speaker(args) as (speak, tts, facts),
        tqdm(total=args.seconds, unit="s", leave=False, disable=None) as bar,
    ):
        texts = itertools.cycle(PASSAGES)
        while seconds < args.seconds:
            text = next(texts)
            samples, rate = speak(text)
            if len(samples) < MIN_S * rate:
                raise SetupError(f"A passage has {len(samples) / rate:.2f} s of speech.")
            passages.append(Figures.of(text, to_int16(samples), rate, tts and tts._identify))
            seconds += len(samples) / rate
            bar.update(len(samples) / rate)
    rows = drifts(passages)
    columns = list(rows[0])
    print("passage  " + "  ".join(columns))
    for number, row in enumerate(rows, 1):
        cells = (f"{row.get(name, math.nan):{len(name)}.2f}" for name in columns)
        print(f"{number:7}  " + "  ".join(cells))
    changes = {name: slope(rows, name) for name in LIMITS}
    largest = {name: max(abs(row[name]) for row in rows) for name in LIMITS}
    print("from beginning to end: " + ", ".join(f"{n} {v:+.2f}" for n, v in changes.items()))
    settings = {"seconds": args.seconds, "continuity": args.continuity or "off"}
    found = {"settings": settings, "changes": changes, "largest": largest, "limits": LIMITS}
    common.write_json(args.json, facts | found | {"rows": rows})
    return common.report_missed(
        [
            f"{name} changes by {abs(changes[name]):.2f}, which is above {most:g}"
            for name, most in LIMITS.items()
            if abs(changes[name]) > most
        ]
    )


@common.takes(
    functools.partial(options.add_model_options, default="demo-voice"),
    common.count("--texts", 200, "number of texts, each of which is compared with every other one"),
)
def drift_band(args: argparse.Namespace) -> int:
    """Measure and report how often two texts of a steady voice look like a drift to the guard."""
    sentences = itertools.cycle(shards.read(REFERENCES))
    said: list[Figures] = []
    with options.engine_from_args(args) as tts, tqdm(total=args.texts, disable=None) as bar:
        facts = common.engine_header(tts)
        while len(said) < args.texts:
            text = next(sentences).text
            speech = to_int16(tts.synthesize(text, seed=len(said)).audio)
            figures = Figures.of(text, speech, tts.sample_rate, tts._identify)
            if figures.speech_s >= MIN_SPEECH_S:
                said.append(figures)
                bar.update()
    changes = [b.changes_from(a) for a, b in itertools.permutations(said, 2)]
    rows = []
    for name in changes[0]:
        values, (low, high) = np.array([each[name] for each in changes]), BAND[name]
        # Of pairs; each is here in both directions, in which a figure rises and falls.
        ends = np.nanquantile(values, [0.0005, 0.9995]).tolist()
        outside = float(np.mean((values < low) | (values > high)))
        rows.append({"figure": name, "one_in_1000_beyond": ends, "share_outside": outside})
        print(f"{name}: one of 1000 pairs is beyond {ends[0]:.2f} .. {ends[1]:.2f}, ", end="")
        print(f"{100 * outside:.2f} % are outside {low} .. {high}")
    found = {"settings": {"texts": args.texts}, "pairs": len(changes) // 2, "rows": rows}
    common.write_json(args.json, facts | found)
    return 0
