"""The text of a request without markup: the written text, the spoken text, and warnings."""

from collections.abc import Sequence

import pytest

from qwen_megakernel.text.reading.reader import Reading
from qwen_megakernel.text.reading.spoken import Piece
from qwen_megakernel.text.request_text import RequestText
from qwen_megakernel.text.unreadable import TextWatch


def read(*pieces: str) -> tuple[RequestText, Sequence[object]]:
    """Return a text that was read as words in pieces, and the steps that it made."""
    made = RequestText(Reading().reader("on", "english", None))
    return made, [step for piece in pieces for step in made.feed(piece)] + [*made.end()]


def test_a_text_without_a_reader_is_spoken_as_it_is_written():
    made = RequestText()
    assert [*made.feed(" It is\x00 3:05. "), *made.end()] == [" It is\x00 3:05. "]
    assert not made.is_read
    assert made.written == made.spoken.text == " It is\x00 3:05. "
    assert made.spoken.pieces == (Piece(made.written, 0, 14, is_kept=True),)


def test_nothing_is_spoken_for_an_empty_text():
    made = RequestText()
    assert [*made.feed(""), *made.end()] == [""]
    assert made.spoken.pieces == ()


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_reader_makes_words_of_it_however_it_is_cut(size: int):
    text = "It is 3:05 pm."
    made, steps = read(*(text[begin : begin + size] for begin in range(0, len(text), size)))
    assert made.is_read and made.written == text
    assert "".join(map(str, steps)) == made.spoken.text == "It is three oh five p m."


def test_warnings_are_taken_once_and_each_piece_is_looked_at_once(monkeypatch):
    watch = TextWatch(["english"])
    looked, look = [], watch.look
    monkeypatch.setattr(watch, "look", lambda text: looked.append(text) or look(text))
    made = RequestText(watch=watch)
    for pieces in (("Say ", "你"), ("好",)):
        for piece in pieces:
            list(made.feed(piece))
        assert [warning[13:35] for warning in made.take_warnings()] == (
            ["Chinese characters (你)"] if "你" in pieces else []
        )
    assert looked == ["Say 你", "好"]
