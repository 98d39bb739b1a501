"""The rules for which neighbouring words may be one expression, such as "5 March"."""

import re

from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.surroundings import (
    CLOSING,
    OPENING,
    SENTENCE_ENDS,
    WIDE_PAUSES,
    WIDE_POINTS,
    bare,
    inside,
)

_OPERATORS = frozenset("+-−–—×÷=*/<>≤≥±≈x")
_NEAR_DIGIT = re.compile(rf"\d[^\d{WIDE_POINTS}{WIDE_PAUSES}]{{0,4}}$")
_DAY_AND_COMMA = re.compile(r"(?:^|[^\d,])\d{1,2}(?:st|nd|rd|th)?,$")
_MORE_DIGITS = re.compile(r"\(?(?:\d{2,}|\d/\d)|\(\d|x\d{2,6}(?!\w)")
_ROMAN = re.compile(r"[IVX]+(?:e|ᵉ|er|re|\.)?$")
_INITIALS = re.compile(r"(?:[A-Z]\.){2,}$")
_DEGREE = re.compile(r"\d{1,2}°$")
_BEHIND_DIGITS = re.compile(r"^.*\d", re.DOTALL)
_DAYS = re.compile(r"(?<![\d.])\d{1,2}\.(?:,|\s|$)")
_DAY_LINKS = ("und", "bis", "oder", "zum", "dem")
_SPANS = ("по", "до", "и")  # between two days of a month
_YEAR = re.compile(r"\d{4}\b")


class WordJoining:
    """A `segments.Joining` for one language.

    Args:
        language: the tables of the language, or None for a language without tables.
    """

    def __init__(self, language: Language | None):
        self._language = language
        if language:
            self._months = language.month_forms
            self._signs = language.currencies
            phrases = (unit.split() for unit in language.units if " " in unit)  # "c. à s."
            self._phrases = {" ".join(p[:n]) for p in phrases for n in range(1, len(p) + 1)}
            self._follow_digits = frozenset(
                {*language.units, *language.scales, *self._signs, *language.followers, "%"}
            )

    def opens(self, words: str) -> bool:
        """Return whether the next word may continue these words."""
        lang, last = self._language, words.split()[-1]
        if lang and self._awaits_noun(bare(last)):
            return True
        if not any(map(str.isdigit, words)):
            word = last.strip(OPENING)
            return lang is not None and (
                word in lang.opens or word in self._signs or self._is_pointed(last)
            )
        core = words.rstrip(CLOSING)
        if lang and (self._phrase(words) in self._phrases or self._is_day_link(words, last)):
            return True
        if self._is_pointed(last) or (lang and (last in lang.scales or last in lang.opens)):
            return True
        if not any(map(str.isdigit, last)):
            word = bare(last)
            is_month = lang is not None and word.lower().rstrip(".") in self._months
            return is_month or last in _OPERATORS or (lang is not None and word in lang.links)
        if core[-1:] == ",":
            return lang is not None and _DAY_AND_COMMA.search(core) is not None
        if core[-1:] in SENTENCE_ENDS and core:
            return lang is not None and lang.has_ordinal_points and core[-2:-1].isdigit()
        return True

    def joins(self, words: str, gap: str, word: str) -> bool:
        """Return whether `word` continues these words; `gap` is the space between them, or ""."""
        lang = self._language
        if not gap:
            return _NEAR_DIGIT.search(words) is not None
        if lang is None:
            return False
        last = words.split()[-1]
        if phrase := self._phrase(words):
            if phrase in self._phrases and phrase[-1] == ".":
                return True
            part = word[slice(*inside(word, ""))]
            if not {f"{phrase} {part}", f"{phrase} {part.rstrip('.')}"}.isdisjoint(self._phrases):
                return True
        if self._is_day_link(words, last):
            return word[:1].isdigit() or word in ("zum", "dem")
        if last in _OPERATORS:
            return word.lstrip(OPENING + "$€£¥-")[:1].isdigit()
        is_pointed, last = self._is_pointed(last), bare(last)
        if not any(map(str.isdigit, words)):
            return last not in self._signs or word[:1].isdigit()
        begin, end = inside(word, "")
        core = word[begin:end]
        low = core.rstrip(".").lower()
        if is_pointed or last in lang.opens or self._awaits_noun(last):
            return True
        if last[-1:] == ",":
            return _YEAR.match(core) is not None
        if last.lower().rstrip(".") in self._months or last in lang.links:
            is_next = low in self._months or low in lang.links
            return (
                is_next or _YEAR.match(core) is not None or (last in _SPANS and core[:1].isdigit())
            )
        if lang.has_ordinal_points and last[-1:] == "." and last[-2:-1].isdigit():
            return True
        if last in lang.scales:
            return core in self._signs or core.rstrip(".") in self._signs
        if not (last[-1:].isdigit() or any(map(str.isdigit, last))):
            return False
        return (
            core in self._follow_digits
            or core in self._phrases
            or (low.isalpha() and lang.gender_after(bare(last), core.rstrip("."), "") != "")
            or core.rstrip(".") in self._follow_digits
            or low in self._months
            or low in lang.links
            or low in lang.followers
            or core.partition("/")[0] in self._follow_digits
            or _MORE_DIGITS.match(core) is not None
            or _MORE_DIGITS.match(word.lstrip("\"'“‘")) is not None
            or (words.lstrip(OPENING).startswith("+") and core[:1].isdigit())
            or word in _OPERATORS
        )

    def _phrase(self, words: str) -> str:
        """Return the words behind the last digit."""
        return _BEHIND_DIGITS.sub("", words).strip()

    def _is_day_link(self, words: str, last: str) -> bool:
        """Return whether a word stands between two days: "am 24., 25. und 26. Dezember"."""
        if self._language is None or self._language.code != "de":
            return False
        return _DAYS.search(words) is not None and last in _DAY_LINKS

    def _awaits_noun(self, word: str) -> bool:
        """Return whether the next word decides what "XX" or "1°" means."""
        lang = self._language
        is_roman = lang and (lang.centuries or lang.has_ordinal_points) and _ROMAN.match(word)
        if lang and _INITIALS.match(word) and lang.starters and not lang.nouns_are_capitalised:
            return True
        return bool(is_roman or (lang and lang.degree_is_ordinal and _DEGREE.match(word)))

    def _is_pointed(self, word: str) -> bool:
        """Return whether the point at the end of a word may be that of "p.m.", "Nov." or "5kg."."""
        word = bare(word).lstrip("0123456789.,:-–")
        if self._language is None or word[-1:] != ".":
            return False
        lang, last = self._language, re.split("[-–]", word)[-1]
        return bool({last, word.lower()} & lang.pointed) or word.endswith(lang.pointed_endings)
