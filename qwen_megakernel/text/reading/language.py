"""What a language makes of numbers, dates, times, money and units.

`Language` has what is the same in all of them. Each language is a class of its own module, which
derives from `Language`: tables, and methods for what only this language does. A table is a text of
entries "keys: value", with spaces between keys and semicolons or line ends between entries; tables
are parsed when a language is first used. num2words supplies the numerals.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from qwen_megakernel.errors import MissingPackageError

# What makes words of a match and of the word before it, or None where it is something else.
Say = Callable[[re.Match[str], str], str | None]
# Each is an expression and what makes words of it, or a template whose slots are its groups.
Rules = Iterable[tuple[str, Say | str]]

# Signs as they are typed, and those that they stand for.
TYPED_SIGNS = {">=": "≥", "<=": "≤", "!=": "≠", "->": "→", "=>": "→", "==": "="}
_LETTER = re.compile(r"(?<![\w'’])[A-Za-z](?![\w'’])")
_MULTIPLES = ("time",)  # "a 2x gain" is one of two times

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


def table(entries: str) -> dict[str, str]:
    """Return the values of a table by their keys."""
    found: dict[str, str] = {}
    for entry in re.split(r"[;\n]", entries):
        keys, _, value = entry.strip().partition(": ")
        found |= dict.fromkeys(keys.split(), value)
    return found


def nouns(entries: str, gender: str = "m", ending: str = "") -> dict[str, Noun]:
    """Return the nouns of a table by their symbols.

    Args:
        entries: "symbols: one, few, many, gender", of which the last ones may be left out; a form
            that begins with a hyphen is appended to the first.
        gender: of an entry that names none.
        ending: what makes the plural of an entry with one form.
    """
    found: dict[str, Noun] = {}
    for key, value in table(entries).items():
        first, *others = [form.strip() for form in value.split(",")]
        own = others.pop() if others and others[-1] in ("c", "m", "f", "n") else gender
        others = [first + form[1:] if form[0] == "-" else form for form in others]
        others = others or [first + ending]
        found[key] = Noun(first, others[0], others[-1], own)
    return found


def currencies(entries: str, gender: str = "m", ending: str = "") -> dict[str, Currency]:
    """Return the currencies of a table of "signs: noun / noun of the hundredth part"."""
    found = {}
    for key, value in table(entries).items():
        unit, *cents = (nouns(f"x: {each}", gender, ending)["x"] for each in value.split(" / "))
        found[key] = Currency(unit, cents[0] if cents else None)
    return found


def roman_number(text: str) -> int:
    """Return the number of a Roman numeral."""
    values = [{"I": 1, "V": 5, "X": 10, "L": 50}[char] for char in text]
    pairs = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < following else value for value, following in pairs)


def numerals(code: str, others: Mapping[str, str]) -> Callable[..., str]:
    """Return num2words for one language: imported for the first number, its words remembered.

    Args:
        code: of the language.
        others: words of num2words, and those that take their places.
    """

    @functools.lru_cache(maxsize=4096)
    def say(number: int, to: str = "cardinal", **options: str) -> str:
        try:
            from num2words import num2words
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                "Numbers are read with num2words, which is not installed.",
                hint="pip install num2words, or speak with normalize off.",
            ) from error
        words: str = num2words(number, lang=code, to=to, **options).replace(",", "")
        for word, other in others.items():
            words = words.replace(word, other)
        return words

    return say


@dataclass(frozen=True, slots=True)
class Slot:
    """Digits in a template: their format is the gender of what they count, or a method's name."""

    digits: str
    language: "Language"

    def __format__(self, form: str) -> str:
        if len(form) > 1:
            return str(getattr(self.language, form)(int(self.digits)))
        return self.language.cardinal(int(self.digits), form)


class Language:
    """How one language is written and read. Names in capitals are tables, or words with spaces
    between them."""

    code: str  # of num2words
    # Numbers.
    NUMERALS = ""  # words of num2words, and those that take their places
    minus: str
    plus: str
    point: str  # between a whole number and its decimals
    decimal = "."  # the mark before decimals; the other one of "." and "," groups digits
    decimals_are_a_number = False  # else each is said by itself
    ENDINGS = ""  # by the gender of what is counted: expressions, and what they become
    DIGITS = ""  # the ten digits, if a single one is read differently from a number
    PARTS = ""  # of a whole, by the number below the line
    parts_form = "{bottom} {top}"  # a fraction of other parts
    ordinal_marks = r"(?!)"  # what follows the digits of an ordinal, as an expression
    has_ordinal_points = False  # "5." is an ordinal
    number_sign: str  # what "#" is before a number
    BEFORE_DIGITS = ""  # expressions, and the word that each of them is before a number
    percent: str  # after a number; with "{}" in it, around it
    to: str  # between the ends of a range
    ratio = ""  # between the sides of 16:9, where that is not `to`
    # What is counted.
    noun_gender = "m"
    plural_ending = ""
    UNITS: str
    units_have_points = False  # "5 lb.": the point is the unit's where a sentence goes on
    has_compounds = False  # "a 10-km race": one unit, whatever the number
    ARTICLES = ""  # after which it is one unit, too: "a $5 bill"
    SCALES: str  # written after a number: "million", "bn"
    MONEY_SCALES = ""  # those that only amounts of money have
    CURRENCIES: str
    per: str  # kilometres "per" hour
    money_joint: str  # between whole units and hundredth parts
    says_cents = True
    scale_joint = " "  # between a scale and a currency
    # Dates and times.
    MONTHS = ""
    SHORT_MONTHS = ""  # abbreviations without their point; "-" for none, "/" between several
    LINKS = ""  # inside a written date
    day_first = True
    first_day = ""
    dates = "{day} {month}", "{day} {month} {year}"
    says_written_dates = False  # whether `date` also says "5 March"; else its numbers are read
    times = "", "", ""  # on the hour, with minutes, and what is appended for seconds
    time_marks = r"(?!)"  # what may follow a time and is said by `time`, as an expression
    # Words and marks.
    ABBREVIATIONS = ""  # "~" stands for a space in them
    FINAL = ""  # abbreviations that may end a sentence
    AFTER_FINAL = ""  # words with capitals before which they do not end one
    SYMBOLS: str
    LETTERS = ""  # their names in the order of the alphabet, for a model that knows words alone
    WEB: str  # characters of addresses
    OPENS = ""  # words, as written, whose reading depends on the next word
    FOLLOWERS = ""  # other words, in lower case, that go with a number
    space = " "  # between words
    letters_follow = False  # whether words are written after digits without a space

    def __init__(self) -> None:
        self.say = numerals(self.code, table(self.NUMERALS))
        endings = table(self.ENDINGS).items()
        self.endings = {key: [pair.split() for pair in pairs.split(", ")] for key, pairs in endings}
        self.digits = self.DIGITS.split()
        self.parts = {int(bottom): part for bottom, part in table(self.PARTS).items()}
        form = self.noun_gender, self.plural_ending
        self.units, self.scales = nouns(self.UNITS, *form), nouns(self.SCALES, *form)
        self.currencies = currencies(self.CURRENCIES, *form)
        self.money_scales = nouns(self.MONEY_SCALES, *form) if self.MONEY_SCALES else {}
        self.group_mark = "," if self.decimal == "." else "."
        self.months = self.MONTHS.split()
        written = zip(self.months, self.SHORT_MONTHS.lower().split(), strict=True)
        self.month_forms = {
            form: number
            for number, (name, short) in enumerate(written, start=1)
            for form in (name.lower(), *short.split("/"))
            if form != "-"
        }
        abbreviations = table(self.ABBREVIATIONS)
        self.abbreviations = {key.replace("~", " "): abbreviations[key] for key in abbreviations}
        self.symbols = {"™": "", "®": "", "+": self.plus} | ({"/": " "} if self.space else {})
        self.symbols |= {} if "{}" in self.percent else {"%": self.percent}
        self.symbols |= table(self.SYMBOLS)
        for typed, sign in TYPED_SIGNS.items():
            if sign in self.symbols:
                self.symbols[typed] = self.symbols[sign]
        self.letters = dict(zip("abcdefghijklmnopqrstuvwxyz", self.LETTERS.split(), strict=False))
        self.web = {sign: self.symbols[sign] for sign in "@=&"} | {"+": self.plus}
        self.web |= table(self.WEB)
        self.final, self.links = frozenset(self.FINAL.split()), frozenset(self.LINKS.split())
        self.opens, self.followers = map(frozenset, (self.OPENS.split(), self.FOLLOWERS.split()))
        self.after_final, self.articles = (
            frozenset(words.split()) for words in (self.AFTER_FINAL, self.ARTICLES)
        )

    def with_letter_names(self, words: str) -> str:
        """Return the words with every letter that stands alone by its name: "p m" as "pee em"."""
        return _LETTER.sub(lambda match: self.letters.get(match[0].lower(), match[0]), words)

    def rules(self) -> Rules:
        """Return the rules for expressions that only this language has."""
        return ()

    def own_rules(self) -> Iterator[tuple[str, Say]]:
        """Yield the rules that go before those of all languages."""
        before = table(self.BEFORE_DIGITS).items()
        yield from ((pattern, self._saying(say)) for pattern, say in self.rules())
        yield from ((rf"{mark}(?=\d)", self._saying(words + " ")) for mark, words in before)

    def _saying(self, words: str | Say) -> Say:
        """Return what fills the slots of a template with the groups of a match."""
        if not isinstance(words, str):
            return words
        return lambda match, _: words.format(
            **{k: Slot(v, self) for k, v in match.groupdict().items()}
        )

    # ---- numbers ---------------------------------------------------------------------------------

    def cardinal(self, number: int, gender: str = "") -> str:
        """Return a number; `gender` is that of what it counts."""
        words = self.say(number)
        for ending, other in self.endings.get(gender, ()):
            words = re.sub(ending, other, words)
        return words

    def ordinal(self, number: int) -> str:
        """Return the ordinal of a number."""
        return self.say(number, "ordinal")

    def fraction(self, top: int, bottom: int) -> str:
        """Return a fraction."""
        return self.parts_form.format(top=self.cardinal(top), bottom=self.cardinal(bottom))

    def number(self, whole: str, decimals: str = "", gender: str = "") -> str:
        """Return the words of a number, whose digits come without marks."""
        if len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0"):
            return self.spell(whole + decimals)
        words = self.cardinal(int(whole), gender) if whole else ""
        if not decimals:
            return words
        if self.decimals_are_a_number and len(decimals) <= 2 and decimals[0] != "0":
            tail = self.cardinal(int(decimals))
        else:
            tail = self.spell(decimals)
        return self.space.join(filter(None, (words, self.point, tail)))

    def spell(self, text: str) -> str:
        """Return each digit of a text by itself."""
        numbers = [int(char) for char in text if char.isdigit()]
        if self.digits:
            return self.space.join(self.digits[number] for number in numbers)
        return self.space.join(map(self.cardinal, numbers))

    # ---- what is counted -------------------------------------------------------------------------

    def plural(self, number: int) -> int:
        """Return which form of a noun a number takes: 0 for one, 1 for few, 2 for many."""
        return 0 if number == 1 else 2

    def form(self, whole: str, decimals: str, noun: Noun) -> str:
        """Return the form of a noun after a number."""
        if decimals or not whole or len(whole) > MAX_DIGITS:
            return noun.many
        return (noun.one, noun.few, noun.many)[self.plural(int(whole))]

    def count(self, whole: str, decimals: str, noun: Noun) -> str:
        """Return a number with what it counts."""
        number = self.number(whole, decimals, noun.gender)
        return number + self.space + self.form(whole, decimals, noun)

    def noun_after(self, noun: Noun, before: str) -> Noun:
        """Return the noun that a number counts after the word `before`."""
        if before.lower().lstrip("(\"'“‘*_") not in self.articles or noun.one in _MULTIPLES:
            return noun
        return Noun(noun.one, noun.one, noun.one, noun.gender)

    def money(self, whole: str, cents: str, currency: Currency) -> str:
        """Return an amount with two decimals, or without any."""
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

    # ---- dates and times -------------------------------------------------------------------------

    def year(self, number: int) -> str:
        """Return the year that four digits mean."""
        return self.cardinal(number)

    def dated_year(self, number: int) -> str:
        """Return the year of a date."""
        return self.year(number)

    def month(self, number: int) -> str:
        """Return the month of a date."""
        return self.months[number - 1] if self.months else self.cardinal(number)

    def day(self, number: int, before: str) -> str:
        """Return the day of a date, after the word `before`."""
        return self.first_day if number == 1 and self.first_day else self.cardinal(number)

    def date(self, day: int, month: int, year: int | None, before: str) -> str:
        """Return a date, after the word `before`."""
        parts = {"day": self.day(day, before), "month": self.month(month)}
        if year is None:
            return self.dates[0].format(**parts)
        return self.dates[1].format(**parts, year=self.dated_year(year))

    def written_date(self, match: re.Match[str], before: str) -> str | None:
        """Return a date whose groups are "d", "m" and perhaps "y"; None where there is none."""
        name, day, year = match["m"].lower(), int(match["d"]), match["y"]
        month = self.month_forms.get(name) or (int(name) if name.isdigit() else 0)
        if not (1 <= month <= 12 and 1 <= day <= 31):
            return None
        if year and len(year) == 2:
            year = ("20" if int(year) < 70 else "19") + year
        return self.date(day, month, int(year) if year else None, before)

    def time(self, hour: int, minute: int, second: int | None) -> str:
        """Return a time of day."""
        words = self.times[1 if minute or second else 0] + (self.times[2] if second else "")
        h, m, s = (Slot(str(number), self) for number in (hour, minute, second or 0))
        return words.format(h=h, m=m, s=s, hours=self.form(str(hour), "", self.units["h"]))

    def clock(self, match: re.Match[str], before: str) -> str:
        """Return a time whose groups are "h" and perhaps "m" and "s"."""
        groups = match.groupdict()
        second = int(groups["s"]) if groups.get("s") else None
        return self.time(int(groups["h"]), int(groups.get("m") or 0), second)
