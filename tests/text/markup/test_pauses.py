"""Plain text with "[pause 1.5s]" in it: it has pauses, and no other markup has an effect."""

import markup_items
import pytest

from qwen_megakernel.text.markup.items import Item, Pause, Words
from qwen_megakernel.text.markup.pauses import MAX_MARK_CHARS, PauseParser

TEXT = "One [pause 1.5s] two [PAUSE 500 ms]three [pause x] [1] <break time='1s'/> & [pause 2s]"


def items_of(*pieces: str) -> tuple[list[Item], str | None]:
    return markup_items.items_of(PauseParser(), *pieces)


def test_marks_are_pauses_and_all_else_is_text():
    assert items_of(TEXT)[0] == [
        Words("One "),
        Pause(1.5),
        Words(" two "),
        Pause(0.5),
        Words("three [pause x] [1] <break time='1s'/> & "),
        Pause(2),
    ]


def test_a_text_cut_at_any_position_has_the_items_of_the_whole():
    whole = items_of(TEXT)
    for cut in range(len(TEXT) + 1):
        assert items_of(TEXT[:cut], TEXT[cut:]) == whole, cut
    assert items_of(*TEXT) == whole


@pytest.mark.parametrize("mark", ["[pause\t1s]", f"[pause{' ' * 25}1s]", f"[pause{' ' * 26}1s]"])
def test_a_mark_is_one_however_it_is_cut(mark: str):
    whole = items_of(mark)
    assert whole[0] == ([Pause(1)] if len(mark) <= MAX_MARK_CHARS + 2 else [Words(mark)])
    assert items_of(*mark) == whole


def test_a_bracket_holds_text_back_no_longer_than_a_mark_can_be():
    parser = PauseParser()
    assert parser.feed("see [the note") == [Words("see [the note")]
    assert parser.feed(" [pau") == [Words(" ")]
    assert parser.feed("sing") == [Words("[pausing")]
    assert parser.feed("[pause " + "1" * 40) == [Words("[pause " + "1" * 40)]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a\nbc [pause 11s] d", "[pause], line 2, column 4: a pause is 11s; the maximum is 10 s"),
        ("[pause 1.2.3s]", "[pause], line 1, column 1: a pause is '1.2.3s'; it must be a time"),
        ("[pause 10s]" * 7, "[pause], line 1, column 67: the pauses are longer than 60 s in total"),
    ],
)
def test_a_pause_that_cannot_be_is_refused_with_its_place(text: str, error: str):
    found, seen = items_of(text)
    assert seen and seen.startswith(error)
    assert items_of(*text) == (found, seen)


def test_negative_pauses_are_text():
    assert items_of("[pause -1s] [pause NaNs]")[0] == [Words("[pause -1s] [pause NaNs]")]
