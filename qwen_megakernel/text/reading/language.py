"""What a language makes of numbers, dates, times, money and units: tables, and how they are said.

num2words supplies the numerals. A language is a `Language`, made by a function of its own module
the first time it is asked for; what is the same in all of them is here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from qwen_megakernel.errors import MissingPackageError

Rule = tuple[re.Pattern[str], Callable[[re.Match[str], str], str | None]]

MAX_DIGITS = 15  # of a number that is read as one; a longer one is read by its digits


@dataclass(frozen=True, slots=True)
class Noun:
    """What is counted: its form for one, for two to four, and for more; its gender (m, f or n; c in
    languages whose numeral before a noun differs from the one alone: Italian un, uno)."""

    one: str
    few: str
    many: str
    gender: str = "m"


@dataclass(frozen=True, slots=True)
class Currency:
    """A currency and its hundredth part."""

    unit: Noun
    cent: Noun | None


def table(lines: str) -> dict[str, str]:
    """Rows of "key: value"; several keys of a value are separated by spaces."""
    found: dict[str, str] = {}
    for line in filter(str.strip, lines.splitlines()):
        keys, _, value = line.partition(": ")
        found |= dict.fromkeys(keys.split(), value.strip())
    return found


def nouns(lines: str, default_gender: str = "m") -> dict[str, Noun]:
    """Rows of "symbols: one, few, many, gender", of which the last ones may be left out."""
    found: dict[str, Noun] = {}
    for key, value in table(lines).items():
        forms = [form.strip() for form in value.split(",")]
        gender = forms.pop() if forms[-1] in ("c", "m", "f", "n") else default_gender
        found[key] = Noun(forms[0], forms[min(1, len(forms) - 1)], forms[-1], gender)
    return found


def currencies(lines: str, default_gender: str = "m") -> dict[str, Currency]:
    """Rows of "symbols: noun / noun of the hundredth part", each as in `nouns`."""
    found = {}
    for key, value in table(lines).items():
        unit, _, cent = value.partition("/")
        (noun,) = nouns(f"{key}: {unit}", default_gender).values()
        part = nouns(f"{key}: {cent}", default_gender)[key] if cent.strip() else None
        found[key] = Currency(noun, part)
    return found


class Numerals:
    """num2words for one language, imported when the first number comes; what it has said before
    is remembered."""

    def __init__(self, code: str):
        self._code = code
        self._remembered = functools.lru_cache(maxsize=4096)(self._say)

    def __call__(self, number: int, to: str = "cardinal", **options: str) -> str:
        """A number in words."""
        return self._remembered(number, to, **options)

    def _say(self, number: int, to: str, **options: str) -> str:
        try:
            from num2words import num2words
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                "Numbers are read with num2words, which is not installed.",
                hint="pip install num2words, or speak with normalize off.",
            ) from error
        words: str = num2words(number, lang=self._code, to=to, **options)
        return words.replace(",", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """How one language is written and read."""

    code: str
    cardinal: Callable[[int, str], str]  # a number and the gender of what it counts
    ordinal: Callable[[int], str]
    year: Callable[[int], str]
    plural: Callable[[int], int] = lambda n: 0 if n == 1 else 2  # 0: one, 1: few, 2: many
    digits: tuple[str, ...] = ()  # where one alone is said otherwise than a number
    minus: str
    plus: str
    point: str  # between a whole number and its decimals
    decimals_are_a_number: bool = False  # else each is said by itself
    decimal: str = "."  # the mark before decimals; the other one of "." and "," groups digits
    ordinal_marks: str = r"(?!)"  # what follows the digits of an ordinal, as an expression
    months: tuple[str, ...]  # as they are said in a date
    month_forms: Mapping[str, int]  # how months are written, in lower case, to 1 .. 12
    day_first: bool = True
    date: Callable[[int, int, int | None, str], str]  # day, month, year, the word before
    says_written_dates: bool = False  # `date` also for "5 March"; else only the numbers are read
    time: Callable[[int, int, int | None], str]
    time_marks: str = r"(?!)"  # what may follow a time and is said by `time`, as an expression
    units: Mapping[str, Noun]
    per: str  # kilometres "per" hour
    currencies: Mapping[str, Currency]
    money_joint: str  # between whole units and hundredth parts
    says_cents: bool = True
    scales: Mapping[str, Noun]  # written after a number: "million", "bn"
    scale_joint: str = " "  # between a scale and a currency
    percent: str  # behind a number; with "{}" in it, around it
    to: str  # between the ends of a range
    fraction: Callable[[int, int], str]
    abbreviations: Mapping[str, str]
    final: frozenset[str] = frozenset()  # abbreviations that may end a sentence
    symbols: Mapping[str, str]
    web: Mapping[str, str]  # characters of addresses
    links: frozenset[str] = frozenset()  # words inside a written date
    number_sign: str  # what "#" and "No." are before a number
    # Expressions of this language alone, tried before all others: each a pattern, and what makes
    # words of a match and of the word before it, or None where it is something else.
    extra: Sequence[Rule] = ()
    opens: frozenset[str] = frozenset()  # words, as written, that the next word says how to read
    followers: frozenset[str] = frozenset()  # other words, in lower case, that go with a number
    has_ordinal_points: bool = False  # "5." is an ordinal
    letters_follow: bool = False  # words are written behind digits without a space
    space: str = " "  # between words
    ratio: str | None = None  # between the sides of 16:9; None: `to`

    def number(self, whole: str, decimals: str = "", gender: str = "") -> str:
        """Digits of a number, without marks, in words."""
        if len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0"):
            return self.spell(whole + decimals)
        words = self.cardinal(int(whole), gender) if whole else ""
        if not decimals:
            return words
        if self.decimals_are_a_number and len(decimals) <= 2 and decimals[0] != "0":
            tail = self.cardinal(int(decimals), "")
        else:
            tail = self.spell(decimals)
        return self.space.join(filter(None, (words, self.point, tail)))

    def spell(self, text: str) -> str:
        """Each digit of a text by itself."""
        numbers = [int(char) for char in text if char.isdigit()]
        if self.digits:
            return self.space.join(self.digits[number] for number in numbers)
        return self.space.join(self.cardinal(number, "") for number in numbers)

    def count(self, whole: str, decimals: str, noun: Noun) -> str:
        """A number with what it counts."""
        number = self.number(whole, decimals, noun.gender)
        return number + self.space + self.form(whole, decimals, noun)

    def form(self, whole: str, decimals: str, noun: Noun) -> str:
        """The form of a noun behind a number."""
        if decimals or not whole or len(whole) > MAX_DIGITS:
            return noun.few if self.code == "ru" else noun.many
        return (noun.one, noun.few, noun.many)[self.plural(int(whole))]

    def money(self, whole: str, cents: str, currency: Currency) -> str:
        """An amount with two decimals, or without any."""
        if not currency.cent or not cents or len(whole) > MAX_DIGITS:
            return self.count(whole, cents, currency.unit)
        number = int(cents)
        part = self.count(str(number), "", currency.cent)
        if not int(whole or "0"):
            return part if number else self.count("0", "", currency.unit)
        words = self.count(whole, "", currency.unit)
        if not number:
            return words
        return words + self.money_joint + (part if self.says_cents else self.number(str(number)))


def month_forms(names: Iterable[str], short: str = "") -> dict[str, int]:
    """Months as they are written, to their numbers.

    Args:
        names: twelve in full.
        short: twelve abbreviations without their point, separated by spaces; "-" for none, and
            several of a month by "/".
    """
    forms = {name.lower(): number for number, name in enumerate(names, start=1)}
    for number, words in enumerate(short.split(), start=1):
        forms |= {word: number for word in words.split("/") if word != "-"}
    return forms
