"""The times of words in streams of the demonstration voice."""

import pytest
from fixtures import module_fixture
from tiny_speech import fed, feed_and_end

from qwen_megakernel import TTSEngine
from qwen_megakernel.engine import step_loop

WRITTEN = "It is 3:05 pm, and **Dr. Smith** paid $12.50."
LONG = "Your table for two is ready. We will meet you at the hotel on Friday. " * 6

tts = module_fixture(lambda: TTSEngine.from_pretrained("demo-voice", backend="cpu"))


def test_a_speech_has_the_words_that_were_written_in_order_and_within_its_length(tts: TTSEngine):
    speech = tts.synthesize(WRITTEN, seed=1)
    words = speech.words
    assert [word.word for word in words] == WRITTEN.split()
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times) and times[-1] <= len(speech.audio) / speech.sample_rate
    assert all(word.start < word.end for word in words)
    (segment,) = speech.segments
    assert (segment.text, segment.start, segment.end) == (WRITTEN, words[0].start, words[-1].end)


def test_words_of_later_parts_are_in_the_samples_of_those_parts(tts: TTSEngine):
    with tts.stream(LONG, seed=1) as stream:
        chunks = list(stream)
        words, segments = stream.times.words, stream.times.segments
        parts = stream._state.spoken_parts
    assert len(parts) > 1 and [word.word for word in words] == LONG.split()
    assert len(segments) == 12
    place = 0
    for part in parts:
        count = len(part.text.split())
        mine, place = words[place : place + count], place + count
        first_s, end_s = (tts.seconds_per_frame * at for at in (part.first_frame, part.end_frame))
        assert all(first_s <= word.start and word.end <= end_s for word in mine)
    assert place == len(words)
    assert words[-1].end <= sum(len(chunk.samples) for chunk in chunks) / tts.sample_rate


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_text_in_pieces_has_all_its_words(tts: TTSEngine, size: int):
    text = f"{WRITTEN} {LONG}"[:400]
    pieces = [text[begin : begin + size] for begin in range(0, len(text), size)]
    stream = fed(tts, *pieces, seed=1)
    list(stream)
    assert [word.word for word in stream.times.words] == text.split()


def test_a_part_that_is_spoken_in_two_pieces_has_the_words_of_both_in_their_samples(
    tts: TTSEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(step_loop, "TEXT_PATIENCE_S", 0.1)
    first, second = "It is cold today. ", "We will meet you at the hotel."
    with tts.stream(text_open=True, seed=1) as stream:
        stream.feed(first)
        tts.synthesize("Hello there.", seed=1)  # needs the slot
        piece = len(stream._state.codes)
        feed_and_end(stream, second)
        words = stream.times.words
    assert [word.word for word in words] == f"{first}{second}".split()
    assert stream.text.num_parts == 2 and 0 < piece < len(stream._state.codes)
    # The encoder of an open text holds the last word back.
    assert all(word.end <= piece * tts.seconds_per_frame for word in words[:3])
    assert all(word.start >= (piece - 1) * tts.seconds_per_frame for word in words[4:])


def test_a_closed_stream_ends_where_its_sound_ended(tts: TTSEngine):
    with tts.stream(LONG, seed=1) as stream:
        next(stream)
        for chunk in stream:
            if chunk.frame_index > 20:
                stream.close()
        words = stream.times.words
    heard_s = stream.times._heard_s
    assert 0 < len(words) < len(LONG.split())
    assert words[-1].end <= heard_s
    assert [word.word for word in words] == LONG.split()[: len(words)]


def test_a_speech_that_is_cut_off_has_no_words_behind_its_end(tts: TTSEngine):
    speech = tts.synthesize(LONG, seed=1, max_frames=30)
    assert speech.finish_reason == "length"
    assert 2 <= len(speech.words) <= 14
    assert speech.words[-1].end <= 30 * tts.seconds_per_frame


def test_what_settles_while_a_stream_is_read_is_all_in_the_end(tts: TTSEngine):
    words, segments = [], []
    with tts.stream(LONG, seed=1) as stream:
        for _ in stream:
            more = stream.times.take()
            words, segments = words + more[0], segments + more[1]
        more = stream.times.take()
        words, segments = words + more[0], segments + more[1]
        assert words == stream.times.words and segments == stream.times.segments
    assert [word.word for word in words] == LONG.split()


def test_saving_subtitles_of_a_speech(tts: TTSEngine, tmp_path):
    speech = tts.synthesize("Hello there.", seed=1)
    speech.save_subtitles(tmp_path / "out.vtt")
    assert "Hello there." in (tmp_path / "out.vtt").read_text()
