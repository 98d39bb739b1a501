"""Measure how exactly the times of words are found, against the demonstration voice's teacher.

The voice learned flite's speech, in frames that each belong to a known word. Two kinds of speech of
its test sentences have exact times: the reference's codes, decoded; and of speech that was drawn,
the words that begin with about the same frame as the reference's. A word begins at its first frame.

The error is that of a word's beginning. "By letters" divides the time after the first silence in
proportion to the lengths of the words, without looking at the samples.
"""

import argparse
import functools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from tqdm import tqdm

from benchmarks import common
from benchmarks.letters import count_letters
from benchmarks.playback import leading_silence_ms
from qwen_megakernel.audio import to_int16
from qwen_megakernel.cli import options
from qwen_megakernel.engine.speech_engine import SpeechEngine
from qwen_megakernel.errors import SetupError
from qwen_megakernel.records import AudioChunk
from qwen_megakernel.speech_options import MAX_SILENCE
from qwen_megakernel.text.parts import TextPart
from qwen_megakernel.text.reading.spoken import Piece, SpokenText
from qwen_megakernel.timing.speech_timer import SpeechTimer
from qwen_megakernel.timing.words import spoken_spans, word_spans
from tools.demo_voice import shards
from tools.demo_voice.alignment import word_onsets
from tools.demo_voice.codebooks import Codebooks
from tools.demo_voice.evaluate import REFERENCES
from tools.demo_voice.flite import Flite
from tools.demo_voice.shards import SILENCE, Utterance

REFERENCE, DRAWN = "reference codes", "drawn"
METHODS = ("by_letters_ms", "found_ms")
POSITIONS = {"first": range(1), "2 to 4": range(1, 4), "5 to 8": range(4, 8)}
LAST_POSITION, EVERYWHERE = "9 and later", "all"
LIMITS = {"p50": 80.0, "p95": 250.0}  # limits of `found_ms`, in milliseconds


@dataclass(frozen=True, slots=True)
class Error:
    """The errors of a word's beginning."""

    index: int  # the word's place in its sentence
    by_letters_ms: float
    found_ms: float


@common.takes(
    functools.partial(options.add_model_options, default="demo-voice"),
    common.count("--every", 1, "measure only every n-th sentence (default: all)"),
)
def word_times(args: argparse.Namespace) -> int:
    """Measure and report; return 1 if a limit is missed."""
    codebooks = Codebooks.load()
    errors: dict[str, list[Error]] = {REFERENCE: [], DRAWN: []}
    num_sentences = dict.fromkeys(errors, 0)
    with options.engine_from_args(args) as tts:
        sentences = shards.read(REFERENCES)
        numbered = list(enumerate(sentences))[:: args.every]
        for seed, sentence in tqdm(numbered, desc="sentences", disable=args.quiet):
            places = word_starts(sentence)
            if sentence.words.max() >= len(places):  # the teacher now speaks it differently
                continue
            for name, samples, pieces, begins in speeches(tts, codebooks, sentence, seed):
                exact = {places[word]: seconds for word, seconds in begins.items()}
                errors[name] += missed(tts, sentence.text, pieces, samples, exact)
                num_sentences[name] += 1
    rows = [row for name, missing in errors.items() for row in table_rows(name, missing)]
    for row in rows:
        cells = "  ".join(
            f"{method} " + " ".join(f"{rank} {row[method][rank]:4.0f}" for rank in ("p50", "p95"))
            for method in METHODS
        )
        print(f"{row['speech']:16}{row['position']:12}{row['words']:5} words  {cells}")
    facts = {"model": args.model, "sentences": num_sentences, "limits": LIMITS, "rows": rows}
    common.write_json(args.json, common.header() | facts)
    whole = [row for row in rows if row["position"] == EVERYWHERE]
    return common.report_missed(
        [
            f"{row['speech']}: {rank} is above {most:g} ms"
            for row in whole
            for rank, most in LIMITS.items()
            if row["found_ms"][rank] > most
        ]
    )


def word_starts(sentence: Utterance) -> list[int]:
    """Return the first character of each word that flite counts in a sentence.

    Raises:
        SetupError: flite is not installed.
    """
    try:
        spoken = Flite.shared()(sentence.text)
    except OSError as error:
        raise SetupError(f"This needs flite: {error}.", hint="apt-get install flite") from error
    return spoken.word_starts if spoken else []


def speeches(
    tts: SpeechEngine, codebooks: Codebooks, sentence: Utterance, seed: int
) -> Iterator[tuple[str, np.ndarray, tuple[Piece, ...], dict[int, float]]]:
    """Yield both speeches of a sentence, the drawn one only if it ended by itself.

    Yields:
        Its kind; [num_samples] int16; what is spoken for the text; and for the words of the
        teacher the seconds at which they begin.
    """
    said = set(sentence.words.tolist()) - {SILENCE}
    onsets = {word: int(np.argmax(sentence.words == word)) for word in said}
    # All silence is kept, so that each frame of codes is 80 ms of the samples.
    with tts.stream(sentence.text, seed=seed, leading_silence=MAX_SILENCE) as stream:
        drawn = np.concatenate([chunk.samples for chunk in stream])
        codes, pieces = stream.codes.astype(np.uint8), stream.text.pieces
    decoded = to_int16(tts.decode(sentence.codes.astype(np.int64)))
    kinds = {REFERENCE: (decoded, onsets)}
    if stream.finish_reason == "eos":
        found = word_onsets(codes, sentence.codes, sentence.words, codebooks)
        kinds[DRAWN] = drawn, found
    for name, (samples, frames) in kinds.items():
        begins = {word: frame * tts.seconds_per_frame for word, frame in frames.items()}
        yield name, samples, pieces, begins


def missed(
    tts: SpeechEngine,
    text: str,
    pieces: tuple[Piece, ...],
    samples: np.ndarray,
    exact: dict[int, float],
) -> Iterator[Error]:
    """Return the errors of a sentence's words.

    Args:
        pieces: the pieces of the spoken text.
        samples: [num_samples] int16 of the whole sentence.
        exact: character of the text -> seconds at which the word that begins there is heard.
    """
    rate, seconds = tts.sample_rate, len(samples) / tts.sample_rate
    silence_s = leading_silence_ms(samples, rate) / 1000
    spans = word_spans(text)
    spoken = "".join(piece.text for piece in pieces)
    places = [low for low, _ in spoken_spans(pieces, spans)]
    pace_s = (seconds - silence_s) / max(1, count_letters(spoken))
    by_letters = [silence_s + pace_s * count_letters(spoken[:place]) for place in places]
    num_frames = round(seconds / tts.seconds_per_frame)
    part = TextPart(text=spoken, first_frame=0)
    part.end(num_frames, "eos")
    whole = SimpleNamespace(written=text, spoken=SpokenText(pieces), speakers=[(0, None)])
    received = deque([AudioChunk(samples, rate, 0, num_frames, 0.0), None])
    timer = SpeechTimer([part], whole, received)
    found = [word.start for word in timer.words]
    for index, (begin, end) in enumerate(spans):
        begins = [time for place, time in exact.items() if begin <= place < end]
        if begins:
            distances = (1000 * abs(times[index] - min(begins)) for times in (by_letters, found))
            yield Error(index, *distances)


def table_rows(speech: str, errors: list[Error]) -> Iterator[dict[str, object]]:
    """Return a row for all words, and one for each position in a sentence."""
    by_position: dict[str, list[Error]] = {EVERYWHERE: errors}
    for error in errors:
        name = next((n for n, at in POSITIONS.items() if error.index in at), LAST_POSITION)
        by_position.setdefault(name, []).append(error)
    for name in (EVERYWHERE, *POSITIONS, LAST_POSITION):
        if group := by_position.get(name):
            figures = {
                method: common.spread([getattr(error, method) for error in group])
                for method in METHODS
            }
            yield {"speech": speech, "position": name, "words": len(group)} | figures
