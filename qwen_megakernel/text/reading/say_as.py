"""Reads a text as the kind that <say-as> names, such as single characters, a date or a time."""

from __future__ import annotations

import re
from datetime import date

from qwen_megakernel.text.reading.grammar import Grammar
from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.spoken import Draft
from qwen_megakernel.text.reading.words import MAX_DIGITS

_NUMBER = re.compile(r"([-−+]?)\s*([.,]?\d[\d,.\s'’]*)")
_ORDINAL = re.compile(r"(\d{1,3}[,. '’]\d{3}|\d{1,6})\D{0,3}")
_FIELD = re.compile(r"\d+|[^\W\d_]+\.?")
_COMPACT = re.compile(r"(\d{4})(\d\d)(\d\d)")
_CLOCK = re.compile(
    r"(?i)(\d{1,2})(?:[:.h]?([0-5]\d)(?:[:.]?([0-5]\d))?|(?=\s*[ap]\.?\s*m))\s*([ap])?\.?\s*(?:m\.?)?"
)


def words_of(text: str, kind: str, form: str, grammar: Grammar | None) -> str | None:
    """Return the words of a text of one kind; None if the text is not of that kind.

    Args:
        kind: "characters", "digits", "cardinal", "ordinal", "date", "time" or "telephone".
        form: the order of a date's fields, such as "mdy". If it is empty, the language decides,
            except that a first field of four digits is the year.
        grammar: the grammar of the text's language; None is allowed only for characters.
    """
    language = grammar.language if grammar else None
    if kind == "characters":
        return _characters(text, language)
    assert grammar and language
    if kind in ("digits", "telephone"):
        groups = re.findall(r"\d+", text)
        if not groups or any(map(str.isalpha, text)):
            return None  # letters would be lost
        plus = f"{language.plus} " if text.lstrip().startswith("+") else ""
        said = ", ".join(map(language.spell, groups))
        return language.spell(text) if kind == "digits" else plus + said
    if kind == "cardinal":
        return _cardinal(text, language)
    if kind == "ordinal":
        match = _ORDINAL.fullmatch(text.strip())
        return language.ordinal(int(re.sub(r"\D", "", match[1]))) if match else None
    return _date(text, form, language) if kind == "date" else _time(text, grammar)


def _characters(text: str, language: Language | None) -> str | None:
    words = []
    for char in text:
        if char.isdecimal() and language:
            words.append(language.spell(char))
        elif char.isalnum():
            words.append(char)
        elif language and not char.isspace():
            words.append((language.web.get(char) or language.symbols.get(char, "")).strip())
    return " ".join(filter(None, words)) or None


def _cardinal(text: str, language: Language) -> str | None:
    match = _NUMBER.fullmatch(text.strip())
    if not match or (match[2][0] in ".," and match[2][0] != language.decimal):
        return None
    sign = {"": "", "+": language.plus}.get(match[1], language.minus)
    whole, _, decimals = match[2].partition(language.decimal)
    whole, decimals = (re.sub(r"\D", "", each) for each in (whole, decimals))
    if len(whole) > MAX_DIGITS:
        return None
    words = language.number(str(int(whole or "0")), decimals)
    return (sign + language.space if sign else "") + words


def _date(text: str, form: str, language: Language) -> str | None:
    text = re.sub(rf"(?<=\d)(?:{language.ordinal_marks})(?!\w)", "", text.strip())
    compact = _COMPACT.fullmatch(text) if form in ("", "ymd") else None
    fields = list(compact.groups()) if compact else _FIELD.findall(text)
    fields = [field for field in fields if field.lower() not in language.links]
    if not form:
        is_year_first = bool(fields) and fields[0].isdecimal() and len(fields[0]) == 4
        named = [place for place, field in enumerate(fields) if not field.isdecimal()]
        is_day_first = named == [1] or (language.day_first and named != [0])
        order = "ymd" if is_year_first else "dmy" if is_day_first else "mdy"
        form = order if len(fields) == 3 else "".join(each for each in order if each != "y")
    if len(fields) != len(form):
        return None
    values: dict[str, int] = {}
    for key, field in zip(form, fields, strict=True):
        if field.isdecimal() and len(field) <= 4:
            century = 0 if key != "y" or len(field) != 2 else 2000 if int(field) < 70 else 1900
            values[key] = int(field) + century
        elif key == "m" and (month := language.month_forms.get(field.lower().rstrip("."))):
            values[key] = month
        else:
            return None
    try:
        date(values.get("y", 2000), values.get("m", 1), values.get("d", 1))
    except ValueError:
        return None
    year, month, day = map(values.get, "ymd")
    if month:
        return language.date(day or 0, month, year, "") if day or year else language.month(month)
    return language.ordinal(day) if day else language.dated_year(year or 0)


def _time(text: str, grammar: Grammar) -> str | None:
    """Return the words of a time of day, by the rules that its language has for times."""
    match = _CLOCK.fullmatch(text.strip())
    if not match or int(match[1]) > (24 if match[2] else 12) or not (match[2] or int(match[1])):
        return None
    hour, *parts = filter(None, match.group(1, 2, 3))
    text = ":".join([str(int(hour)), *parts]) + (f" {match[4].lower()}m" if match[4] else "")
    words = "".join(piece.text for piece in grammar.read(Draft.at(text, 0)))
    return words if not any(map(str.isdecimal, words)) else None
