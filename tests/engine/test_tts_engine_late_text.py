"""The engine: text that arrives while audio is delivered."""

import time
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from tiny_speech import TEXT, VOICE, feed_and_end, speak
from waiting import wait_until

from qwen_megakernel.engine.stream_state import Phase, StreamState
from qwen_megakernel.errors import EmptyText, UsageError
from qwen_megakernel.text.intake import TextIntake
from qwen_megakernel.text.parts import OPEN_PART_CHARS, TextEncoding, TextPart
from qwen_megakernel.text.request_text import RequestText


@pytest.fixture(scope="module")
def stepwise(tts):
    """A whole text fed stepwise that neither ends at once nor within 24 frames."""
    for seed in range(100):
        speech = speak(tts, seed=seed, text_feed="stepwise")
        if speech.finish_reason == "length":
            return speech
    raise AssertionError("every seed ends early")


@pytest.mark.parametrize("pieces", [["Hello there, how are you today?"], list(TEXT)])
def test_fed_text_gives_the_codes_of_whole_text(tts, stepwise, pieces):
    stream = tts.stream(text_open=True, voice=VOICE, seed=stepwise.seed, max_frames=24)
    for piece in pieces:
        stream.feed(piece)
    assert np.array_equal(feed_and_end(stream).codes, stepwise.codes)


def test_audio_flows_before_the_text_is_complete_and_then_stalls(tts, stepwise):
    stream = tts.stream(text_open=True, voice=VOICE, seed=stepwise.seed, max_frames=24)
    stream.feed("Hello there, how are ")
    assert next(stream).num_frames == 1
    slot, decoder = tts._loop.table.active()[0].index, tts._loop.stages.decoder
    wait_until(lambda: not tts._loop.run(lambda: decoder.frames_ready(slot)))  # between two steps
    drawn = tts._loop.table.active()[0].num_frames
    time.sleep(0.1)
    assert tts._loop.table.active()[0].num_frames == drawn  # the stream stalls and adds no pad
    feed_and_end(stream, "you today?")
    assert np.array_equal(stream.codes, stepwise.codes)


@pytest.fixture(scope="module")
def early(tts):
    """A whole text fed stepwise whose end token is drawn before half of it is read."""
    return next(
        speech
        for speech in (speak(tts, seed=seed, text_feed="stepwise") for seed in range(100))
        if speech.finish_reason == "eos" and len(speech.codes) < 5
    )


def test_text_that_comes_while_the_last_frames_become_audio_is_a_new_part(tts, early, monkeypatch):
    take_frames = StreamState.take_frames

    def take_frames_and_feed(self, codes, ended):
        take_frames(self, codes, ended)
        if self.phase is Phase.DRAINING and self.num_parts == 1:
            assert self.pending
            stream.feed("you today?")
            stream.end_text()

    monkeypatch.setattr(StreamState, "take_frames", take_frames_and_feed)
    as_on_a_gpu = replace(tts._loop.stages, is_asynchronous=True)
    monkeypatch.setattr(tts._loop._delivery, "_stages", as_on_a_gpu)
    stream = tts.stream(
        text_open=True, voice=VOICE, seed=early.seed, max_frames=24, first_chunk_frames=10
    )
    stream.feed("Hello there, how are ")
    assert list(stream) and stream.finish_reason in ("eos", "length")
    assert stream.text.num_parts == 2
    assert len(stream.codes) > len(early.codes)


def test_text_that_comes_after_the_end_token_is_spoken_as_a_new_part(tts, early):
    stream = tts.stream(text_open=True, voice=VOICE, seed=early.seed, max_frames=24)
    stream.feed("Hello there, how are ")
    wait_until(lambda: stream.text.num_parts and tts._loop.table.waiting)  # for text
    feed_and_end(stream, "you today?")
    assert stream.text.num_parts == 2
    assert np.array_equal(stream.codes[: len(early.codes)], early.codes)
    assert len(stream.codes) > len(early.codes)


def test_text_may_come_at_the_moment_when_the_loop_looks_for_it(tts):
    stream = tts.stream(text_open=True, voice=VOICE, seed=6, max_frames=4)
    parts, words = stream._state.text.parts, tts._tokenizer.encode(TEXT).body

    class Seen(deque):
        def __bool__(self):  # as if a thread fed text between two bytecodes of the loop
            if len(parts) == 1:
                parts.append(TextPart.whole(words))
            return False

    empty = TextPart(Seen())
    parts.append(empty)
    tts._loop.wake()
    wait_until(lambda: len(parts) == 2)
    empty.closed = True
    stream.end_text()
    assert list(stream) and stream.finish_reason in ("eos", "length")
    assert len(stream.codes)


def test_a_long_open_text_is_cut_at_sentences(tts):
    sentence = "This is one of many sentences that follow each other without an end. "
    stream = tts.stream(text_open=True, voice=VOICE, seed=6, max_frames=60)
    for _ in range(3 * OPEN_PART_CHARS[0] // len(sentence)):
        stream.feed(sentence)
    assert len(stream._state.text.parts) >= 2
    feed_and_end(stream)
    assert stream.finish_reason in ("eos", "length")


LONG_WINDED = "and so it goes on and on and on until nobody listens any more "


@pytest.mark.parametrize(
    ("text", "num_parts"),
    [
        (
            (LONG_WINDED * 5)[: OPEN_PART_CHARS[0] - 10]
            + 'he said: "Stop it now." Then he left. ' * 9,
            3,
        ),
        (LONG_WINDED * 16 + "until it ends. " + LONG_WINDED, 3),  # no end for 1000 characters
        ("他说「够了。」" * 60 + LONG_WINDED * 5 + '(really?)" He left. ' * 30, 7),
        ("然后他就走了，" * 100, 4),  # as long as 2000 Latin characters, without a sentence end
        ("." * 300 + ")" * 300 + " Hm. " * 300, 7),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 7, 100, 400])
def test_where_an_open_text_is_cut_does_not_depend_on_its_pieces(tts, text, num_parts, size):
    def parts(pieces):
        encoding = TextEncoding(None, None, tts._tokenizer.ids, tts._tokenizer.stream)
        intake = TextIntake(RequestText(), encoding, is_whole=False)
        for piece in pieces:
            intake.feed(piece)
        intake.end()
        return [part.take().tolist() for part in intake.parts]

    pieces = parts(text[first : first + size] for first in range(0, len(text), size))
    assert pieces == parts([text])
    assert len(pieces) == num_parts


def test_an_open_text_without_a_word_is_an_error_of_the_stream(tts):
    stream = tts.stream(text_open=True, voice=VOICE)
    with pytest.raises(EmptyText):
        feed_and_end(stream, " ... ")
    assert stream.finish_reason == "error"


def test_feeding_a_complete_text_is_refused(tts):
    with tts.stream(TEXT, voice=VOICE, max_frames=2) as stream, pytest.raises(UsageError):
        stream.feed("more")
