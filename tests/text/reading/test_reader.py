"""A text in pieces is read like the whole text, and each spoken piece has its place in the text."""

import re
from collections.abc import Sequence
from itertools import pairwise

import pytest
from cpu_time import cpu_seconds
from hypothesis import example, given, settings
from hypothesis import strategies as st
from text_samples import any_texts, tricky_texts

from qwen_megakernel.errors import UsageError
from qwen_megakernel.text.cleaning import drop_controls
from qwen_megakernel.text.reading.languages import LANGUAGES
from qwen_megakernel.text.reading.lexicon import Entry, Lexicon
from qwen_megakernel.text.reading.reader import Reading, TextReader
from qwen_megakernel.text.reading.segments import MAX_OPEN_CHARS

READING = Reading()
LEXICON = Lexicon(
    [
        Entry("New York", "Noo York"),
        Entry("New York City", "En Why See"),
        Entry("GPT", "gee pee tee"),
        Entry("北京", "Beijing"),
        Entry("US", "you ess", is_exact=True),
    ]
)
EXPRESSIONS = """
    12 $5 .50 3:05 pm a.m. March 2026 5, St. Dr. No. X km/h kg % 1/2 - ** _a_ [b](https://x.io/1) `
    lb. sq ft 2h 15m 12" x 27" Jan p.m. - am § ₂ ³ >= !=
    # | US New York City GPT 北京 年3月 시 мая é ½ e\u0301 \ud800 @ a@b.co million 4111 1111 & + =
    ( ) ' " — … , : ; / * ~ ∞ € 1,234 -5 0 VIII
"""
pieces_of_text = st.lists(st.sampled_from([*EXPRESSIONS.split(), " ", " ", "\n"]), max_size=40)
texts = st.one_of(
    pieces_of_text.map("".join), pieces_of_text.map(" ".join), tricky_texts, any_texts
)


def reader(lexicons: Sequence[Lexicon] = ()) -> TextReader:
    made = READING.reader("on", "auto", lexicons[0] if lexicons else None)
    assert made
    return made


def in_pieces(text: str, cuts: Sequence[int], made: TextReader) -> str:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return "".join(made.feed(text[a:b]) for a, b in pairwise(places)) + made.end()


@settings(max_examples=400, deadline=None)
@given(texts, st.lists(st.integers(0, 200), max_size=12), st.booleans())
@example("5 March 2026", [1, 3], False)
@example("New York City", [8], True)
@example("xGPT GPT", [1], True)
@example("x" * 70 + "年5 kg", [30], False)
@example("12 яблок", [2], False)
def test_any_cut_of_a_text_gives_the_words_of_the_whole(
    text: str, cuts: list[int], has_lexicon: bool
):
    lexicons = [LEXICON] if has_lexicon else []
    whole, cut = reader(lexicons), reader(lexicons)
    assert in_pieces(text, cuts, cut) == whole.whole(text)
    assert cut.spoken.pieces == whole.spoken.pieces
    assert whole.spoken.text == "".join(piece.text for piece in whole.spoken.pieces)


@settings(max_examples=200, deadline=None)
@given(texts)
def test_pieces_stand_for_the_characters_of_the_text_in_order(text: str):
    made = reader([LEXICON])
    made.whole(text)
    start = end = 0
    for piece in made.spoken.pieces:
        assert start <= piece.start <= piece.end <= len(text)
        assert end <= piece.end
        assert not piece.is_kept or len(piece.text) == piece.end - piece.start
        start, end = piece.start, piece.end


def test_a_subscript_in_an_address_is_read_as_its_digit():
    assert reader().whole("www.a.com/₂") == "w w w dot a dot com slash two"


def test_a_spoken_piece_knows_what_it_stands_for():
    text = "**Pay** $12.50 to New York"
    made = reader([LEXICON])
    assert made.whole(text) == "Pay twelve dollars and fifty cents to Noo York"
    found = [(piece.text, text[piece.start : piece.end]) for piece in made.spoken.pieces]
    assert found == [
        ("Pay", "Pay"),
        (" ", " "),
        ("twelve dollars and fifty cents", "$12.50"),
        (" to ", " to "),
        ("Noo York", "New York"),
    ]


ABBREVIATIONS = {"vs", "etc", "sq"}.union(*(each().abbreviations for each in LANGUAGES.values()))
# Letters that become plain ones: of East Asian keyboards, and of mathematics.
OTHER_FORMS = "".join(map(chr, (*range(0xFF21, 0xFF5B), *range(0x1D400, 0x1D800))))
LETTERS = st.characters(
    categories=("Ll", "Lo", "Zs"), include_characters=",!?'", exclude_characters="π" + OTHER_FORMS
)


@settings(max_examples=200, deadline=None)
@given(st.text(LETTERS).filter(lambda text: not ABBREVIATIONS & {*re.findall(r"\w+", text)}))
def test_a_text_without_expressions_stays_as_it_is(text: str):
    assert reader().whole(text) == drop_controls(text)


def test_an_expression_waits_for_the_next_word_and_no_longer():
    made = reader()
    assert made.feed("It is 3:05") == "It is "
    assert made.feed(" p") == ""
    assert made.feed("m") == ""  # it could become "pmx"
    assert made.feed(" ") == "three oh five p m "
    assert made.feed("now 5") == "now "
    assert made.feed(" apples ") == "five apples "


def test_plain_words_are_handed_on_when_they_are_whole():
    made = reader()
    assert [made.feed(piece) for piece in ("Hel", "lo ", "wor", "ld ")] == [
        "",
        "Hello ",
        "",
        "world ",
    ]


def test_an_expression_is_held_back_24_characters_past_its_first_digit_and_left_as_it_is():
    made = reader()
    word = "1a" * (MAX_OPEN_CHARS // 2) + "1"
    assert made.feed(word[:-1]) == ""
    assert made.feed("1") == word
    assert made.feed("234 5 ") == "234 "
    assert made.end() == "five "


@pytest.mark.parametrize("number", ["1" * 25, "1" * 256, "111," * 9 + "111", "111 " * 9 + "111"])
def test_the_digits_of_a_longer_number_are_said_one_by_one(number: str):
    made = reader()
    words = "".join(made.feed(char) for char in f"{number} a") + made.end()
    assert words.replace(",", "").split() == ["one"] * number.count("1") + ["a"]


@pytest.mark.parametrize("gap", ["\n", "\n\n"])
def test_a_quotation_goes_on_behind_a_line_and_a_pause_but_not_behind_a_paragraph(gap: str):
    words = {"\n": 'five"', "\n\n": "five inches"}[gap]
    assert reader().whole(f'He said "so{gap}5" pipe') == f'He said "so{gap}{words} pipe'
    made = reader()
    made.whole('He said "the top')
    made.turn("english")
    assert made.whole('5" and left') == 'five" and left'


@pytest.mark.parametrize("normalize", ["off", "auto"])
def test_a_text_is_read_only_where_that_is_asked_for(normalize: str):
    assert Reading().reader(normalize, "auto", None) is None
    assert Reading(is_on=True).reader("auto", "auto", None)
    assert Reading(is_on=True).reader("off", "auto", None) is None


def test_a_lexicon_alone_reads_no_numbers():
    made = Reading(lexicon=LEXICON).reader("off", "auto", None)
    assert made.whole("5 GPT in **New York**") == "5 gee pee tee in **Noo York**"


def test_letters_have_their_names_for_a_model_that_knows_words_alone():
    made = Reading(is_on=True, names_letters=True).reader("auto", "english", None)
    text = "At 3 pm or 9 a.m. I saw a U.S. plan at x.com; one o'clock."
    assert made.whole(text) == (
        "At three pee em or nine ay em. I saw a you ess plan at ex dot com; one o'clock."
    )


def test_letters_with_accents_are_plain_ones_for_a_model_that_knows_ascii_alone():
    text = "Café Zoe\u0308, Łódź, œuvre, ʜᴇʟʟᴏ and ｆｕｌｌ: 5 € für Þór."
    made = Reading(is_on=True, names_letters=True).reader("auto", "english", None)
    assert made.whole(text) == "Cafe Zoe, Lodz, oeuvre, hello and full: five euros fur Thor."
    assert reader().whole("Café für Þór") == "Café für Þór"
    made = Reading(is_on=True, names_letters=True, lexicon=Lexicon.of({"café": "ka fay"}))
    assert made.reader("auto", "english", None).whole("Café") == "ka fay"


def test_colour_codes_of_a_terminal_are_not_spoken():
    text = "\x1b[1;31mError\x1b[0m 5\x1b[K is \x1b[38;5;208mred\x1b[m [b]"
    assert reader().whole(text) == "Error five is red b"
    for size in (1, 2, 3, 5):
        assert in_pieces(text, range(size, len(text), size), reader()) == "Error five is red b"


def test_an_unknown_normalize_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match=r"normalize is 'yes'; known: auto, on, off\."):
        READING.reader("yes", "auto", None)


def seconds(text: str, enough: float = 0.0) -> float:
    """Return the CPU seconds that reading a text takes."""

    def read() -> None:
        assert len(reader([LEXICON]).whole(text)) < 10 * len(text) + 100

    return cpu_seconds(read, enough=enough)


def test_time_is_linear_in_the_length():
    sentence = "On March 5, 2026 Dr. Smith paid $12.50 (**1,234** times) in New York. "
    short, *_, long = [seconds(sentence * repeats) for repeats in (32, 64, 128, 256)]
    assert long < 8 * 2 * short  # of quadratic time it would be 64


@pytest.mark.parametrize(
    "text",
    [
        *("9" * 10_000, "$" * 20_000, "$5 " * 6_000, "1," * 10_000, "*" * 20_000, "[a](" * 5_000),
        *("年1" * 10_000, "@" * 20_000, "a@" * 10_000, "\u202e5\u0301" * 6_000, "\ud800" * 20_000),
        "a" + "\u0301\u0323" * 20_000,
        *("٣٤ شكرا " * 2_000, "5 " * 10_000, "#\n" * 10_000, "Dr. " * 5_000, "²" * 20_000),
    ],
    ids=lambda text: ascii(text[:8]),
)
def test_a_hostile_text_is_read_in_bounded_time_and_length(text: str):
    most = 8 * seconds(text[: len(text) // 4]) + 0.1  # of quadratic time it would be 16 times
    whole = seconds(text, enough=most)
    assert whole < most
    assert whole < 5  # half a second on the machine of 2026-11
    assert reader().whole("5 kg") == "five kilograms"
