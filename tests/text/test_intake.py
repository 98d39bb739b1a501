"""The parts of one request's text, which comes whole or in pieces."""

import pytest
import torch
from torch import Tensor

from qwen_megakernel.errors import EmptyText, MarkupError, TextTooLong
from qwen_megakernel.records import TextIds
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.cleaning import MAX_CHARS, clean, visible
from qwen_megakernel.text.intake import TextIntake, new_intake
from qwen_megakernel.text.parts import (
    MAX_PART_CHARS,
    MIN_PART_CHARS,
    WAITING_PART_CHARS,
    TextEncoding,
)
from qwen_megakernel.text.reading.reader import Reading
from qwen_megakernel.text.reading.sentence_ends import WINDOW
from qwen_megakernel.text.sentences import pack_sentences, unspeakable

SENTENCE = "The quick brown fox jumps over the lazy dog, again and again. "  # 62 characters
MARKED = '<speak>One. <break time="1s"/> <prosody rate="slow">Two.</prosody></speak>'


def encode(text: str) -> Tensor:
    return torch.tensor([ord(char) for char in text])


class Letters:
    def feed(self, piece: str) -> Tensor:
        return encode(piece)

    def end(self) -> Tensor:
        return encode("")


def intake(text: str | None = None, *, waits: bool = False, **options: str) -> TextIntake:
    """Return an intake; with a text, it has taken it. With `waits`, its parts grow unseen."""
    nothing = TextIds(encode(""), encode(""))
    open_part_chars = WAITING_PART_CHARS if waits else (250, 500)
    request = SpeechOptions(**options)  # type: ignore[arg-type]
    encoding = TextEncoding(
        request, nothing, encode, None if waits else Letters, open_part_chars=open_part_chars
    )
    is_whole = text is not None
    made = new_intake(
        request, lambda _: encoding, Reading(), is_whole=is_whole, languages=["english"]
    )
    if text is not None:
        made.feed(text)
        made.end()
    return made


def in_pieces(text: str, size: int, **options: bool | str) -> TextIntake:
    made = intake(**options)  # type: ignore[arg-type]
    for place in range(0, len(text), size):
        made.feed(text[place : place + size])
    made.end()
    return made


def spoken(made: TextIntake) -> list[tuple[str, str, int, float]]:
    """Return ids, as text, and text, start and pause of each part."""
    return [
        ("".join(map(chr, part.take().tolist())), part.text, part.start, part.pause_s)
        for part in made.parts
    ]


def test_a_whole_text_is_cleaned_cut_into_equal_parts_and_encoded():
    text = f" \x00{SENTENCE * 20}\n"
    made = intake(text)
    expected = pack_sentences(clean(text), MIN_PART_CHARS, MAX_PART_CHARS)
    assert made.num_parts == len(expected) == 5 and made.is_closed
    start = 0
    for part, words in zip(made.parts, expected, strict=True):
        assert (part.text, part.start, part.closed) == (words, start, True)
        assert torch.equal(part.take(), encode(words))
        start += len(visible(words))
    assert intake(text, split="off").num_parts == 1


@pytest.mark.parametrize("text", ["", " \n\t", "...", "\x00\ud800", "!? «»"])
def test_a_whole_text_without_a_word_is_refused(text):
    with pytest.raises(EmptyText):
        intake(text)


def test_too_long_a_text_is_refused_before_it_is_encoded():
    for text, normalize in (("a" * (MAX_CHARS + 1), "off"), ("1234 " * (MAX_CHARS // 5), "on")):
        with pytest.raises(TextTooLong, match="the limit is 20 000"):
            intake(text, normalize=normalize, language="english")


def test_pauses_and_manners_are_parts_of_their_own():
    parts = intake(MARKED, text_format="ssml").parts
    assert [(part.text, part.start, part.pause_s) for part in parts] == [
        ("One.", 0, 0.0),
        ("", 4, 1.0),
        ("Two.", 4, 0.0),
    ]
    assert parts[2].manner.speed < parts[0].manner.speed == 1


def test_broken_markup_is_raised_for_a_whole_text_and_kept_for_an_open_one():
    with pytest.raises(MarkupError):
        intake("<speak>Good. <x", text_format="ssml")
    made = in_pieces("<speak>Good. <x></speak> Never.", 3, text_format="ssml")
    assert isinstance(made.error, MarkupError) and made.is_closed
    assert [part.text for part in made.parts] == ["Good. "]
    made.feed("more")
    assert len(made.parts) == 1


def test_the_parts_of_an_open_text_grow_while_they_are_read():
    made = intake()
    made.feed("Hel")
    (part,) = made.parts
    assert (part.text, part.closed, len(part.take())) == ("Hel", False, 3)
    made.feed("lo.")
    assert torch.equal(part.take(), encode("lo."))
    made.end()
    assert part.closed and made.is_closed and made.num_parts is None


def test_a_voice_that_needs_a_whole_part_sees_no_other():
    made = intake(waits=True)
    made.feed(SENTENCE[:-1])
    assert not made.parts
    made.feed(" It")
    (part,) = made.parts
    assert (part.text, part.closed) == (SENTENCE.strip(), True)
    made.feed(" is cold")
    assert len(made.parts) == 1
    made.end()
    assert made.parts[1].text == "It is cold" and made.parts[1].start == len(visible(SENTENCE))


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_the_pieces_of_an_open_text_change_nothing(waits, size):
    plain = SENTENCE * 4 + "… " * 30 + "and so on " * 90 + "「好。」" * 20
    for text, options in ((plain, {}), (MARKED, {"text_format": "ssml"})):
        whole = spoken(in_pieces(text, len(text), waits=waits, **options))
        assert spoken(in_pieces(text, size, waits=waits, **options)) == whole
        assert all(unspeakable(part[1]) or part[0] for part in whole)


@pytest.mark.parametrize("run", ['"', "(", "- ", "• "])
def test_a_run_of_marks_behind_a_sentence_is_not_held_back(run):
    made, text = intake(), SENTENCE * 5 + run * 500
    made.feed(text)
    assert sum(len(part.text) for part in made.parts) > len(text) - WINDOW


def test_a_waiting_part_has_a_limit():
    made = intake(waits=True)
    made.feed("a" * MAX_CHARS)
    with pytest.raises(TextTooLong):
        made.feed("a")


def test_an_endless_word_is_refused_once_and_the_text_before_it_is_spoken():
    made = intake(waits=True)
    made.feed("Hello there. ")
    with pytest.raises(TextTooLong, match=r"20 0.. characters"):
        made.feed("x" * (MAX_CHARS + 1))
    made.end()
    assert made.is_closed
    assert "".join(part.text for part in made.parts).startswith("Hello there.")
