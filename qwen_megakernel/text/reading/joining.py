"""Which words of a language may be one expression: "5" and "March", "$3.5" and "million"."""

from __future__ import annotations

import re

from qwen_megakernel.text.reading.language import Language

_MARKS = "*_~`\"'”’»)]}"
_OPENING = "*_~`\"'“‘«([{"
_SENTENCE_ENDS = ".!?;:…。！？"
_OPERATORS = frozenset("+-−–—×÷=*/<>≤≥±≈")
_NEAR_DIGIT = re.compile(r"\d\D{0,4}$")
_DAY_AND_COMMA = re.compile(r"(?:^|[^\d,])\d{1,2}(?:st|nd|rd|th)?,$")
_MORE_DIGITS = re.compile(r"\(?(?:\d{2,}|\d/\d)")
_YEAR = re.compile(r"\d{4}\b")


class WordJoining:
    """A `segments.Joining` for one language.

    Args:
        language: None: of a script without spaces, whose words follow digits directly.
    """

    def __init__(self, language: Language | None):
        self._language = language
        if language:
            self._months = language.month_forms
            self._signs = language.currencies
            self._follow_digits = frozenset(
                {*language.units, *language.scales, *self._signs, *language.followers, "%"}
            )

    def opens(self, words: str) -> bool:
        """Whether the next word may go on with these."""
        lang, last = self._language, words.split()[-1]
        if not any(map(str.isdigit, words)):
            bare = last.strip(_OPENING)
            return lang is not None and (
                bare in lang.opens or bare in lang.final or bare in self._signs
            )
        core = words.rstrip(_MARKS)
        if core[-1:] == ",":
            return lang is not None and _DAY_AND_COMMA.search(core) is not None
        if core[-1:] in _SENTENCE_ENDS and core:
            return lang is not None and lang.has_ordinal_points and core[-2:-1].isdigit()
        return True

    def joins(self, words: str, gap: str, word: str) -> bool:
        """Whether `word` goes on with these words; `gap` is the space between, or nothing."""
        lang = self._language
        if not gap or lang is None:
            return not gap and _NEAR_DIGIT.search(words) is not None
        last = words.split()[-1].strip(_OPENING + _MARKS)
        if not any(map(str.isdigit, words)):
            return last not in self._signs or word[:1].isdigit()
        core = word.strip(_OPENING).rstrip(_MARKS + ",;:!?…")
        low = core.rstrip(".").lower()
        if last[-1:] == ",":
            return _YEAR.match(core) is not None
        if last.lower().rstrip(".") in self._months or last in lang.links:
            is_next = low in self._months or low in lang.links
            return is_next or _YEAR.match(core) is not None
        if last in _OPERATORS:
            return core.lstrip("$€£¥-")[:1].isdigit()
        if last in lang.scales:
            return core in self._signs or core.rstrip(".") in self._signs
        if not (last[-1:].isdigit() or any(map(str.isdigit, last))):
            return False
        return (
            core in self._follow_digits
            or core.rstrip(".") in self._follow_digits
            or low in self._months
            or low in lang.links
            or low in lang.followers
            or core.partition("/")[0] in lang.units
            or _MORE_DIGITS.match(core) is not None
            or core in _OPERATORS
        )
