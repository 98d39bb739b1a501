"""Texts that the engine reads as words: codes, streams, options, errors."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from fixtures import module_fixture
from tiny_speech import fed

from qwen_megakernel import TTSEngine
from qwen_megakernel.errors import EmptyText, TextTooLong, UsageError
from qwen_megakernel.text.cleaning import MAX_CHARS

WRITTEN = "It is 3:05 pm, and **Dr. Smith** paid $12.50."
WORDS = "It is three oh five pee em, and doctor Smith paid twelve dollars and fifty cents."

tts = module_fixture(lambda: TTSEngine.from_pretrained("demo-voice", backend="cpu"))


def codes(tts: TTSEngine, text: str, **options: object) -> list[list[int]]:
    return tts.synthesize(text, seed=1, max_frames=12, **options).codes.tolist()


def test_a_written_text_has_the_codes_of_its_words(tts: TTSEngine):
    speech = tts.synthesize(WRITTEN, seed=1, max_frames=12)
    assert speech.spoken_text == WORDS
    assert speech.codes.tolist() == codes(tts, WORDS)
    assert speech.codes.tolist() != codes(tts, WRITTEN, normalize="off")


def test_a_text_without_expressions_has_the_codes_that_it_has_with_normalize_off(tts: TTSEngine):
    text = "Your table for two is ready."
    assert codes(tts, text) == codes(tts, text, normalize="off")


@pytest.mark.parametrize("size", [1, 5])
def test_a_text_in_pieces_has_the_words_and_codes_of_the_whole(tts: TTSEngine, size: int):
    pieces = [WRITTEN[begin : begin + size] for begin in range(0, len(WRITTEN), size)]
    stream = fed(tts, *pieces, seed=1, max_frames=12)
    list(stream)
    assert stream.text.spoken == WORDS
    assert stream.codes.tolist() == codes(tts, WRITTEN, text_feed="stepwise")


def test_the_last_expression_is_spoken_when_the_text_ends(tts: TTSEngine):
    with tts.stream(text_open=True, seed=1, max_frames=12) as stream:
        stream.feed("Pay $5")
        assert stream.text.spoken == "Pay "
        stream.end_text()
        assert stream.text.spoken == "Pay five dollars"
        list(stream)
        assert stream.codes.tolist() == codes(tts, "Pay five dollars", text_feed="stepwise")


def test_spoken_pieces_say_what_they_stand_for(tts: TTSEngine):
    with tts.stream("Pay $5 now", max_frames=1) as stream:
        pieces = [(piece.text, piece.start, piece.end) for piece in stream.text.pieces]
    assert pieces == [("Pay ", 0, 4), ("five dollars", 4, 6), (" now", 6, 10)]


def test_a_text_that_is_not_read_is_its_own_spoken_text(tts: TTSEngine):
    with tts.stream("Pay $5 now", max_frames=1, normalize="off") as stream:
        assert not stream.text.is_normalized
        assert stream.text.spoken == "Pay $5 now"
        assert [piece.end for piece in stream.text.pieces] == [10]
    with tts.stream(text_open=True, max_frames=1, normalize="off") as stream:
        stream.feed("Pay ")
        stream.feed("$5")
        assert stream.text.spoken == "Pay $5"
        stream.end_text()


def test_a_lexicon_of_a_request_is_used_for_it_alone(tts: TTSEngine, tmp_path: Path):
    path = tmp_path / "names.tsv"
    path.write_text("Qwen\tkwen\n")
    with tts.stream("Hello Qwen", max_frames=1, lexicon=path) as stream:
        assert stream.text.spoken == "Hello kwen"
    with tts.stream("Hello Qwen", max_frames=1) as stream:
        assert stream.text.spoken == "Hello Qwen"


def test_an_engine_has_a_lexicon_and_a_choice_of_its_own():
    options = {"backend": "torch", "warmup": False, "lexicon": {"Qwen": "kwen"}}
    with TTSEngine.from_pretrained("tiny-random", **options) as engine:
        with engine.stream("5 Qwen", max_frames=1) as stream:
            assert stream.text.spoken == "5 kwen"
        with engine.stream("5 Qwen", max_frames=1, normalize="on") as stream:
            assert stream.text.spoken == "five kwen"
    options |= {"normalize": "on", "lexicon": None}
    with TTSEngine.from_pretrained("tiny-random", **options) as engine:
        with engine.stream("5 Qwen", max_frames=1) as stream:
            assert stream.text.spoken == "five Qwen"
        with engine.stream("5 mars", max_frames=1, language="fr") as stream:
            assert stream.text.spoken == "cinq mars"


def test_the_released_models_read_numbers_themselves():
    with (
        TTSEngine.from_pretrained("tiny-random", backend="torch", warmup=False) as engine,
        engine.stream("5 kg", max_frames=1) as stream,
    ):
        assert stream.text.spoken == "5 kg"
        assert not stream.text.is_normalized


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalize": "yes"}, "normalize is 'yes'; known: auto, on, off."),
        ({"normalize": False}, "normalize is False; known: auto, on, off."),
        ({"lexicon": 5}, "lexicon is 5; it must be a file, a Lexicon or a dict."),
        ({"lexicon": {"a": 5}}, "lexicon, entry 1: the respelling is 5; it must be a string."),
        (
            {"lexicon": {"a": "b", "A": "c"}},
            "entry 2: 'A' is respelled 'c', but entry 1 respells 'a'",
        ),
        ({"lexicon": "none.tsv"}, "Cannot read the lexicon none.tsv: No such file"),
    ],
)
def test_what_can_never_work_is_refused_and_the_engine_goes_on(tts, options, message):
    with pytest.raises(UsageError) as refused:
        tts.stream("Hello", **options)
    assert message in str(refused.value)
    assert len(codes(tts, "Hello, how are you?")) == 12


def test_a_text_that_is_too_long_is_refused_before_it_is_read(tts: TTSEngine):
    text = "** " * (MAX_CHARS // 3) + "Hello"  # the text that is read would be short
    with pytest.raises(TextTooLong, match=f"20 00{len(text) - MAX_CHARS} characters"):
        tts.stream(text)


def test_a_text_of_nothing_but_marks_is_empty(tts: TTSEngine):
    with pytest.raises(EmptyText):
        tts.stream("**")


@pytest.mark.parametrize("text", ["9" * 10_000, "$" * 20_000, "\ud800 5 \ud800", "\u202e\u0301 5"])
def test_a_hostile_text_is_spoken_or_refused_and_the_next_is_spoken(tts: TTSEngine, text: str):
    try:
        with tts.stream(text, max_frames=1) as stream:
            list(stream)
    except UsageError as refused:
        assert isinstance(refused, EmptyText)
    assert len(codes(tts, "Hello, how are you?")) == 12


async def test_streams_are_read_beside_each_other(tts: TTSEngine):
    async def say(number: int) -> str:
        async with tts.stream(text_open=True, max_frames=2) as stream:
            for piece in ("It is ", str(number), " kg", "."):
                stream.feed(piece)
                await asyncio.sleep(0)
            stream.end_text()
            async for _ in stream:
                pass
            return stream.text.spoken

    said = await asyncio.gather(*map(say, (1, 2, 3)))
    assert said == ["It is one kilogram.", "It is two kilograms.", "It is three kilograms."]


def test_audio_of_a_read_text_is_sound(tts: TTSEngine):
    speech = tts.synthesize("3:05 pm", seed=3)
    assert speech.finish_reason == "eos"
    assert np.abs(speech.audio).max() > 0.05
