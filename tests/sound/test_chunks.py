"""The chunks that a reader gets: their frames, samples and times."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from tolerances import HUM_PAUSE_SECONDS, HUMS_SECONDS, LIMITED, nearly

from qwen_megakernel.errors import UsageError
from qwen_megakernel.records import AudioChunk, Drift, Manner
from qwen_megakernel.sound.chain import Chain, finish, new_chain, push
from qwen_megakernel.sound.chunks import HeardChunks, new_chunks
from qwen_megakernel.speech_options import SoundOptions

RATE = 24000


class Late:
    """A step that holds back the latest `delay` samples."""

    def __init__(self, delay: int) -> None:
        self.delay, self.held = delay, np.empty(0, np.float32)

    def push(self, samples: np.ndarray) -> np.ndarray:
        held = np.concatenate([self.held, samples])
        count = max(0, len(held) - self.delay)
        self.held = held[count:]
        return held[:count]

    def finish(self) -> np.ndarray:
        return self.held


def chunk(first: int, num_frames: int) -> AudioChunk:
    samples = np.arange(first * 100, (first + num_frames) * 100).astype(np.int16)
    return AudioChunk(samples, RATE, first, num_frames, 5.0 + first)


def heard_by(delay: int, *chunks: AudioChunk) -> list[AudioChunk]:
    heard = HeardChunks([Late(delay)], RATE)
    return to_end(heard, chunks)


def to_end(heard: HeardChunks, chunks: Iterable[AudioChunk]) -> list[AudioChunk]:
    got = [each for sent in chunks for each in heard.hear(sent)]
    rest = heard.rest()
    return [*got, rest] if rest else got


def test_frames_that_are_not_heard_yet_are_those_of_the_next_chunk():
    first, second, last = heard_by(250, chunk(0, 1), chunk(1, 2), chunk(3, 4))
    assert (first.frame_index, first.num_frames, len(first.samples)) == (0, 3, 50)
    assert (second.frame_index, second.num_frames, len(second.samples)) == (3, 4, 400)
    assert (last.frame_index, last.num_frames, len(last.samples)) == (7, 0, 250)
    samples = np.concatenate([first.samples, second.samples, last.samples])
    assert samples.tolist() == list(range(700))
    assert [each.start_s for each in (first, second, last)] == nearly([0, 50 / RATE, 450 / RATE])
    assert last.end_s == nearly(700 / RATE)
    assert [each.t_ms for each in (first, second)] == [6.0, 8.0]


def test_drift_is_reported_once_by_the_first_chunk_that_is_heard():
    drifts = [Drift(part, {"loudness_db": 9.0}, is_redrawn=False) for part in range(3)]
    sent = [chunk(0, 1), chunk(1, 2), chunk(3, 4)]
    marked = [replace(each, drifts=(own,)) for each, own in zip(sent, drifts, strict=True)]
    first, second, last = heard_by(250, *marked)
    assert first.drifts == tuple(drifts[:2])
    assert second.drifts == (drifts[2],)
    assert last.drifts == ()


def test_the_last_chunk_stands_for_all_frames_that_were_never_heard():
    (last,) = heard_by(10_000, chunk(0, 1), chunk(1, 2))
    assert (last.frame_index, last.num_frames, len(last.samples)) == (0, 3, 300)


def test_a_speech_that_breaks_off_is_heard_to_its_end_once():
    heard = HeardChunks([Late(150)], RATE)
    assert heard.rest() is None
    heard = HeardChunks([Late(150)], RATE)
    assert heard.hear(chunk(0, 1)) == []
    (second,) = heard.hear(chunk(1, 1))
    assert len(second.samples) == 50
    rest = heard.rest()
    assert rest and rest.samples.tolist() == list(range(50, 200))
    assert (rest.frame_index, rest.num_frames) == (2, 0)
    assert heard.rest() is None


def test_frames_that_were_held_when_a_speech_breaks_off_are_those_of_its_rest():
    heard = HeardChunks([Late(150)], RATE)
    assert heard.hear(chunk(0, 1)) == []
    rest = heard.rest()
    assert rest and (rest.frame_index, rest.num_frames, len(rest.samples)) == (0, 1, 100)


PAUSE = AudioChunk(np.empty(0, np.int16), RATE, 3, 0, 8.0, pause_s=0.1)
LOUD = Manner(volume=6)


def test_a_pause_is_a_chunk_of_silence_behind_all_of_the_sound_before_it():
    begun: list[tuple[Manner, bool, bool]] = []

    def begin(manner: Manner, *, is_first: bool, is_after_pause: bool) -> Chain:
        begun.append((manner, is_first, is_after_pause))
        return [Late(150)]

    heard = HeardChunks([Late(150)], RATE, begin)
    loud = replace(chunk(5, 2), manner=LOUD)
    sent = [chunk(0, 3), PAUSE, PAUSE, chunk(3, 2), loud]
    got = to_end(heard, sent)
    assert [(each.frame_index, each.num_frames, len(each.samples)) for each in got] == [
        (0, 3, 150),
        (3, 0, 150),
        (3, 0, 2400),
        (3, 0, 2400),
        (3, 2, 50),
        (5, 0, 150),
        (5, 2, 50),
        (7, 0, 150),
    ]
    assert [each.pause_s for each in got] == [0, 0, 0.1, 0.1, 0, 0, 0, 0]
    assert not np.concatenate([got[2].samples, got[3].samples]).any()
    sounding = np.concatenate([each.samples for each in got if not each.pause_s])
    assert sounding.tolist() == list(range(700))
    assert begun == [(Manner(), False, True), (LOUD, False, False)]
    starts = np.cumsum([0, *(len(each.samples) for each in got)]) / RATE
    assert [each.start_s for each in got] == nearly(starts[:-1])


def test_frames_that_are_never_heard_are_those_of_the_next_sound():
    heard = HeardChunks([Late(0)], RATE, lambda manner, **_: [])
    silent = replace(chunk(0, 1), samples=np.empty(0, np.int16))
    assert heard.hear(silent) == []
    (silence,) = heard.hear(PAUSE)
    assert (silence.num_frames, len(silence.samples)) == (0, 2400)
    (sound,) = heard.hear(chunk(1, 2))
    assert (sound.frame_index, sound.num_frames, len(sound.samples)) == (0, 3, 200)


def test_a_speech_that_breaks_off_behind_a_pause_has_no_rest():
    heard = HeardChunks([Late(50)], RATE, lambda manner, **_: [])
    heard.hear(chunk(0, 2))
    heard.hear(PAUSE)
    assert heard.rest() is None


@pytest.mark.parametrize("size", [100, 240, 5000])
@pytest.mark.parametrize("rate", [8000, 24000, 48000])
def test_silence_beside_a_pause_is_cut_and_at_other_places_stays(size: int, rate: int):
    options = SoundOptions(sample_rate=rate)
    tone = (8000 * np.sin(np.arange(4800) / 5)).astype(np.int16)
    part = np.concatenate([np.zeros(2400, np.int16), tone, np.zeros(2400, np.int16)])
    heard = new_chunks(options, RATE, None, has_parts=True)
    assert heard
    got: list[AudioChunk] = []
    for pause_s in (0.25, 0.0):
        for first in range(0, len(part), size):
            got += heard.hear(AudioChunk(part[first : first + size], RATE, 0, 1, 0.0))
        got += to_end(heard, [replace(PAUSE, pause_s=pause_s)] if pause_s else [])
    samples = np.concatenate([each.samples for each in got])
    sounds = np.flatnonzero(np.abs(samples) > 500) / rate
    silences = sounds[1:][np.diff(sounds) > 0.1] - sounds[:-1][np.diff(sounds) > 0.1]
    assert silences == pytest.approx([0.25], abs=HUM_PAUSE_SECONDS)
    assert len(samples) / rate == pytest.approx(0.85, abs=HUMS_SECONDS)
    (quiet,) = [each for each in got if each.pause_s]
    assert len(quiet.samples) == rate / 4 and not quiet.samples.any()


@pytest.mark.parametrize(
    "options", [{}, {"speed": 1}, {"volume": 0.0}, {"sample_rate": RATE}, {"speed": None}]
)
def test_what_changes_nothing_has_no_chain(options: dict[str, float | None]):
    assert not new_chain(SoundOptions().override(**options), RATE)


def test_all_steps_together_keep_the_duration_and_the_ceiling():
    chain = new_chain(SoundOptions(speed=1.5, volume=20, sample_rate=16000), RATE)
    samples = 0.9 * np.sin(np.arange(RATE) / 20).astype(np.float32)
    pieces = [push(chain, piece) for piece in np.split(samples, range(1000, RATE, 1000))]
    heard = np.concatenate([*pieces, finish(chain)])
    assert len(heard) == round(16000 / 1.5)
    assert 0.9 < np.abs(heard).max() <= LIMITED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": 0}, "speed is 0; it must be in 0.25 .. 4."),
        ({"speed": float("nan")}, "speed is nan; it must be in 0.25 .. 4."),
        ({"speed": 1e9}, r"speed is 1e\+09; it must be in 0.25 .. 4."),
        ({"speed": -1}, "speed is -1; it must be in 0.25 .. 4."),
        ({"speed": "fast"}, "speed is 'fast'; it must be a number."),
        ({"volume": 21}, "volume is 21; it must be in -60 .. 20."),
        ({"volume": float("inf")}, "volume is inf; it must be in -60 .. 20."),
        ({"leading_silence": -1}, "leading_silence is -1; it must be in 0 .. 60000."),
        ({"trailing_silence": "all"}, "trailing_silence is 'all'; it must be a number."),
        ({"sample_rate": "48k"}, "sample_rate is '48k'; it must be a whole number."),
        ({"sample_rate": 16000.5}, "sample_rate is 16000.5; it must be a whole number."),
        ({"sample_rate": -8000}, "sample_rate is -8000; it must be in 8000 .. 48000."),
        ({"sample_rate": 10**9}, "sample_rate is 1000000000; it must be in 8000 .. 48000."),
    ],
)
def test_what_can_never_work_is_refused(options: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        SoundOptions(**options)
