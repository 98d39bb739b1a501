"""Drawing and delivery at the same time: the order in which the loop starts, waits and delivers.

A GPU is a queue that works when it is waited for. A fake device here is such a queue and counts
the calls of the loop, and the real stages run as if they were on a GPU.
"""

import threading
import time
from collections import deque
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from spies import watch
from tiny_speech import TEXT, VOICE, closed_text, tiny_engine
from tolerances import PCM16_STEP
from waiting import wait_until

from qwen_megakernel.decoders.frame_decoder import FrameDecoder
from qwen_megakernel.engine import delivery, runaway_guard
from qwen_megakernel.engine.stages import Stages
from qwen_megakernel.engine.step_loop import StepLoop
from qwen_megakernel.engine.stream_state import StreamState
from qwen_megakernel.errors import GenerationError
from qwen_megakernel.records import StepResult
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.parts import TextPart

LONG_TEXT = " ".join(f"This is sentence number {index} of a long text." for index in range(12))
SAMPLES_PER_FRAME = 4


# ---- a fake device -------------------------------------------------------------------------------


class Device:
    """A queue; work is done, in order, when the loop waits for it or for later work."""

    def __init__(self):
        self.queue, self.log = deque(), []

    def enqueue(self, name, work):
        self.log.append(("start", name))
        self.queue.append((name, work))

    def wait(self, name):
        self.log.append(("wait", name))
        done = {}
        while name not in done:
            first, work = self.queue.popleft()
            done[first] = work()
        return done[name]


class FakeDecoder:
    """Draws `num_frames` frames for each slot, then EOS."""

    num_slots, max_frames = 2, 1000

    def __init__(self, device, num_frames):
        self.device, self.length, self.steps = device, num_frames, 0
        self.drawn = [0] * self.num_slots

    def prefill(self, slot, prefill, sampling, *, seed, part, text_open=False):
        self.device.log.append(("prompt", slot))
        self.drawn[slot] = 0

    def frames_ready(self, slot):
        return self.max_frames

    def launch(self, slots, num_frames):
        self.steps += 1
        name = f"step {self.steps}"

        def work():
            counts = [min(num_frames, self.length - self.drawn[slot]) for slot in slots]
            for slot, count in zip(slots, counts, strict=True):
                self.drawn[slot] += count
            codes = np.arange(len(slots) * num_frames, dtype=np.int32) + 100 * self.steps
            ended = tuple(count < num_frames for count in counts)
            return StepResult(codes.reshape(len(slots), num_frames, 1), tuple(counts), ended)

        self.device.enqueue(name, work)
        return lambda: self.device.wait(name)

    def cancel(self):
        pass


class FakeVocoder:
    lookahead = 0

    def __init__(self, device):
        self.device, self.chunks = device, 0

    def new_state(self):
        return object()

    def step(self, codes, states):
        self.chunks += 1
        name = f"chunk {self.chunks}"
        pcm = torch.ones(len(codes), codes.shape[1] * SAMPLES_PER_FRAME) / 2
        self.device.enqueue(name, lambda: pcm)
        return SimpleNamespace(name=name)


@pytest.fixture
def speak(monkeypatch):
    """speak(num_streams, num_frames): what happened, on a loop over the fake device."""
    device = Device()
    monkeypatch.setattr(delivery, "download", lambda pcm: lambda: device.wait(pcm.name))

    def run(num_streams, num_frames):
        decoder = FakeDecoder(device, num_frames)
        prompts = SimpleNamespace(build=lambda *args, **options: None)
        loop = StepLoop(
            lambda: Stages(decoder, prompts, FakeVocoder(device), is_asynchronous=True),
            on_finished=lambda state: None,
        )

        def note(state, samples, first, count, **kind):
            device.log.append(("deliver", count))

        watch(monkeypatch, StreamState, "deliver", note)
        states = []
        for _ in range(num_streams):
            request = SpeechOptions(chunk_frames=4)
            text = closed_text(request, TextPart.whole(torch.arange(9)))
            states.append(StreamState(request, text, loop.wake, loop.interrupt, 24000))
        loop.run(lambda: loop.table.waiting.extend(states))  # admitted in one turn
        for state in states:
            ends = [item for item in iter(state.outbox.get, "eos") if isinstance(item, Exception)]
            assert not ends
        loop.close()
        return device.log

    return run


@pytest.mark.parametrize("num_streams", [1, 2])
def test_the_next_step_is_started_before_a_chunk_is_delivered(speak, num_streams):
    log = speak(num_streams, 30)
    steps = [index for index, event in enumerate(log) if event[0] == "start" and "step" in event[1]]
    waits = [index for index, event in enumerate(log) if event == ("wait", "chunk 1")]
    assert log.index(("start", "step 2")) < waits[0] < log.index(("wait", "step 2"))
    for index, event in enumerate(log):
        if event[0] == "deliver" and event[1]:
            # Between a chunk's start and its delivery another step has been started.
            started = max(i for i in range(index) if log[i][0] == "start" and "chunk" in log[i][1])
            assert any(started < step < index for step in steps) or index > steps[-1]


@pytest.mark.parametrize("num_streams", [1, 2])
def test_a_step_waits_once_for_its_codes_and_a_chunk_once_for_its_samples(speak, num_streams):
    log = speak(num_streams, 31)
    started = [name for what, name in log if what == "start"]
    waited = [name for what, name in log if what == "wait"]
    assert sorted(started) == sorted(waited)
    assert len([name for name in started if "step" in name]) == 1 + 1 + 7 + 1  # + EOS
    chunks = [name for name in started if "chunk" in name]
    assert len(chunks) == 1 + 1 + 7  # chunks of both streams at once


def test_a_prompt_does_not_keep_a_finished_chunk_waiting(speak):
    """The third stream gets its slot while a chunk of the second is being decoded."""
    log = speak(3, 9)
    last_prompt = max(index for index, event in enumerate(log) if event[0] == "prompt")
    before = log[:last_prompt]
    started = {name for what, name in before if what == "start" and "chunk" in name}
    waited = {name for what, name in before if what == "wait" and "chunk" in name}
    assert started == waited


# ---- the real stages, as if they overlapped ------------------------------------------------------


@pytest.fixture(scope="module")
def overlapping():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrameDecoder, "is_asynchronous", property(lambda self: True))
        with tiny_engine(backend="graph", num_slots=3) as tts:
            yield tts


def test_streams_beside_other_streams_sound_the_same(tts, overlapping):
    speeches = {}
    for engine in (tts, overlapping):
        streams = [
            engine.stream(TEXT, voice=VOICE, seed=seed, max_frames=10 + seed, chunk_frames=3 + seed)
            for seed in range(5)
        ]
        speeches[engine] = [
            (np.concatenate([chunk.samples for chunk in stream]), stream.codes, stream)
            for stream in streams
        ]
    for ours, theirs in zip(speeches[overlapping], speeches[tts], strict=True):
        np.testing.assert_array_equal(ours[1], theirs[1])
        assert np.abs(ours[0].astype(int) - theirs[0]).max() <= PCM16_STEP
        assert ours[2].finish_reason == theirs[2].finish_reason


def test_parts_follow_each_other(tts, overlapping, monkeypatch):
    monkeypatch.setattr(runaway_guard, "SPARE_FRAMES", 6)  # frames of each part, whatever its text
    monkeypatch.setattr(runaway_guard, "FRAMES_PER_TEXT_TOKEN", 0)
    ours, theirs = (
        engine.synthesize(LONG_TEXT, voice=VOICE, seed=1, chunk_frames=4)
        for engine in (overlapping, tts)
    )
    assert ours.parts == theirs.parts >= 2 and len(ours.codes) == 6 * ours.parts
    np.testing.assert_array_equal(ours.codes, theirs.codes)


def test_text_may_come_late(tts, overlapping):
    codes = []
    for engine in (overlapping, tts):
        stream = engine.stream(text_open=True, voice=VOICE, seed=2, max_frames=24)
        chunks = iter(stream)
        for piece in ("Hello there, ", "how are ", "you?"):
            stream.feed(piece)
            time.sleep(0.02)
        stream.end_text()
        list(chunks)
        codes.append(stream.codes)
    np.testing.assert_array_equal(*codes)


@pytest.mark.parametrize(
    "chunk_frames", [7, *(pytest.param(count, marks=pytest.mark.ci) for count in (1, 10))]
)
def test_silence_is_cut_at_its_frame_though_more_was_drawn(overlapping, monkeypatch, chunk_frames):
    vocoder, step = overlapping._loop.stages.vocoder, overlapping._loop.stages.vocoder.step
    monkeypatch.setattr(vocoder, "step", lambda *args: torch.zeros_like(step(*args)))
    monkeypatch.setattr(runaway_guard, "SILENT_FRAMES", 12)
    stream = overlapping.stream(LONG_TEXT, voice=VOICE, seed=1, chunk_frames=chunk_frames)
    num_samples = sum(len(chunk.samples) for chunk in stream)
    assert stream.finish_reason == "silence" and stream.text.num_parts >= 2
    assert len(stream.codes) == 11 * stream.text.num_parts
    assert num_samples == len(stream.codes) * 1920


def test_closing_a_stream_delivers_nothing_more_and_frees_its_slot(overlapping):
    stream = overlapping.stream(TEXT, voice=VOICE, seed=38)  # which goes on until it is closed
    next(iter(stream))
    stream.close()
    wait_until(lambda: not overlapping.num_active)
    assert stream.finish_reason == "cancelled"


@pytest.mark.parametrize("stage", ["launch", "collect", "vocoder", "samples"])
def test_a_fault_ends_its_stream_and_the_engine_goes_on(overlapping, monkeypatch, stage):
    loop, fail = overlapping._loop, Mock(side_effect=RuntimeError("planted"))
    target = {
        "launch": (loop.stages.decoder, "launch", fail),
        "collect": (loop.stages.decoder, "_collect", fail),
        "vocoder": (loop.stages.vocoder, "step", fail),
        "samples": (delivery, "download", lambda pcm: fail),
    }[stage]
    with monkeypatch.context() as patch:
        patch.setattr(*target)
        stream = overlapping.stream(TEXT, voice=VOICE, seed=1, max_frames=8)
        with pytest.raises(GenerationError, match="planted"):
            list(stream)
    speech = overlapping.synthesize(TEXT, voice=VOICE, seed=1, max_frames=8)
    assert len(speech.codes) == 8


def test_closing_the_engine_ends_what_is_on_its_way(monkeypatch):
    monkeypatch.setattr(FrameDecoder, "is_asynchronous", property(lambda self: True))
    tts = tiny_engine(backend="graph")
    stream = tts.stream(TEXT, voice=VOICE, seed=38)  # which goes on until it is closed
    next(iter(stream))
    closing = threading.Thread(target=tts.close)
    closing.start()
    closing.join(20)
    assert not closing.is_alive() and stream.finish_reason == "cancelled"
