"""The drift guard: what it measures, what it draws again, and that nothing else changes."""

import threading

import numpy as np
import pytest
import torch
from fixtures import module_fixture
from spies import watch
from tiny_speech import feed_at_once, tiny_engine
from tolerances import PLANTED_DRIFT

from qwen_megakernel.engine.conversation import Conversation
from qwen_megakernel.engine.drift_guard import median_pitch
from qwen_megakernel.engine.stages import Stages
from qwen_megakernel.engine.stream_state import REDRAW, StreamState
from qwen_megakernel.records import Drift, StepResult

FRAME, RATE, GROUPS = 1920, 24000, 16
WORDS = "one two three four five six seven eight nine ten"
NUMBERS = WORDS.split() + ["next"] * 5
TEXT = " ".join(f"This is the {word} sentence, and it has a few words." for word in NUMBERS)
HURRIED, HIGH, PLAIN = (0.8, 120, 0.1), (1.5, 150, 0.1), (1.5, 120, 0.1)
QUIET = (1.5, 120, 0.03)


class Planted:
    """Decoder, prompts and vocoder in one: hums with frames for each token, pitch and loudness.

    Args:
        plan: these three by the number of the part, as random numbers are addressed.
    """

    lookahead, num_slots, max_frames = 0, 1, 1000
    # What it is told or asked and has no use for.
    add_text = close_text = end_rows = cancel = new_state = warm = lambda *_: None

    def __init__(self):
        self.plan, self.log, self.contexts = {}, [], []
        self.at_launch = lambda address, frame: None

    def build(self, ids, request, *, text_open=False):
        self.contexts.append(ids.frames)
        return len(ids.body)

    def prefill(self, slot, num_tokens, sampling, *, seed, part, text_open=False):
        self.seed, self.address, self.frame = seed, part, 0
        self.pace, self.hertz, self.volume = self.plan.get(part, PLAIN)
        self.num_frames = round(self.pace * num_tokens)

    def frames_ready(self, slot):
        return 4

    def launch(self, slots, num_frames):
        self.at_launch(self.address, self.frame)
        count = min(num_frames, self.num_frames - self.frame)
        codes = np.zeros((1, count, GROUPS), np.int32)
        for each in codes[0]:
            draws = np.random.default_rng((self.seed, self.address, self.frame))
            each[:4] = draws.integers(1000), self.hertz, self.volume * 1000, self.frame
            self.frame += 1
        ended = self.frame >= self.num_frames
        return lambda: StepResult(codes, (count,), (ended,))

    def step(self, codes, states):
        frame = codes[0].numpy()
        time = (frame[:, 3:4] * FRAME + np.arange(FRAME)) / RATE
        hum = sum(np.sin(2 * np.pi * n * frame[:, 1:2] * time) / n for n in range(1, 4))
        syllables = 0.5 - 0.5 * np.cos(2 * np.pi * 5 * time)
        sound = frame[:, 2:3] / 1000 * hum * syllables
        return torch.from_numpy(sound.astype(np.float32).reshape(1, -1))


engine = module_fixture(lambda: tiny_engine("tiny-random-base"))


@pytest.fixture
def planted(engine, monkeypatch):
    planted = Planted()
    put_into(engine, planted, monkeypatch)
    return planted


def put_into(engine, planted, monkeypatch):
    stages = Stages(planted, planted, planted)
    monkeypatch.setattr(engine._loop, "stages", stages)
    monkeypatch.setattr(engine._loop._delivery, "_stages", stages)
    monkeypatch.setattr(engine, "_identify", None)


@pytest.fixture(scope="module")
def healthy(engine):
    planted, kept = Planted(), pytest.MonkeyPatch()
    put_into(engine, planted, kept)
    stream, _ = spoken(engine)
    kept.undo()
    return stream, planted.contexts


def spoken(engine, **options):
    stream = engine.stream(TEXT, **{"seed": 5, "continuity": "context"} | options)
    return stream, list(stream)


def pitches(stream):
    hertz = stream.codes[:, 1]
    starts = np.flatnonzero(stream.codes[:, 3] == 0)
    return hertz[starts].tolist()


# ---- figures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("hertz", [70, 110, 220, 380])
def test_the_median_pitch_of_a_hum_in_noise_is_found(hertz):
    time, rng = np.arange(2 * RATE) / RATE, np.random.default_rng(1)
    hum = sum(np.sin(2 * np.pi * n * hertz * time) / n for n in range(1, 9))
    sound = 0.1 * hum + 0.01 * rng.standard_normal(len(time))
    found = median_pitch(sound.astype(np.float32), RATE)
    assert abs(12 * np.log2(found / hertz)) < PLANTED_DRIFT["pitch_semitones"]


def test_noise_and_silence_have_no_pitch():
    rng = np.random.default_rng(1)
    for sound in (rng.standard_normal(RATE), np.zeros(RATE), np.zeros(3)):
        assert np.isnan(median_pitch(sound.astype(np.float32), RATE))


# ---- in the engine -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "name"),
    [(HURRIED, "rate_percent"), (HIGH, "pitch_semitones"), (QUIET, "loudness_db")],
)
def test_a_part_that_leaves_the_band_is_drawn_again(engine, planted, healthy, fault, name):
    plain, _ = healthy
    planted.plan = {1: fault}
    stream, chunks = spoken(engine)
    (drift,) = stream.text.drifts
    assert (drift.part, list(drift.changes), drift.is_redrawn) == (1, [name], True)
    begin = int(np.flatnonzero(stream.codes[:, 3] == 0)[1])
    reported = [(chunk.frame_index, chunk.drifts) for chunk in chunks if chunk.drifts]
    assert reported == [(begin, (drift,))]
    assert np.array_equal(stream.codes[:, 1:], plain.codes[:, 1:])
    draws = [np.random.default_rng((5, 1 + REDRAW, n)).integers(1000) for n in range(9)]
    assert stream.codes[begin : begin + 9, 0].tolist() == draws
    assert sum(chunk.num_frames for chunk in chunks) == len(stream.codes)
    assert stream.text.num_parts == plain.text.num_parts
    assert stream.text.num_tokens == plain.text.num_tokens


def test_codes_are_those_of_the_seed(engine, planted):
    planted.plan = {1: HURRIED}
    first, again, other = (spoken(engine, seed=seed)[0].codes for seed in (5, 5, 6))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_words_have_the_times_of_the_part_that_is_heard(engine, planted, healthy):
    planted.plan = {1: HURRIED}
    stream, _ = spoken(engine)
    assert stream.text.drifts
    assert stream.times.words == healthy[0].times.words
    assert stream.times.words[-1].word == "words."


def test_what_follows_continues_the_part_that_is_heard(engine, planted, healthy):
    planted.plan = {1: HIGH}
    spoken(engine)
    first, second, again, *others = planted.contexts
    assert first is None and np.array_equal(second, again)
    assert all((each[:, 1] == PLAIN[1]).all() for each in (again, *others))
    assert len(planted.contexts) == len(healthy[1]) + 1


def test_the_first_part_is_never_held_back_and_later_ones_are(engine, planted, monkeypatch):
    states = []
    watch(monkeypatch, StreamState, "begin_part", lambda state, *_, **__: states.append(state))
    delivered = {}
    planted.at_launch = lambda address, frame: delivered.setdefault(address, []).append(
        (frame, len(states[-1].codes))
    )
    spoken(engine)
    assert all(num_codes == frame for frame, num_codes in delivered[0] if frame in (0, 1, 3, 7))
    assert len({num_codes for _, num_codes in delivered[1]}) == 1
    talk = Conversation()
    _, chunks = [spoken(engine, conversation=talk) for _ in range(2)][1]
    assert [chunk.num_frames for chunk in chunks[:3]] == [1, 2, 4]
    num_codes = [number for frame, number in delivered[0] if frame >= 3]
    assert all(num_codes)  # of the second stream, too


def test_a_part_that_its_reader_needs_is_not_drawn_again(engine, planted, monkeypatch):
    """The reader has less to play than a second draw needs, from the middle of the part on."""
    planted.plan, has_begun = {1: HURRIED}, threading.Event()
    planted.at_launch = lambda address, frame: address and frame > 20 and has_begun.set()
    monkeypatch.setattr(StreamState, "buffered_s", lambda _: 0.5 if has_begun.is_set() else 9.0)
    stream, chunks = spoken(engine)
    assert [(each.part, each.is_redrawn) for each in stream.text.drifts] == [(1, False)]
    assert stream.text.drifts == [drift for chunk in chunks for drift in chunk.drifts]
    starts = [frame for frame, number in enumerate(stream.codes[:, 3]) if number == 0]
    assert len(starts) == stream.text.num_parts


def test_a_second_draw_that_drifts_is_heard_and_reported(engine, planted):
    planted.plan = {1: HIGH, 1 + REDRAW: HIGH}
    stream, _ = spoken(engine)
    assert [(each.part, each.is_redrawn) for each in stream.text.drifts] == [(1, True), (1, False)]
    assert pitches(stream)[:3] == [PLAIN[1], HIGH[1], PLAIN[1]]


@pytest.mark.parametrize("where", ["held", "compared"])
def test_an_interruption_leaks_nothing_that_was_held_back(engine, planted, monkeypatch, where):
    planted.plan, talk, streams = {1: HIGH}, Conversation(), []

    def interrupt(address, frame):
        if where == "held" and address == 1 and frame > 20:
            streams[-1].close()

    end_part = StreamState.end_part

    def ended(state):
        if where == "compared" and planted.address == 1:
            state.cancel()
        return end_part(state)

    planted.at_launch = interrupt
    monkeypatch.setattr(StreamState, "end_part", ended)
    options = {"seed": 5, "continuity": "context", "conversation": talk}
    opened = engine.stream(text_open=True, **options)
    streams.append(opened)
    chunks = list(feed_at_once(opened, TEXT))
    assert opened.finish_reason == "cancelled"
    assert set(opened.codes[:, 1]) == {PLAIN[1]}
    assert sum(chunk.num_frames for chunk in chunks) == len(opened.codes)
    planted.plan, planted.contexts = {0: HIGH}, []
    planted.at_launch = lambda address, frame: None
    later = engine.stream("It is a new turn, and nobody knows the old one any more.", **options)
    list(later)
    assert planted.contexts == [None] and later.text.drifts == []


def test_without_continuity_nothing_is_compared(engine, planted):
    planted.plan = {1: HIGH}
    stream, chunks = spoken(engine, continuity="off")
    assert pitches(stream)[1] == HIGH[1] and stream.text.drifts == []
    assert not any(chunk.drifts for chunk in chunks)


def test_a_limit_of_frames_ends_a_part_that_is_held_back(engine, planted, healthy):
    planted.plan = {1: HIGH}
    num_frames = int(np.flatnonzero(healthy[0].codes[:, 3] == 0)[1]) + 30
    stream, chunks = spoken(engine, max_frames=num_frames)
    assert stream.finish_reason == "length" and len(stream.codes) == num_frames
    assert sum(chunk.num_frames for chunk in chunks) == num_frames


def test_an_error_delivers_what_was_held_back(engine, planted):
    def fail(address, frame):
        if address == 1 and frame > 20:
            raise ValueError("planted")

    planted.at_launch = fail
    stream = engine.stream(TEXT, seed=5, continuity="context")
    with pytest.raises(Exception, match="planted"):
        list(stream)
    assert len(np.flatnonzero(stream.codes[:, 3] == 0)) == 2


def test_the_speaker_is_compared_where_there_is_an_encoder(engine, planted, monkeypatch):
    vectors = iter([np.array([1.0, 0.0]), np.array([0.0, 1.0])])
    monkeypatch.setattr(engine, "_identify", lambda *_: next(vectors, np.array([1.0, 0.1])))
    stream, _ = spoken(engine)
    assert stream.text.drifts == [Drift(1, {"identity": 0.0}, True)]
