"""Texts of a declared kind (`say-as`), in the words of several languages."""

import pytest

from qwen_megakernel.text.reading.languages import grammar_of
from qwen_megakernel.text.reading.say_as import words_of


def said(text: str, kind: str, form: str = "", language: str = "english") -> str | None:
    return words_of(text, kind, form, grammar_of(language))


@pytest.mark.parametrize(
    ("text", "kind", "form", "words"),
    [
        ("ABC", "characters", "", "A B C"),
        ("A1-b", "characters", "", "A one dash b"),
        ("2005", "digits", "", "two zero zero five"),
        ("4-8", "digits", "", "four eight"),
        ("2005", "cardinal", "", "two thousand and five"),
        ("1,234", "cardinal", "", "one thousand two hundred and thirty-four"),
        ("-3.25", "cardinal", "", "minus three point two five"),
        ("007", "cardinal", "", "seven"),
        ("3", "ordinal", "", "third"),
        ("21st", "ordinal", "", "twenty-first"),
        ("3/4/2024", "date", "", "March fourth, twenty twenty-four"),
        ("3/4/2024", "date", "dmy", "April third, twenty twenty-four"),
        ("2024-03-04", "date", "", "March fourth, twenty twenty-four"),
        ("4 Mar 24", "date", "dmy", "March fourth, twenty twenty-four"),
        ("5 March 2025", "date", "", "March fifth, twenty twenty-five"),
        ("4th of July", "date", "", "July fourth"),
        ("20250305", "date", "", "March fifth, twenty twenty-five"),
        (".5", "cardinal", "", "zero point five"),
        ("1,000th", "ordinal", "", "one thousandth"),
        ("12/25", "date", "md", "December twenty-fifth"),
        ("5/2024", "date", "my", "May twenty twenty-four"),
        ("1999", "date", "y", "nineteen ninety-nine"),
        ("3:05 pm", "time", "", "three oh five p m"),
        ("15:30", "time", "", "fifteen thirty"),
        ("1530", "time", "", "fifteen thirty"),
        ("7pm", "time", "", "seven p m"),
        (
            "+1 (212) 555-0100",
            "telephone",
            "",
            "plus one, two one two, five five five, zero one zero zero",
        ),
    ],
)
def test_english(text: str, kind: str, form: str, words: str):
    found = said(text, kind, form)
    assert found is not None and found.replace(",", "") == words.replace(",", "")


@pytest.mark.parametrize(
    ("language", "text", "kind", "words"),
    [
        ("german", "3.4.2024", "date", "dritter April zweitausendvierundzwanzig"),
        ("german", "1.234,5", "cardinal", "eintausendzweihundertvierunddreißig Komma fünf"),
        ("german", "März 3", "date", "dritter März"),
        ("spanish", "5 de marzo de 2025", "date", "cinco de marzo de dos mil veinticinco"),
        ("french", "21", "ordinal", "vingt et unième"),
        ("spanish", "2005", "digits", "dos cero cero cinco"),
        ("chinese", "13", "cardinal", "十三"),
        ("russian", "2", "ordinal", "второй"),
    ],
)
def test_other_languages(language: str, text: str, kind: str, words: str):
    assert said(text, kind, language=language) == words


@pytest.mark.parametrize(
    ("text", "kind", "form"),
    [
        ("abc", "digits", ""),
        ("AB12", "digits", ""),  # whose letters would be lost
        ("1-800-FLOWERS", "telephone", ""),
        ("555-0123 ext. 5", "telephone", ""),
        ("abc", "cardinal", ""),
        ("1" * 40, "cardinal", ""),
        ("x", "ordinal", ""),
        ("1" * 20, "ordinal", ""),
        ("13/13/2024", "date", ""),
        ("30/2", "date", "dm"),
        ("20251305", "date", ""),
        (",5", "cardinal", ""),
        ("1/2", "date", "mdy"),
        ("1" * 5000, "date", "y"),
        ("0/0/0", "date", ""),
        ("25:99", "time", ""),
        ("noon", "time", ""),
        ("", "telephone", ""),
        ("", "characters", ""),
        ("…", "characters", ""),
    ],
)
def test_what_is_no_such_thing_has_no_words(text: str, kind: str, form: str):
    assert said(text, kind, form) is None
