"""The engine: a stream that waits for its text or its reader leaves its slot to other streams."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tiny_speech import TEXT, VOICE, feed_and_end, feed_at_once, speak, tiny_engine
from waiting import wait_until

from qwen_megakernel import TTSEngine
from qwen_megakernel.engine import step_loop
from qwen_megakernel.engine.speech import Speech
from qwen_megakernel.engine.stream import SpeechStream
from qwen_megakernel.engine.stream_state import MAX_QUEUED_CHUNKS

pytestmark = pytest.mark.own_backend

LIMIT_S = 60  # for anything that these tests wait for
PARTS = "Hello there. [pause 0.1s] How are you? [pause 0.1s] It is cold. [pause 0.1s] Goodbye."


@pytest.fixture(scope="module", params=["cpu", pytest.param("torch", marks=pytest.mark.ci)])
def tts(request: pytest.FixtureRequest, cache_folder: Any) -> Iterator[TTSEngine]:
    with tiny_engine(backend=request.param, num_slots=1) as engine:
        yield engine


@pytest.fixture
def aside() -> Iterator[Any]:
    """aside(function, ...): its result, or `TimeoutError` if a slot is never free for it."""
    pool = ThreadPoolExecutor(1)
    yield lambda call, *args, **options: pool.submit(call, *args, **options).result(LIMIT_S)
    pool.shutdown(wait=False)


def opened(tts: TTSEngine, text: str, seed: int = 1) -> SpeechStream:
    """Return a stream that has spoken all of its open text and waits for more."""
    stream = tts.stream(text_open=True, voice=VOICE, seed=seed)
    stream.feed(text)
    wait_until(lambda: stream.text.num_parts and not is_drawing(tts))
    return stream


def is_drawing(tts: TTSEngine) -> bool:
    loop = tts._loop
    return any(loop.run(lambda: loop._runnable(False)))


def checked(chunks: list[Any], tts: TTSEngine, stream: SpeechStream) -> None:
    """Check that the chunks follow each other without a gap, with the samples of every frame."""
    at, frame_samples = 0, tts.seconds_per_frame * tts.sample_rate
    for chunk in chunks:
        assert chunk.frame_index == at
        assert len(chunk.samples) == round(chunk.num_frames * frame_samples)
        at += chunk.num_frames
    assert at == len(stream.codes) and stream.finish_reason


def test_a_text_that_stalls_leaves_its_slot_and_goes_on_when_more_text_comes(tts, aside):
    other = speak(tts, seed=2)
    with opened(tts, "Hello there, how are ") as stream:
        assert np.array_equal(aside(speak, tts, seed=2).codes, other.codes)
        assert stream.finish_reason is None and stream.text.num_parts == 1
        feed_at_once(stream, "you today?")
        checked(aside(list, stream), tts, stream)
        assert stream.text.num_parts == 2
        # The text of both parts is that of the whole.
        whole = tts.stream(TEXT, voice=VOICE, max_frames=1)
        list(whole)
        assert stream.text.num_tokens == whole.text.num_tokens


def test_a_text_that_comes_slower_than_speech_leaves_its_slot(tts, aside, monkeypatch):
    monkeypatch.setattr(step_loop, "TEXT_PATIENCE_S", 0.5)
    stream = tts.stream(text_open=True, voice=VOICE, seed=1)
    is_over = threading.Event()

    def feed_slowly() -> None:
        while not is_over.wait(0.4):
            stream.feed("a ")

    feeding = threading.Thread(target=feed_slowly)
    feeding.start()
    try:
        wait_until(lambda: stream.text.num_parts)
        assert len(aside(speak, tts, seed=2).codes)
        assert stream.finish_reason is None
    finally:
        is_over.set()
        feeding.join()
        stream.close()


def test_a_text_that_stalls_is_not_cut_while_no_stream_waits(tts, monkeypatch):
    monkeypatch.setattr(step_loop, "TEXT_PATIENCE_S", 0.0)
    speeches = (speak(tts, seed=seed, text_feed="stepwise") for seed in range(100))
    whole = next(speech for speech in speeches if speech.finish_reason == "length")
    stream = tts.stream(text_open=True, voice=VOICE, seed=whole.seed, max_frames=24)
    for word in ("Hello ", "there, ", "how are "):
        stream.feed(word)
        time.sleep(0.1)
    feed_and_end(stream, "you today?")
    assert stream.text.num_parts == 1 and np.array_equal(stream.codes, whole.codes)


def test_a_stream_that_has_said_all_of_its_text_ends_without_a_slot(tts, aside):
    with opened(tts, "Hello there. ") as stream:
        assert len(aside(speak, tts, seed=2).codes)
        with tts.stream(PARTS, voice=VOICE, text_format="pauses", chunk_frames=1) as holder:
            wait_until(lambda: holder.text.num_parts)
            stream.end_text()
            checked(aside(list, stream), tts, stream)
            assert holder.finish_reason is None


def test_a_reader_that_stalls_leaves_its_slot_and_gets_the_same_frames_later(tts, aside):
    options = {"voice": VOICE, "seed": 13, "text_format": "pauses", "chunk_frames": 1}
    alone = tts.synthesize(PARTS, **options)
    other = speak(tts, seed=2)
    with tts.stream(PARTS, **options) as stream:
        wait_until(lambda: len(stream._state.outbox) >= MAX_QUEUED_CHUNKS)
        num_parts = stream.text.num_parts
        assert np.array_equal(aside(speak, tts, seed=2).codes, other.codes)
        assert stream.text.num_parts == num_parts < 4  # it ended its part, and began no other
        speech = aside(Speech.collect, stream)
    assert np.array_equal(speech.codes, alone.codes)
    assert np.array_equal(speech.audio, alone.audio)


def test_streams_that_stall_in_turn_share_one_slot(tts, aside, monkeypatch):
    monkeypatch.setattr(step_loop, "TEXT_PATIENCE_S", 0.05)
    words = [f"{word} " for word in TEXT.split()]
    with contextlib.ExitStack() as stack:
        opened = (tts.stream(text_open=True, voice=VOICE, seed=seed) for seed in range(3))
        streams = [stack.enter_context(stream) for stream in opened]
        for word in words:
            for stream in streams:
                stream.feed(word)
            wait_until(lambda: not is_drawing(tts))  # on a busy machine it still says earlier words
            time.sleep(0.1)
        for stream in streams:
            stream.end_text()
        for stream in streams:
            checked(aside(list, stream), tts, stream)
        assert len({stream.text.num_tokens for stream in streams}) == 1
        assert max(stream.text.num_parts for stream in streams) > 1
