"""The vocoder takes the chunk of the stream whose reader has the least left to play."""

import time

import numpy as np
import pytest
import torch
from spies import watch
from tiny_speech import TEXT, VOICE, closed_text, tiny_engine
from tolerances import nearly

from qwen_megakernel.engine.delivery import HIGH_BUFFER_S, LOW_BUFFER_S, ChunkDelivery
from qwen_megakernel.engine.slots import SlotTable
from qwen_megakernel.engine.speech import Speech
from qwen_megakernel.engine.stages import Stages
from qwen_megakernel.engine.step_loop import StepLoop
from qwen_megakernel.engine.stream_state import StreamState
from qwen_megakernel.records import AudioChunk
from qwen_megakernel.sound.chain import new_chain
from qwen_megakernel.sound.chunks import HeardChunks
from qwen_megakernel.speech_options import SoundOptions, SpeechOptions
from qwen_megakernel.text.parts import TextPart

NOTHING = torch.zeros(0, dtype=torch.int64)
RATE, FRAME_SAMPLES = 24000, 1920


class Vocoder:
    """Logs the streams whose frames it decodes, and how many."""

    lookahead = 0

    def __init__(self, log):
        self.log = log

    def new_state(self):
        return None

    def step(self, codes, states):
        self.log.append(("vocoder", *states, codes.shape[1]))
        return torch.full((len(codes), codes.shape[1] * FRAME_SAMPLES), 0.5)


@pytest.fixture
def room(monkeypatch):
    """room(name=(lead, frames), ...): a delivery, its streams and the log of its vocoder."""

    def build(is_asynchronous=False, **streams):
        log, made = [], {}
        table = SlotTable(len(streams), on_finished=lambda state: None, look_again=lambda: None)
        vocoder = Vocoder(log)
        for buffered_s, num_frames in streams.values():
            request = SpeechOptions(first_chunk_frames=num_frames, chunk_frames=num_frames)
            text = closed_text(request, TextPart.whole(torch.arange(9)))
            state = StreamState(request, text, None, None, RATE)
            table.waiting.append(state)
            if buffered_s is not None:
                # A reader that has played all but `buffered_s` of twenty seconds.
                state.started = time.perf_counter() - 20 + buffered_s
                state.timings["first_chunk"], state.delivered_s = 0.0, 20.0
        table.admit(vocoder)
        for name, stream in zip(streams, table.active(), strict=True):
            part = TextPart.whole(NOTHING)
            stream.begin_part(part, 9, text_open=False, max_frames=200, vocoder=name)
            frames = np.arange(streams[name][1] * 2).reshape(-1, 2)
            stream.take_frames(frames, ended=False)
            made[name] = stream
        monkeypatch.setattr(
            StreamState,
            "deliver",
            lambda state, samples, first, count, **_: log.append(("deliver", count)),
        )
        stages = Stages(None, None, vocoder, is_asynchronous)
        delivery = ChunkDelivery(stages, table, {"vocoder": 0.0})
        return delivery, made, log

    return build


def state_of(**sound) -> StreamState:
    """A stream whose sound is changed on its way to the reader."""
    options = SoundOptions(**sound)
    request = SpeechOptions(sound=options)
    state = StreamState(request, closed_text(request), None, None, RATE)
    state.heard = HeardChunks(new_chain(options, RATE), RATE)
    return state


def hum(seconds: float) -> np.ndarray:
    return np.rint(8000 * np.sin(np.arange(round(seconds * RATE)) / 9)).astype(np.int16)


def read(state: StreamState) -> float:
    """Take all chunks as the reader does; returns the seconds that it hears."""
    sent = [state.outbox.get() for _ in range(len(state.outbox))]
    chunks = [chunk for it in sent if isinstance(it, AudioChunk) for chunk in state.heard.hear(it)]
    return sum(len(chunk.samples) / chunk.sample_rate for chunk in chunks if chunk)


def test_silence_that_is_cut_is_nothing_to_play(monkeypatch):
    now = time.perf_counter()
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    state = state_of(leading_silence=60)
    assert state.buffered_s() == -np.inf
    state.deliver(np.zeros(RATE * 4 // 10, np.int16), 0, 5)
    assert state.buffered_s() == nearly(0.4)  # the reader has not taken it yet
    assert read(state) == 0
    now += 0.3
    assert state.buffered_s() == -np.inf
    state.deliver(hum(0.16), 5, 2)
    assert state.buffered_s() == nearly(0.16)
    assert read(state) == nearly(0.06 + 0.16)
    assert state.buffered_s() == nearly(0.06 + 0.16)
    now += 0.1
    assert state.buffered_s() == nearly(0.06 + 0.16 - 0.1)


@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_what_is_left_to_play_is_what_is_heard_at_the_speed(monkeypatch, speed: float):
    now = time.perf_counter()
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    state = state_of(speed=speed, sample_rate=8000)
    state.deliver(hum(0.8), 0, 10)
    heard_s = read(state)
    assert state.heard._progress == (nearly(0.8), nearly(heard_s), now)  # the chain holds some back
    state.deliver(hum(0.8), 10, 10)
    now += 0.25
    assert state.buffered_s() == nearly(heard_s + 0.8 / speed - 0.25)


def test_a_stream_of_which_nothing_is_heard_comes_before_one_that_is_about_to_run_dry(room):
    delivery, streams, log = room(dry=(0.1, 10), silent=(1.9, 4))
    state = streams["silent"]
    state.heard = HeardChunks(new_chain(SoundOptions(leading_silence=60), RATE), RATE)
    state.heard.hear(AudioChunk(np.zeros(20 * RATE, np.int16), RATE, 0, 250, 0.0))
    delivery.start_vocoder([])
    assert [event[1] for event in log if event[0] == "vocoder"] == ["silent", "dry"]


def test_what_a_reader_of_a_changed_sound_has_heard_is_known_to_the_engine():
    with tiny_engine(backend="torch") as tts:
        stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=20, speed=1.5)
        chunks = list(stream)
        made_s, heard_s, begun = stream._state.heard._progress
        assert heard_s == nearly(chunks[-1].start_s)  # the last is the chain's own end
        assert made_s == nearly(len(stream.codes) * tts.seconds_per_frame)
        assert stream._state.started < begun < time.perf_counter()


def test_a_first_chunk_leaves_before_the_vocoder_begins_a_neighbours(room):
    delivery, _, log = room(old=(1.0, 10), new=(None, 1), older=(1.5, 10))
    assert not delivery.start_vocoder([])
    assert log == [
        ("vocoder", "new", 1),
        ("deliver", 1),
        ("vocoder", "old", "older", 10),
        ("deliver", 10),
        ("deliver", 10),
    ]


def test_the_stream_that_is_about_to_run_dry_comes_first(room):
    delivery, _, log = room(ahead=(1.9, 8), dry=(0.1, 10), next=(0.7, 4))
    delivery.start_vocoder([])
    assert [event[1] for event in log if event[0] == "vocoder"] == ["dry", "next", "ahead"]


@pytest.mark.parametrize("is_due", [True, False])
def test_a_stream_far_ahead_waits_while_another_is_hungry(room, is_due):
    """The hungry stream's chunk is due, or its frames are still being drawn."""
    far, hungry = HIGH_BUFFER_S + 1, LOW_BUFFER_S - 0.3
    delivery, streams, log = room(far=(far, 10), hungry=(hungry, 4))
    if not is_due:
        streams["hungry"].pending.pop()
    assert delivery.start_vocoder([streams["hungry"]])
    heard = [event[1] for event in log if event[0] == "vocoder"]
    assert heard == (["hungry"] if is_due else [])
    assert streams["far"].frames_until_due == 0  # so it draws no further frames


def test_a_stream_far_ahead_does_not_wait_for_one_that_has_enough(room):
    delivery, _, log = room(far=(HIGH_BUFFER_S + 1, 10), fed=(LOW_BUFFER_S + 0.3, 4))
    assert not delivery.start_vocoder([])
    assert [event[1] for event in log if event[0] == "vocoder"] == ["fed", "far"]


def test_where_the_device_is_asynchronous_every_chunk_is_started_before_one_is_waited_for(room):
    delivery, _, log = room(is_asynchronous=True, old=(1.0, 10), new=(None, 1))
    delivery.start_vocoder([])
    assert log == [("vocoder", "new", 1), ("vocoder", "old", 10)]
    delivery.deliver()
    assert log[2:] == [("deliver", 1), ("deliver", 10)]


def test_a_stream_that_waited_is_spoken_after_the_hungry_one(monkeypatch):
    """One stream far ahead of its reader, and short ones that are hungry from first to last."""
    with tiny_engine(backend="torch", num_slots=2) as tts:
        options = {"voice": VOICE, "chunk_frames": 4}
        alone = tts.synthesize(TEXT, seed=1, max_frames=40, **options)
        buffered = StreamState.buffered_s
        monkeypatch.setattr(
            StreamState,
            "buffered_s",
            lambda self: 9.0 if self.request.seed == 1 else buffered(self) - 9,
        )
        long = tts.stream(TEXT, seed=1, max_frames=40, **options)
        for seed in range(2, 5):
            assert len(tts.synthesize(TEXT, seed=seed, max_frames=6, **options).codes)
        assert np.array_equal(Speech.collect(long).codes, alone.codes)


@pytest.mark.parametrize(
    ("left_s", "expected"),
    [(LOW_BUFFER_S - 0.3, [2, "step", 3, "step", 4]), (LOW_BUFFER_S + 0.3, [2, 3, 4])],
)
def test_where_a_reader_has_little_left_a_prompt_runs_between_steps(monkeypatch, left_s, expected):
    """Three streams arrive at once, beside one that speaks."""
    events: list[int | str] = []
    watch(monkeypatch, StepLoop, "_begin_part", lambda _, new: events.append(new.request.seed))
    watch(monkeypatch, StepLoop, "_start_step", lambda *_: events.append("step"))
    monkeypatch.setattr(
        StreamState, "buffered_s", lambda self: left_s if self.request.seed == 1 else -np.inf
    )
    with tiny_engine(backend="torch", num_slots=4) as tts:
        options = {"voice": VOICE, "max_frames": 30}
        speaking = tts.stream(TEXT, seed=1, **options)
        next(iter(speaking))
        tts._loop.run(events.clear)
        arrived = tts._loop.run(lambda: [tts.stream(TEXT, seed=n, **options) for n in (2, 3, 4)])
        for stream in [*arrived, speaking]:
            assert list(stream)
    assert events[events.index(2) :][: len(expected)] == expected
