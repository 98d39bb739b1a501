"""The rules for which neighbouring words may be one expression, such as "5 March"."""

import re

from qwen_megakernel.text.reading.language import BEFORE_HOURS, BEHIND_RATIO, Language
from qwen_megakernel.text.reading.markdown import BORN
from qwen_megakernel.text.reading.surroundings import (
    CLOSING,
    OPENING,
    SENTENCE_ENDS,
    WIDE_PAUSES,
    WIDE_POINTS,
    bare,
    inside,
)
from qwen_megakernel.text.reading.tables import any_of

_OPERATORS = frozenset("+-−–—×÷=*/<>≤≥±≈x#")
_LINE_MARKS = ("-", "*", "+", ">", "#")  # of Markdown, at the beginning of a line
_NEAR_DIGIT = re.compile(rf"\d[^\d{WIDE_POINTS}{WIDE_PAUSES}]{{0,4}}$")
_DAY_AND_COMMA = re.compile(r"(?:^|[^\d,])\d{1,2}(?:st|nd|rd|th)?,$")
_MORE_DIGITS = re.compile(r"\(?(?:\d{2,}|\d[/:]\d)|\(\d|x\d{2,6}(?!\w)|\d(?:\"|″|''?|′)")
_ROMAN = re.compile(r"(?:[IVXХ]+[eᵉ]?[-–—])?[IVXХ]+(?:e|ᵉ|er|re|\.)?$")
_ELISION = re.compile(r"^\w{1,5}['’]")  # "l'XI secolo"
_CENTURY_AND = re.compile(r"(?:^|\s)[IVX]+ и$")  # Russian: the word behind the next one decides
_IBAN, _IBAN_GROUP = re.compile(r"\W?[A-Z]{2}\d\d(?: [A-Z\d]{4})*"), re.compile(r"[A-Z\d]{1,4}")
_INITIALS = re.compile(r"(?:[A-Z]\.){2,}$")
_STARRED = re.compile(r"(?<![*\d])\d\*$")  # of a hotel
_DEGREE = re.compile(r"\d{1,2}\.?[°º]$")
_BEHIND_DIGITS = re.compile(r"^.*\d", re.DOTALL)
_CLOCK = re.compile(r"(?<![\d.])\d{1,2}\.\d\d$")
_DAYS = re.compile(r"(?<![\d.])\d{1,2}\.(?:\d\d)?(?:,|\s|$)")  # and times such as "10.30"
_DAY_LINKS = ("und", "bis", "oder", "bzw.", "zum", "dem")
_DAY_AND_LINK = re.compile(r"(?<!\d)\d{1,2} (?:по|до|и)$")  # of two days of a month
_RATES = ("kbps", "Mbps", "Gbps")  # of data
_SCORED = re.compile(r"\d{1,3}(?:으?로|의)")  # Korean, behind "3대"
_PARTICLES = re.compile(r"(?<=[A-Za-z\d%℃²³])[가-힣]+$")  # Korean, as in "9 km를"
_YEAR = re.compile(r"\d{4}\b")


class WordJoining:
    """The rules of one language for the words of a segment (see `segments.segment_end`)."""

    def __init__(self, language: Language):
        self._language = lang = language
        phrases = (unit.split() for unit in lang.units if " " in unit)  # "c. à s."
        self._phrases = {" ".join(p[:n]) for p in phrases for n in range(1, len(p) + 1)}
        self._between_days = {*lang.month_forms, *lang.links}
        self._behind_digits = self._between_days | self._phrases | {*lang.units, *lang.scales, "%"}
        self._behind_digits |= lang.followers | BEHIND_RATIO | {*lang.books, *lang.compass, *_RATES}
        self._behind_digits |= {*lang.currencies, *lang.currency_names, *lang.money_scales}
        # Each character of Chinese and Japanese is a word of its own, also in "月~金".
        days = [] if lang.space else [*lang.weekdays]
        spans = {f"{first}{dash}{last}" for first in days for dash in "-–~" for last in days}
        self._days = {span[:n] for span in spans for n in range(1, len(span) + 1)}
        # Weekdays, and what links them and the hours behind them: "lun, mer et ven de 9h".
        links = any_of([*lang.weekdays, *lang.day_links, *BEFORE_HOURS])
        day = any_of(lang.weekdays) if lang.space else "(?!)"
        self._weekdays = re.compile(
            rf"(?:{day})\b(?:[\s,.:/+&–-]{{1,3}}(?:{links})\b)*[,.:]{{0,2}}(?: ?[/+&–-])?"
        )

    def opens(self, words: str) -> bool:
        """Return whether the next word may continue these words."""
        lang, last, core = self._language, words.split()[-1], words.rstrip(CLOSING)
        if self._awaits_noun(bare(last)) or self._is_pointed(last) or words == BORN:
            return True
        if not _has_digit(words):
            is_known = last.strip(OPENING + "-−+") in lang.opens | {*lang.currencies, "x", "×"}
            is_span = words in self._days or self._weekdays.fullmatch(words.lstrip(OPENING))
            return bool(is_known or is_span or _CENTURY_AND.search(words))
        if self._phrase(words) in self._phrases or self._is_day_link(words, last):
            return True
        if last in lang.scales or last in lang.opens or last.rstrip(".") in lang.books:
            return True
        if not _has_digit(last):
            is_month = bare(last).lower().rstrip(".") in lang.month_forms
            is_open = is_month or last in _OPERATORS or bare(last) in lang.links
            return is_open or _IBAN.fullmatch(words) is not None
        if core[-1] == ",":
            return _DAY_AND_COMMA.search(core) is not None
        return core[-1] not in SENTENCE_ENDS or self._is_ordinal(core)

    def joins(self, words: str, gap: str, word: str) -> bool:
        """Return whether `word` continues these words; `gap` is the space between them, or ""."""
        if not gap:
            is_near = _NEAR_DIGIT.search(words) is not None and word[0] != "+"
            return is_near or words + word in self._days
        if (gap == "\n" and word in _LINE_MARKS) or _STARRED.search(words):
            return False
        lang, pointed = self._language, words.split()[-1]
        last, core = bare(pointed), word[slice(*inside(word, ""))]
        noun = _PARTICLES.sub("", core.rstrip("."))
        forms = {core, noun, noun.lower(), core.partition("/")[0], noun.rstrip("€$£")}
        if word[0] == "(" or (pointed[-1] == '"' and core in lang.links | lang.followers):
            forms = set()
        if _IBAN.fullmatch(words) and _IBAN_GROUP.fullmatch(noun):
            return True
        if phrase := self._phrase(words):
            is_open = phrase in self._phrases and phrase[-1] == "."
            if is_open or {f"{phrase} {form}" for form in forms} & self._phrases:
                return True
        if self._is_day_link(words, pointed):
            return word[0].isdigit() or word in ("zum", "dem")
        if self._weekdays.fullmatch(days := words.lstrip(OPENING)):
            is_open = word[0].isdigit() or self._is_pointed(pointed)
            return is_open or self._weekdays.fullmatch(f"{days} {noun}") is not None
        if pointed in _OPERATORS:
            return word.lstrip(OPENING + "$€£¥-")[:1].isdigit()
        if not _has_digit(words):
            if words == BORN:
                return word[0].isdigit()
            if _CENTURY_AND.search(words):
                return _ROMAN.match(core) is not None
            return last not in lang.currencies or word[0].isdigit()
        if self._is_pointed(pointed) or last in lang.opens or self._awaits_noun(last):
            return True
        if last.rstrip(".") in lang.books:
            return word[0].isdigit() or last[-1] == "."
        if last[-1:] == ",":
            return _YEAR.match(core) is not None
        if last.lower().rstrip(".") in self._between_days:
            is_day = _DAY_AND_LINK.search(words) and core[:1].isdigit()
            is_era = last == "до" and word.startswith("н.")
            return bool(is_day or is_era or _YEAR.match(core) or forms & self._between_days)
        if self._is_ordinal(last):
            return True
        if last in lang.scales:
            return not forms.isdisjoint({*lang.currencies, *lang.currency_names})
        return _has_digit(last) and bool(
            forms & self._behind_digits
            or (noun.isalpha() and pointed[-1] not in '"”»)' and lang.may_agree(last, noun))
            or _MORE_DIGITS.match(core)
            or _MORE_DIGITS.match(word.lstrip("\"'“‘"))
            or (word in _DAY_LINKS and lang.code == "de" and _CLOCK.search(words))
            or (words.lstrip(OPENING).startswith("+") and core[:1].isdigit())
            or word in _OPERATORS
            or (lang.letters_follow and word.startswith(tuple(lang.followers)))
            or (last[-1] == "대" and _SCORED.match(word))
        )

    def _phrase(self, words: str) -> str:
        """Return the words behind the last digit."""
        return _BEHIND_DIGITS.sub("", words).strip()

    def _is_ordinal(self, words: str) -> bool:
        """Return whether words end with "5.", or "3-" as in "3- bis 4-Zimmer-Wohnung"."""
        is_number = words[-1:] in tuple(".-") and words[-2:-1].isdigit()
        return is_number and self._language.has_ordinal_points

    def _is_day_link(self, words: str, last: str) -> bool:
        """Return whether a word stands between two days: "am 24., 25. und 26. Dezember"."""
        is_link = self._language.code == "de" and last in _DAY_LINKS
        return is_link and _DAYS.search(words) is not None

    def _awaits_noun(self, word: str) -> bool:
        """Return whether the next word decides what "XX", "U.S." or "1°" means."""
        lang = self._language
        if _INITIALS.match(word):
            return bool(lang.starters) and not lang.nouns_are_capitalised
        if _ROMAN.match(_ELISION.sub("", word)):
            return bool(lang.centuries) or lang.has_ordinal_points
        return lang.degree_is_ordinal and _DEGREE.match(word) is not None

    def _is_pointed(self, word: str) -> bool:
        """Return whether the point at the end of a word may be that of "p.m.", "Nov." or "5kg."."""
        word = bare(word).lstrip("0123456789.,:-–")
        if word[-1:] != ".":
            return False
        lang, last = self._language, re.split("[-–/]", word)[-1]
        return bool({last, word.lower()} & lang.pointed) or word.endswith(lang.pointed_endings)


def _has_digit(text: str) -> bool:
    return any(map(str.isdigit, text))
