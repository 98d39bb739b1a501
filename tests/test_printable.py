"""Text of other people in one line, which no terminal obeys."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_megakernel.errors import OutputError
from qwen_megakernel.printable import printable


@given(st.text(st.characters(), max_size=300), st.integers(3, 300))
def test_a_line_without_anything_a_terminal_obeys(text: str, max_chars: int):
    line = printable(text, max_chars)
    kinds = {unicodedata.category(each) for each in line if each != " "}
    assert not any(kind[0] in "CZ" for kind in kinds)
    assert len(line) <= max_chars
    assert printable(line, max_chars) == line
    if text.isprintable() and len(text) <= max_chars:
        assert line == text


def test_the_text_of_an_error_is_printable_and_keeps_the_reason_behind_a_long_path():
    error = OutputError(f"Cannot write \x1b[2J{'a/' * 9999}b.wav: No space left.", hint="a\0\nb")
    assert error.what.startswith(r"Cannot write \x1b[2Ja/a/")
    assert error.what.endswith("a/b.wav: No space left.") and len(error.what) < 1100
    assert str(error) == f"{error.what}\na\\x00\nb"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Grüße, 世界 👍", "Grüße, 世界 👍"),
        ("a\r\nb\tc\x00", r"a\r\nb\tc\x00"),
        ("\x1b[31mred\x07\x7f\x9b1m\x85", r"\x1b[31mred\x07\x7f\x9b1m\x85"),
        ("a\u2028b\u2029c", r"a\u2028b\u2029c"),
        ("\u202etxt.\u2066\u200f", r"\u202etxt.\u2066\u200f"),
        ("\ud83d\U000e0041", r"\ud83d\U000e0041"),
        ("a" * 200, "a" * 200),
        ("a" * 201, "a" * 197 + "..."),
        ("\n" * 200, r"\n" * 98 + "\\..."),
    ],
)
def test_what_is_escaped_and_where_the_line_ends(text: str, line: str):
    assert printable(text) == line
