"""SSML in the engine: silence exact to the sample, one voice and seed, errors at their place, times
of words, and texts without markup."""

import asyncio
from itertools import pairwise

import numpy as np
import pytest
from fixtures import module_fixture
from tiny_speech import fed
from tolerances import (
    PART_LEVEL_DB,
    PAUSED_SAMPLES,
    PAUSED_SECONDS,
    PCM16_STEP,
    ROUNDED_COUNT,
    ROUNDING_F64,
    WORD_AT_PAUSE_SECONDS,
    nearly,
)

from qwen_megakernel import AudioChunk, TTSEngine
from qwen_megakernel.errors import EmptyText, MarkupError, TextTooLong, UsageError
from qwen_megakernel.text.cleaning import MAX_CHARS

RATE = 24000
FIRST, SECOND = "Your table is ready.", "We will meet you at the hotel."
PAUSED = f'{FIRST}<break time="700ms"/>{SECOND}'
SSML = {"text_format": "ssml", "seed": 1}

tts = module_fixture(lambda: TTSEngine.from_pretrained("demo-voice", backend="cpu", num_slots=2))


def silences(samples: np.ndarray, at_least: int = 1000) -> list[tuple[int, int]]:
    """Runs of exact zeros: [(first sample, number of samples)]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], samples == 0, [0]]).astype(np.int8)))
    return [(int(a), int(b - a)) for a, b in edges.reshape(-1, 2) if b - a >= at_least]


def spoken(tts: TTSEngine, *pieces: str, **options: object) -> tuple[list[AudioChunk], object]:
    """The chunks of a text in pieces, and its stream."""
    stream = fed(tts, *pieces, **(SSML | options))
    return list(stream), stream


def test_a_text_with_markup_that_asks_for_nothing_has_the_samples_of_its_words(tts: TTSEngine):
    plain = tts.synthesize(FIRST, seed=1)
    marked = tts.synthesize(f"<speak><b>{FIRST}</b></speak>", **SSML)
    assert marked.audio.tobytes() == plain.audio.tobytes()
    assert marked.codes.tolist() == plain.codes.tolist()
    assert marked.words == plain.words and marked.segments == plain.segments


def test_plain_text_is_never_obeyed(tts: TTSEngine):
    text = 'One [pause 1s] <break time="1s"/> two'
    speech = tts.synthesize(text, seed=1, max_frames=12)
    assert "break" in speech.spoken_text and "pause" in speech.spoken_text
    assert not silences((speech.audio * 32768).astype(np.int16), RATE)


@pytest.mark.parametrize("rate", [None, 8000, 22050])
def test_a_pause_is_exact_silence_between_parts_that_keep_voice_and_seed(tts, rate):
    with tts.stream(PAUSED, sample_rate=rate, **SSML) as stream:
        chunks = list(stream)
    (pause,) = [chunk for chunk in chunks if chunk.pause_s]
    assert len(pause.samples) == round(0.7 * (rate or RATE)) and not pause.samples.any()
    assert (pause.num_frames, pause.pause_s) == (0, 0.7)
    assert stream.text.num_parts == 2 and stream.text.planned_parts == 2
    first = tts.synthesize(FIRST, seed=1)
    assert stream.codes[: len(first.codes)].tolist() == first.codes.tolist()
    ends = np.cumsum([len(chunk.samples) for chunk in chunks]) / (rate or RATE)
    assert [chunk.end_s for chunk in chunks] == nearly(ends.tolist())
    starts = np.cumsum([0, *(chunk.num_frames for chunk in chunks)])[:-1]
    assert [chunk.frame_index for chunk in chunks] == starts.tolist()


def test_a_pause_is_as_long_as_it_says_between_sound_and_sound(tts: TTSEngine):
    speech = tts.synthesize(PAUSED, **SSML)
    loud = np.flatnonzero(np.abs(speech.audio) > 10 ** (-40 / 20)) / RATE
    first_end = speech.segments[0].end
    before, behind = loud[loud < first_end + 0.1][-1], loud[loud > first_end + 0.4][0]
    assert behind - before == pytest.approx(0.7, abs=PAUSED_SECONDS)


def test_pauses_at_both_ends_are_heard(tts: TTSEngine):
    text = f'<break time="300ms"/>{FIRST}<break time="400ms"/><break time="100ms"/>'
    samples = (tts.synthesize(text, **SSML).audio * 32768).astype(np.int16)
    begin, end = silences(samples)
    assert begin[0] == 0 and begin[1] == pytest.approx(0.3 * RATE, abs=PAUSED_SAMPLES)
    assert end[0] + end[1] == len(samples)
    assert end[1] == pytest.approx(0.5 * RATE, abs=PAUSED_SAMPLES)


def test_speed_and_volume_are_those_of_their_part(tts: TTSEngine):
    text = f'{FIRST} <prosody rate="200%" volume="-12dB">{FIRST}</prosody>'
    with tts.stream(text, leading_silence=60000, **SSML) as stream:
        chunks = list(stream)
        parts = stream._state.spoken_parts
    fast = [chunk for chunk in chunks if chunk.manner.speed == 2]
    slow = [chunk for chunk in chunks if chunk.manner.speed == 1]
    num_frames = parts[1].end_frame - parts[1].first_frame
    num_samples = sum(len(chunk.samples) for chunk in fast)
    assert sum(len(chunk.samples) for chunk in slow) == parts[0].end_frame * 1920
    assert num_samples == pytest.approx(num_frames * 1920 / 2, abs=ROUNDED_COUNT)
    levels = [
        np.sqrt(np.mean(np.concatenate([c.samples for c in each]).astype(float) ** 2))
        for each in (slow, fast)
    ]
    assert 20 * np.log10(levels[1] / levels[0]) == pytest.approx(-12, abs=PART_LEVEL_DB)


def test_the_speed_of_a_part_is_times_that_of_the_request(tts: TTSEngine):
    text = f'<prosody rate="200%">{FIRST}</prosody>'
    fast = tts.synthesize(text, speed=1.5, **SSML)
    plain = tts.synthesize(FIRST, seed=1, speed=3)
    assert fast.audio.tobytes() == plain.audio.tobytes()


def test_a_language_is_that_of_its_part(tts: TTSEngine, monkeypatch):
    asked: list[str | None] = []
    build = tts._prompts.build
    monkeypatch.setattr(
        tts._prompts,
        "build",
        lambda ids, request, **options: (
            asked.append(request.language) or build(ids, request, **options)
        ),
    )
    text = 'One two. <lang xml:lang="en-GB">Three four.</lang> <lang xml:lang="sw">Tano.</lang>'
    speech = tts.stream(text, **SSML)
    list(speech)
    assert asked == ["auto", "english", "auto"]
    assert any("'sw'" in warning for warning in speech.text.warnings)


def test_words_are_those_that_the_user_wrote_with_the_pause_between_them(tts: TTSEngine):
    text = f'<s>It is 3:05 pm</s> <break time="2s"/><prosody rate="fast">{SECOND}</prosody>'
    speech = tts.synthesize(text, **SSML)
    words = speech.words
    assert [word.word for word in words] == f"It is 3:05 pm {SECOND}".split()
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times) and times[-1] <= len(speech.audio) / RATE
    ((first, length),) = silences((speech.audio * 32768).astype(np.int16), 2 * RATE - 1)
    assert words[3].end <= (first + length) / RATE - 2 + WORD_AT_PAUSE_SECONDS
    assert words[4].start >= (first + 2 * RATE) / RATE - WORD_AT_PAUSE_SECONDS
    # <s> ends a sentence even without a punctuation mark.
    assert [segment.text for segment in speech.segments] == ["It is 3:05 pm", SECOND]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_text_in_pieces_has_codes_pauses_and_words_of_one_piece(tts: TTSEngine, size: int):
    text = f'{PAUSED} <prosody rate="fast">It is 3:05.</prosody>'
    whole, whole_stream = spoken(tts, text)
    pieces = [text[begin : begin + size] for begin in range(0, len(text), size)]
    chunks, stream = spoken(tts, *pieces)
    assert stream.codes.tolist() == whole_stream.codes.tolist()
    assert [chunk.pause_s for chunk in chunks if chunk.pause_s] == [0.7]
    samples = [np.concatenate([chunk.samples for chunk in each]) for each in (chunks, whole)]
    assert samples[0].tobytes() == samples[1].tobytes()
    assert [word.word for word in stream.times.words] == f"{FIRST} {SECOND} It is 3:05.".split()
    assert stream.text.written == whole_stream.text.written


async def test_a_coroutine_hears_the_same(tts: TTSEngine):
    awaited = [chunk async for chunk in tts.astream(PAUSED, **SSML)]
    with tts.stream(PAUSED, **SSML) as stream:
        chunks = list(stream)
    assert [chunk.samples.tobytes() for chunk in awaited] == [c.samples.tobytes() for c in chunks]


def test_plain_text_with_pauses_has_them(tts: TTSEngine):
    text = f"{FIRST}[pause 0.7s]{SECOND}"
    speech = tts.synthesize(text, text_format="pauses", seed=1)
    assert speech.audio.tobytes() == tts.synthesize(PAUSED, **SSML).audio.tobytes()


# ---- faults --------------------------------------------------------------------------------------


def test_broken_markup_of_a_whole_text_is_refused_before_any_sound(tts: TTSEngine):
    with pytest.raises(MarkupError, match="SSML, line 2, column 3: mismatched tag"):
        tts.stream("<b>One\n  </i>", **SSML)
    assert tts.num_active == 0


def test_broken_markup_of_a_text_in_pieces_ends_the_stream_behind_what_is_spoken(tts: TTSEngine):
    text = f'{FIRST} <break time="500ms"/>{SECOND} <break time="-1s"/> and more'
    for pieces in ([text], [*text]):
        stream = tts.stream(text_open=True, **SSML)
        for piece in pieces:
            stream.feed(piece)
        stream.feed("and more")  # ignored, because the text has ended
        chunks = []
        with pytest.raises(MarkupError, match=r"SSML, line 1, column 74: break time is '-1s'"):
            chunks.extend(stream)
            for chunk in stream:
                chunks.append(chunk)
        assert stream.finish_reason == "error"
        assert [word.word for word in stream.times.words] == f"{FIRST} {SECOND}".split()


def test_what_came_before_the_fault_has_the_samples_it_has_without_it(tts: TTSEngine):
    plain, _ = spoken(tts, FIRST)
    stream = fed(tts, f"{FIRST} <", **SSML)
    heard = []
    with pytest.raises(MarkupError, match="line 1, column 22: the text ends inside a tag"):
        for chunk in stream:
            heard.append(chunk.samples)
    assert np.concatenate(heard).tobytes() == np.concatenate([c.samples for c in plain]).tobytes()


def test_an_unclosed_tag_is_named_at_the_end(tts: TTSEngine):
    stream = fed(tts, f'<prosody rate="fast">{FIRST}', **SSML)
    with pytest.raises(MarkupError, match="line 1, column 1: <prosody> is not closed"):
        list(stream)


def test_a_text_of_pauses_alone_is_empty(tts: TTSEngine):
    with pytest.raises(EmptyText):
        tts.stream('<break time="1s"/>', **SSML)
    with pytest.raises(EmptyText):
        spoken(tts, '<break time="200ms"/>')


def test_a_long_text_with_markup_is_refused(tts: TTSEngine):
    with pytest.raises(TextTooLong):
        tts.stream("<b/>" * MAX_CHARS, **SSML)


@pytest.mark.parametrize("text_format", ["html", "", 3, False])
def test_another_format_is_refused(tts: TTSEngine, text_format: object):
    with pytest.raises(UsageError, match=r"text_format is .*; known: plain, pauses, ssml"):
        tts.stream(FIRST, text_format=text_format)


def test_no_format_is_the_default(tts: TTSEngine):
    stream = tts.stream(FIRST, text_format=None, max_frames=1)
    assert stream.text.written == FIRST
    stream.close()


BAD = {
    "nesting": "<a>" * 1000,
    "bomb": '<!DOCTYPE a [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><speak>&b;</speak>',
    "endless": '<break time="999999s"/>',
    "nan": '<prosody rate="nan">a</prosody>',
    "cut": "One <break time=",
}


@pytest.mark.parametrize("name", BAD)
def test_the_engine_goes_on_behind_bad_markup(tts: TTSEngine, name: str):
    with pytest.raises(MarkupError):
        tts.stream(BAD[name], **SSML)
    with pytest.raises(MarkupError):
        spoken(tts, *BAD[name])
    assert tts.synthesize(FIRST, seed=1, max_frames=4).finish_reason == "length"
    assert tts.num_active == 0


def test_words_of_a_closed_stream_end_where_its_sound_ended(tts: TTSEngine):
    text = f'{FIRST}<break time="1s"/><prosody rate="slow">{SECOND}</prosody>'
    with tts.stream(text, chunk_frames=1, **SSML) as stream:  # of which 10 may wait
        heard_s = 0.0
        for chunk in stream:
            heard_s = chunk.end_s
            if chunk.manner.speed < 1:
                stream.close()
        words = stream.times.words
    assert stream.finish_reason == "cancelled"
    assert words[-1].end <= heard_s + ROUNDING_F64
    assert [word.word for word in words] == f"{FIRST} {SECOND}".split()[: len(words)]
    assert all(a.end <= b.start for a, b in pairwise(words))


def test_streams_with_and_without_pauses_do_not_change_each_other(tts: TTSEngine):
    with tts.stream(PAUSED, **SSML) as stream:
        alone = np.concatenate([chunk.samples for chunk in stream])

    async def both() -> list[list[AudioChunk]]:
        async def read(text: str, **options: object) -> list[AudioChunk]:
            return [chunk async for chunk in tts.astream(text, **options)]

        return await asyncio.gather(read(PAUSED, **SSML), read(SECOND, seed=5))

    paused, _ = asyncio.run(both())
    samples = np.concatenate([chunk.samples for chunk in paused])
    # PyTorch sums a batch of two in another order on some CPUs; native code never does.
    most = 0 if tts.backend == "cpu" else PCM16_STEP
    assert np.abs(alone.astype(int) - samples).max() <= most
