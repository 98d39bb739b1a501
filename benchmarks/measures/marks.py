"""Measure the watermark: false alarms, what it survives, and what it changes.

Speech comes from the engine, espeak-ng and flite. Where the packages are installed, PESQ is
measured, and the watermark of resemble-perth is put through the same formats.
"""

import argparse
import functools
import importlib
import io
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from tqdm import tqdm

from benchmarks import common
from qwen_megakernel.audio import to_float32, to_int16
from qwen_megakernel.cli import options
from qwen_megakernel.marking import MAX_OPERATOR, MarkKey
from qwen_megakernel.server.encoders import AudioFormat
from qwen_megakernel.sound import mark_detector
from qwen_megakernel.sound.mark_detector import find_marks, score, whiten
from qwen_megakernel.sound.watermark import Watermark
from tools.demo_voice import shards
from tools.demo_voice.evaluate import REFERENCES

RATE, PESQ_RATE, TELEPHONE = 24000, 16000, 8000
ESPEAK_VOICES = ("en", "en-us+f3", "en+m3", "de", "fr", "es")
FLITE_VOICES = ("awb", "kal16", "rms", "slt")
SHORT_S, LONG_S = 5, 10
NOISE = 10 ** (-20 / 20)
PERTH_LIMIT = 0.5
MOST_WORDS_LOST = 0.01

Samples = np.ndarray
Change = Callable[[Samples], tuple[Samples, int]]  # of 24 kHz -> samples and their rate


def decoded(response_format: str, samples: Samples, rate: int = RATE, **how: Any) -> Samples:
    """Return samples after a lossy format, at their rate."""
    data = AudioFormat(response_format, rate, **how).file(to_int16(samples))
    if response_format != "aac":
        heard, heard_rate = soundfile.read(io.BytesIO(data), dtype="float32")
        return soxr.resample(heard, heard_rate, rate)
    av = importlib.import_module("av")
    with av.open(io.BytesIO(data)) as container:
        frames = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
    return np.concatenate(frames).astype(np.float32)


def telephone(samples: Samples) -> tuple[Samples, int]:
    """Return samples after G.711, at 8 kHz."""
    narrow = soxr.resample(samples, RATE, TELEPHONE)
    return decoded("wav", narrow, TELEPHONE, encoding="ulaw"), TELEPHONE


def noisy(samples: Samples) -> tuple[Samples, int]:
    """Return samples with white noise 20 dB below them."""
    noise = np.random.default_rng(1).normal(size=len(samples)).astype(np.float32)
    return samples + noise * np.float32(NOISE * np.sqrt(np.square(samples).mean())), RATE


def faster(samples: Samples, speed: float) -> tuple[Samples, int]:
    """Return samples that play at another speed and pitch."""
    return soxr.resample(samples, RATE * speed, RATE), RATE


SHORT: dict[str, Change] = {
    "clean": lambda x: (x, RATE),
    "Opus 32 kbit/s": lambda x: (decoded("opus", x), RATE),
    "MP3 64 kbit/s": lambda x: (decoded("mp3", x), RATE),
    "AAC 64 kbit/s": lambda x: (decoded("aac", x), RATE),
    "G.711, 8 kHz": telephone,
    "resampled to 16 kHz": lambda x: (soxr.resample(x, RATE, 16000), 16000),
    "6 dB louder": lambda x: (to_float32(to_int16(2 * x)), RATE),
    "6 dB quieter": lambda x: (to_float32(to_int16(x / 2)), RATE),
}
LONG: dict[str, Change] = {
    "10 % faster": lambda x: faster(x, 1.1),
    "10 % slower": lambda x: faster(x, 0.9),
    "noise at 20 dB": noisy,
}


@common.takes(
    functools.partial(options.add_model_options, default="demo-voice"),
    common.count("--sentences", 300, "number of unmarked sentences"),
    common.count("--keys", 40, "number of keys that are looked for in each unmarked sentence"),
    common.count("--pieces", 20, "most pieces of each kind of speech and each change"),
    common.count(
        *("--long-pieces", 4, "most pieces of ten seconds of each kind of speech; 0: none"), least=0
    ),
    common.count("--draws", 10_000, "number of random operators"),
)
def marks(args: argparse.Namespace) -> int:
    """Measure and report; return 1 if a limit is missed."""
    rng = np.random.default_rng(7)
    sentences = unmarked_speech(args)
    rows = [false_alarms([*every(sentences), *tones_and_noise()], args, rng)]
    speech = {name: np.concatenate(each) for name, each in sentences.items()}
    key = MarkKey(rng.bytes(32), 0xBEEF)
    marked, changes = {}, []
    for name, samples in speech.items():
        begin = time.thread_time()
        watermark = Watermark(key, RATE)
        pieces = np.split(samples, range(RATE // 12, len(samples), RATE // 12))
        marked[name] = np.concatenate([watermark.push(piece) for piece in pieces])
        rtf = (time.thread_time() - begin) * RATE / len(samples)
        changes.append({"speech": name, "rtf": rtf} | quality(samples, marked[name], args.pieces))
    for seconds, ways, most in ((SHORT_S, SHORT, args.pieces), (LONG_S, LONG, args.long_pieces)):
        for way, change in ways.items():
            rows += [
                {"what": way, "speech": name, "seconds": seconds}
                | found_share(samples, change, seconds, most, key)
                for name, samples in tqdm(marked.items(), desc=way, disable=args.quiet)
                if most
            ]
    rows.append(confusions(np.concatenate([*speech.values()]), args, rng))
    perth = perth_rows(speech, args)
    for row in (*rows, *changes, *perth):
        print(
            "  ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()
            )
        )
    facts = {"model": args.model, "rows": rows, "changes": changes, "perth": perth}
    common.write_json(args.json, common.header() | facts)
    return common.report_missed(missed(rows, changes))


@common.takes(
    functools.partial(options.add_model_options, default="demo-voice"),
    common.count("--sentences", 300, "number of sentences"),
)
def mark_words(args: argparse.Namespace) -> int:
    """Measure and report; return 1 if marking costs a recogniser a hundredth of the words."""
    from tools.demo_voice.recogniser import Recogniser, word_error_rate

    sentences = [sentence.text for sentence in shards.read(REFERENCES)]
    texts = [sentences[index % len(sentences)] for index in range(args.sentences)]
    with options.engine_from_args(args) as tts:
        said = [tts.synthesize(text, seed=seed).audio for seed, text in enumerate(texts)]
        found = common.engine_header(tts)
    key, recogniser = MarkKey(bytes(range(32)), 0xBEEF), Recogniser()
    sounds = {"unmarked": said, "marked": [Watermark(key, RATE).push(each) for each in said]}
    errors = {
        name: word_error_rate(texts, [recogniser.hear(each, RATE) for each in tqdm(heard, name)])
        for name, heard in sounds.items()
    }
    print(", ".join(f"{name}: {rate:.2%} of the words are wrong" for name, rate in errors.items()))
    common.write_json(args.json, found | {"sentences": len(texts), "word_error_rate": errors})
    lost = errors["marked"] - errors["unmarked"]
    return common.report_missed([f"marking costs {lost:.2%}"] if lost >= MOST_WORDS_LOST else [])


def missed(rows: list[dict[str, Any]], changes: list[dict[str, Any]]) -> list[str]:
    """Return the limits of docs/marking.md that were missed."""
    wrong = []
    for row in rows:
        least = {SHORT_S: 0.95, LONG_S: 0.9}.get(row.get("seconds", 0), 0)
        if row.get("found", 1) < least:
            wrong.append(f"{row['what']}, {row['speech']}: found in {row['found']:.0%}")
        if row.get("false_alarms") or row.get("confused"):
            wrong.append(f"{row['what']}: {row}")
    for row in changes:
        for name, least in (("signal_to_mark_db", 24), ("pesq", 4.2)):
            if row.get(name, least) < least:
                wrong.append(f"{row['speech']}: {name} is {row[name]:.2f}, below {least}")
    return wrong


def unmarked_speech(args: argparse.Namespace) -> dict[str, list[Samples]]:
    """Return --sentences sentences, a third of each kind of speech."""
    texts = [sentence.text for sentence in shards.read(REFERENCES)]
    num_each = -(-args.sentences // 3)
    texts = [texts[index % len(texts)] for index in range(num_each)]
    with options.engine_from_args(args) as tts:
        own = [tts.synthesize(text, seed=seed).audio for seed, text in enumerate(texts)]
    spoken: dict[str, list[Samples]] = {str(args.model): own, "espeak-ng": [], "flite": []}
    with tempfile.TemporaryDirectory() as folder:
        wav = str(Path(folder, "a.wav"))
        for index, text in enumerate(texts):
            voice = ESPEAK_VOICES[index % len(ESPEAK_VOICES)]
            subprocess.run(["espeak-ng", "-v", voice, "-w", wav, text], check=True)
            spoken["espeak-ng"].append(_read(wav))
            voice = FLITE_VOICES[index % len(FLITE_VOICES)]
            subprocess.run(["flite", "-voice", voice, "-t", text, "-o", wav], check=True)
            spoken["flite"].append(_read(wav))
    return spoken


def _read(path: str) -> Samples:
    samples, rate = soundfile.read(path, dtype="float32")
    return soxr.resample(samples, rate, RATE)


def every(sentences: dict[str, list[Samples]]) -> Iterator[Samples]:
    """Yield the sentences of all kinds."""
    for each in sentences.values():
        yield from each


def tones_and_noise() -> Iterator[Samples]:
    """Yield five seconds of chords, whose notes change every half second, and of noise."""
    seconds = np.arange(SHORT_S * RATE) / RATE
    for seed in range(10):
        rng = np.random.default_rng(seed)
        notes = 220 * 2 ** (rng.integers(0, 25, (3, 2 * SHORT_S)) / 12)
        hertz = np.repeat(notes, RATE // 2, axis=1)
        yield (np.sin(2 * np.pi * hertz * seconds).sum(axis=0) / 4).astype(np.float32)
        yield (rng.normal(size=len(seconds)) / 10).astype(np.float32)


def false_alarms(
    unmarked: list[Samples], args: argparse.Namespace, rng: np.random.Generator
) -> dict[str, Any]:
    """Look for many keys in unmarked samples."""
    keys = [rng.bytes(32) for _ in range(args.keys)]
    values = []
    for samples in tqdm(unmarked, desc="unmarked", disable=args.quiet):
        white = whiten(soxr.resample(samples, RATE, mark_detector.RATE))
        values += [score(white, key).value for key in keys]
    num_trials = mark_detector.RATE * (MAX_OPERATOR + 1)
    chances = [mark_detector.false_alarm(value, num_trials) for value in values]
    return {
        "what": "unmarked",
        "files": len(unmarked),
        "searches": len(values),
        "false_alarms": sum(chance <= mark_detector.MOST_FALSE_ALARMS for chance in chances),
        "highest_score": max(values),
        "lowest_chance": min(chances),
    }


def cut(samples: Samples, seconds: int, most: int) -> list[Samples]:
    """Return pieces that begin at odd places."""
    size = seconds * RATE
    begins = np.linspace(1234, len(samples) - size, most).astype(int)
    return [samples[begin : begin + size] for begin in begins if begin >= 0]


def found_share(
    samples: Samples, change: Change, seconds: int, most: int, key: MarkKey
) -> dict[str, Any]:
    """Return in how many changed pieces the mark is found, with the right operator."""
    pieces = cut(samples, seconds, most)
    searches = change in (LONG["10 % faster"], LONG["10 % slower"])
    operators = [
        [mark.operator for mark in find_marks(*change(piece), key.secret, search_speeds=searches)]
        for piece in pieces
    ]
    return {
        "pieces": len(pieces),
        "found": sum(map(bool, operators)) / len(pieces),
        "operator_known": sum(key.operator in each for each in operators) / len(pieces),
        "wrong_operator": sum(bool({*each} - {key.operator, None}) for each in operators),
    }


def confusions(
    samples: Samples, args: argparse.Namespace, rng: np.random.Generator
) -> dict[str, Any]:
    """Mark pieces with random operators, and add noise until the mark is barely found."""
    num_found = num_clear = num_confused = 0
    secret = rng.bytes(32)
    size = SHORT_S * RATE
    for _ in tqdm(range(args.draws), desc="operators", disable=args.quiet):
        key = MarkKey(secret, int(rng.integers(MAX_OPERATOR + 1)))
        begin = int(rng.integers(len(samples) - size))
        heard, _ = noisy(Watermark(key, RATE).push(samples[begin : begin + size]))
        result = score(whiten(soxr.resample(heard, RATE, mark_detector.RATE)), secret)
        num_trials = mark_detector.RATE * (MAX_OPERATOR + 1)
        chance = mark_detector.false_alarm(result.value, num_trials)
        if chance <= mark_detector.MOST_FALSE_ALARMS:
            num_found += 1
            num_clear += result.gap >= mark_detector.CLEAR_GAP
            num_confused += (
                result.gap >= mark_detector.CLEAR_GAP and result.operator != key.operator
            )
    return {
        "what": "operators, 5 s with noise at 20 dB",
        "draws": args.draws,
        "marks_found": num_found,
        "operators_named": num_clear,
        "confused": num_confused,
    }


def quality(samples: Samples, marked: Samples, most: int) -> dict[str, float]:
    """Return signal to mark, and PESQ where it is installed."""
    power = np.square(samples, dtype=np.float64).sum()
    ratio = power / np.square(marked - samples, dtype=np.float64).sum()
    figures = {"signal_to_mark_db": float(10 * np.log10(ratio))}
    try:
        pesq = importlib.import_module("pesq").pesq
    except ImportError:
        return figures
    pairs = zip(cut(samples, SHORT_S, most), cut(marked, SHORT_S, most), strict=True)
    scores = [
        pesq(PESQ_RATE, *(soxr.resample(each, RATE, PESQ_RATE) for each in pair), "wb")
        for pair in pairs
    ]
    return figures | {"pesq": float(np.mean(scores)), "lowest_pesq": min(scores)}


def perth_rows(speech: dict[str, Samples], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the figures of resemble-perth for the same pieces; [] if it is not installed."""
    try:
        perth = importlib.import_module("perth").PerthImplicitWatermarker()
    except (ImportError, AttributeError, TypeError):
        return []
    rows = []
    for name, samples in speech.items():
        before = cut(samples, SHORT_S, args.long_pieces)
        unmarked = [float(perth.get_watermark(piece, sample_rate=RATE)) for piece in before]
        marked = [perth.apply_watermark(piece, sample_rate=RATE) for piece in before]
        ways = SHORT | LONG | {"5 % faster": lambda x: faster(x, 1.05)}
        for way, change in tqdm(ways.items(), desc=f"perth {name}", disable=args.quiet):
            heard = [change(np.asarray(piece, np.float32)) for piece in marked]
            scores = [float(perth.get_watermark(each, sample_rate=rate)) for each, rate in heard]
            rows.append(
                {
                    "what": way,
                    "speech": name,
                    "pieces": len(scores),
                    "found": sum(value > PERTH_LIMIT for value in scores) / len(scores),
                    "lowest_score": min(scores),
                    "highest_unmarked": max(unmarked),
                }
            )
    return rows
