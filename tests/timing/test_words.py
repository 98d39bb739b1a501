"""Words as their scripts write them, and the spoken text of each."""

import pytest

from qwen_megakernel.text.reading.reader import Reading
from qwen_megakernel.timing.words import spoken_spans, word_spans


@pytest.mark.parametrize(
    "text",
    [
        "Hello there, my friend.",
        "  50+  times — 😀 ",
        "你好，世界。",
        "我用 Python 3 编程！",
        "",
        "\n\t",
    ],
)
def test_spans_are_the_words_of_the_text_in_order(text: str):
    spans = word_spans(text)
    words = [text[begin:end] for begin, end in spans]
    assert all(word == word.strip() and word for word in words)
    assert "".join("".join(words).split()) == "".join(text.split())
    assert spans == sorted(spans)


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("Pay $12.50 now.", ["Pay", "twelve dollars and fifty cents", "now."]),
        ("It is 3:05 pm.", ["It", "is", "three oh five", "p m."]),  # divided between both
        ("**Hello** there", ["Hello", "there"]),
        ("No numbers, here", ["No", "numbers,", "here"]),
    ],
)
def test_a_word_has_what_is_spoken_for_it(written: str, spoken: list[str]):
    reader = Reading().reader("on", "english", None)
    text = reader.whole(written)
    spans = word_spans(written)
    found = spoken_spans(reader.spoken.pieces, spans)
    assert [text[low:high].strip() for low, high in found] == spoken


def test_a_word_for_which_nothing_is_spoken_is_empty_and_in_its_place():
    written = "Yes\n\n***\n\nno"
    reader = Reading().reader("on", "english", None)
    text = reader.whole(written)
    spans = word_spans(written)
    (yes, rule, no) = spoken_spans(reader.spoken.pieces, spans)
    assert text[slice(*yes)].startswith("Yes") and text[slice(*no)] == "no"
    assert rule[0] == rule[1] and yes[1] <= rule[0] <= no[0]


def test_nothing_is_spoken_for_words_behind_the_last_piece():
    assert spoken_spans((), [(0, 3), (4, 5)]) == [(0, 0), (0, 0)]
