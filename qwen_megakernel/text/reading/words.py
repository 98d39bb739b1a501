"""How a language says numbers, what is counted, dates and times.

`Words` holds what all languages share; each language has tables, and methods for what only that
language does. A table is a string of entries "keys: value"; spaces separate keys, and semicolons or
line ends separate entries. The tables are parsed when a language is first used. The numerals come
from num2words.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qwen_megakernel.text.reading.cldr import (
    Noun,
    currency_forms,
    month_names,
    unit_forms,
    weekday_names,
)
from qwen_megakernel.text.reading.surroundings import CLOSING, Found, first_word

# Signs as they are typed, and the signs that they stand for.
TYPED_SIGNS = {">=": "≥", "<=": "≤", "!=": "≠", "->": "→", "=>": "→", "==": "="}
MAX_DIGITS = 15  # for a number that is read as one; the digits of a longer one are read singly

_FIELD = re.compile(r"\{(\w+)(?::([\w:]+))?\}")
_ROMAN = re.compile("M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_NUMBER_SIGNS = ("n.º", "nº", "n°", "N.º", "Nº", "N°")
_NAMES = {"max.", "art.", "mar.", "etc."}  # abbreviations that are words if they are capitalised
# Units that people also type with other capitals, and that remain the same units.
_TYPED_ANYHOW = re.compile(
    "(?:[kMG]?Hz|kWh?|mAh|km(?:/h)?|kg|cm|ml|[MGT]B|кВт|кВт·?ч|[кМГ]?Гц|мА·?ч|км(?:/ч)?|кг|мл|[МГТ]Б)"
)


@dataclass(frozen=True, slots=True)
class Currency:
    """A currency and its hundredth part, such as dollar and cent."""

    unit: Noun
    cent: Noun | None


def words(text: str) -> frozenset[str]:
    """Return the words of a text; "~" stands for a space in them."""
    return frozenset(word.replace("~", " ") for word in text.split())


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
        entries: "symbols: one, few, many, gender"; all but the first form may be left out. A form
            that begins with a hyphen is an ending for the first form.
        gender: the gender for entries that name none.
        ending: the plural ending for entries with a single form.
    """
    found: dict[str, Noun] = {}
    for key, value in table(entries).items():
        first, *others = [form.strip() for form in value.split(",")]
        own = others.pop() if others and others[-1] in ("c", "m", "f", "n") else gender
        others = [first + form[1:] if form[0] == "-" else form for form in others]
        others = others or [first + ending]
        found[key.replace("~", " ")] = Noun(first, others[0], others[-1], own)
    return found


def any_of(forms: Iterable[str]) -> str:
    """Return a pattern that matches any of these words and prefers the longest."""
    return "|".join(map(re.escape, sorted(forms, key=len, reverse=True))) or r"(?!)"


def roman_number(text: str) -> int:
    """Return the number of a Roman numeral, or 0 for other letters."""
    if not _ROMAN.fullmatch(text):
        return 0
    letters = dict(zip("IVXLCDM", (1, 5, 10, 50, 100, 500, 1000), strict=True))
    values = [letters[char] for char in text]
    pairs = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < following else value for value, following in pairs)


@functools.lru_cache(maxsize=16384)
def numeral(code: str, number: int, to: str, **options: str) -> str:
    """Return a number in the words of num2words, which is imported when it is first needed."""
    from num2words import num2words

    said: str = num2words(number, lang=code, to=to, **options)
    return said.replace(",", "")


class Words:
    """The words of one language. An attribute in capitals is a table."""

    code: str  # the language's code in num2words
    # Numbers.
    minus: str
    plus: str
    subtraction = ""  # the word for a minus between two numbers, if it is not `minus`
    point: str  # between a whole number and its decimals
    decimal = "."  # the mark before decimals; the other one of "." and "," groups thousands
    decimals_are_a_number = False  # whether two decimals are read as one number
    ENDINGS = ""  # for each gender: regular expressions to replace in a numeral, and replacements
    DIGITS = ""  # the ten digits, if a single digit is read differently from a number
    PARTS = ""  # names of fractions by their denominators: "4: Viertel"
    parts_form = "{bottom} {top}"  # the words of a fraction whose denominator has no name
    ordinal_marks = r"(?!)"  # regular expression of what follows the digits of an ordinal
    degree_is_ordinal = False  # whether "1°" may be an ordinal
    pointed_endings: tuple[str, ...] = ()  # of words with a point, such as "Hauptstr."
    has_ordinal_points = False  # whether "5." may be an ordinal
    number_sign: str  # the word for "#" before a number
    opus = "opus"
    BEFORE_DIGITS = ""  # further regular expressions of marks before numbers, and their words
    percent: str  # the word after the number; a "{}" in it stands for the number
    PERCENT = ""  # its forms after 1, 2 and 5
    to: str  # the word between the ends of a range
    suffixes: tuple[str, ...] = ()  # written together with the number before them
    score: str | None = None  # the word between the numbers of 16:9 and 3-1, if it is not `to`
    by: str  # the word between the dimensions of a thing, as in 3 x 4
    over: str  # the word in a reading of two numbers such as 118/76
    rating: str  # the words of a rating such as 4.5/5
    chapter, verse = ",", ""  # what is said behind the two numbers of "John 3:16"
    power: str  # what is said for "^", with "{}" for the number after it
    postal_digits = 5  # of a postal code
    groups_with_spaces = False  # whether spaces group the thousands of a number
    extension = ""  # the word for the "x" behind a telephone number
    # Nouns after numbers.
    noun_gender = "m"
    plural_ending = ""
    UNITS: str  # "~" stands for a space in their symbols
    has_compounds = False  # whether a unit is singular after a hyphen, as in "a 10-km race"
    articles = words("")  # after them the unit of a number is singular, as in "a $5 bill"
    feminine_articles = words("")  # in lower case; after them a number alone is feminine
    SCALES: str  # written after a number: "million", "bn"
    MONEY_SCALES = ""  # scales that only amounts of money have
    CURRENCIES: str  # "signs: noun / noun of the hundredth part"
    per: str  # the word for "/" in km/h
    money_joint: str  # the text between whole units and hundredth parts
    says_cents = True  # whether the name of the hundredth part is spoken
    scale_joint = " "  # the text between a scale and a currency
    numbered = words("")  # in lower case, before a Roman numeral: "chapter"
    centuries = words("")  # words for "century" that come after a Roman numeral
    # Dates and times.
    due = words("")  # in lower case; after them 3/4 is a date
    max_named_part = 9999  # the largest denominator that is read as an ordinal
    SHORT_MONTHS = ""  # abbreviations without their point; "-" for none, "/" between several
    links = words("")  # inside a written date, such as "of"
    years_joint: str | None = None  # the text in 2019/20, if it is not a space
    day_first = True  # whether 5/3 is the fifth of March
    first_day = ""  # the word for the first day of a month, if it is not a cardinal
    dates = "{day} {month}", "{day} {month} {year}"
    times = "", "", ""  # templates: on the hour, with minutes, and the ending with seconds
    time_marks = r"\s(?:Uhr|h)\b"  # regular expression of words behind a time that `time` says
    # Words and marks.
    ABBREVIATIONS = ""  # "~" stands for a space in them
    final = words("")  # abbreviations that may end a sentence
    starters = words("")  # with which sentences begin
    nouns_are_capitalised = False  # whether only these words show that a sentence begins
    after_final = words("")  # capitalised words before which such abbreviations do not end one
    SYMBOLS: str
    LETTERS = ""  # the names of the letters, in order, for a model that reads only words
    WEB: str  # names of the characters in addresses
    opens = words("")  # as written; their reading depends on the next word
    followers = words("")  # further words, in lower case, that may belong to the number before them
    space = " "  # the text between words
    letters_follow = False  # whether words are written directly after digits

    def __init__(self) -> None:
        endings = table(self.ENDINGS).items()
        self.endings = {key: [pair.split() for pair in pairs.split(", ")] for key, pairs in endings}
        self.digits = self.DIGITS.split()
        self.parts = {int(bottom): part for bottom, part in table(self.PARTS).items()}
        form = self.noun_gender, self.plural_ending
        self.scales = nouns(self.SCALES, *form)
        self.money_scales = nouns(self.MONEY_SCALES, *form)
        self.units = unit_forms(self.code, self.noun_gender) | nouns(self.UNITS, *form)
        self.units = {unit: self.units[unit] for unit in self.units.keys() - self.scales.keys()}
        for symbol in [*filter(_TYPED_ANYHOW.fullmatch, self.units)]:
            first, last = symbol[:-1], symbol[-1].upper()
            for typed in (symbol.lower(), symbol.upper(), symbol.capitalize(), first + last):
                self.units.setdefault(typed, self.units[symbol])
        signs = currency_forms(self.code, self.noun_gender)
        self.currencies = {sign: Currency(signs[sign], None) for sign in signs}
        for sign, value in table(self.CURRENCIES).items():
            unit, *cents = (nouns(f"x: {each}", *form)["x"] for each in value.split(" / "))
            self.currencies[sign] = Currency(unit, cents[0] if cents else None)
        self.percent_noun = nouns(f"%: {self.PERCENT or self.percent}")["%"]
        self.group_mark = "," if self.decimal == "." else "."
        self.ratio = self.to if self.score is None else self.score
        self.opens |= {*_NUMBER_SIGNS, "№", "op.", "Op."}
        self.opens |= {"km"} & {*self.units}
        self._name_days_and_months()
        self._name_signs()
        for each in [*self.numbered]:  # and their plurals, regular ones and Italian ones
            self.numbered |= {f"{each}s", f"{each[:-1]}i", f"{each[:-1]}e"}
        abbreviations = dict.fromkeys(_NUMBER_SIGNS, self.number_sign) | table(self.ABBREVIATIONS)
        self.abbreviations = {key.replace("~", " "): abbreviations[key] for key in abbreviations}
        self.before_digits = {r"[nN]\.?[º°]\s?|№\s?": self.number_sign, r"[Oo]p\.\s": self.opus}
        self.before_digits |= table(self.BEFORE_DIGITS)
        for key, said in [*self.abbreviations.items()]:  # "chap." may begin a sentence
            capitalised = key.capitalize()
            if capitalised in self.abbreviations or not key[:-1].islower():
                continue
            if len(key) > 3 - (self.code == "ru") and key not in _NAMES:
                self.abbreviations[capitalised] = said
            elif len(key) > 2 and key[-1] == ".":  # "Max" and "Art" are also names
                self.before_digits[re.escape(capitalised) + r"\s"] = said.removesuffix("/a")
                self.opens |= {capitalised}
        # Forms that end with a point which may also end a sentence.
        forms = [*self.units, *self.scales, *self.money_scales, *self.currencies, *self.final]
        forms += [key for key, said in self.abbreviations.items() if said.endswith("o/a")]
        self.pointed = frozenset(form.split()[-1] for form in forms if form.endswith("."))
        months = {*self.month_forms} - self.full_months
        self.pointed |= {f"{form}." for form in (*months, *self.units, *self.weekdays)}

    def _name_days_and_months(self) -> None:
        self.months = month_names(self.code)
        self.weekdays = {
            form: name
            for short, name in weekday_names(self.code).items()
            for form in (short.rstrip("."), short.rstrip(".").capitalize())
        }
        if self.due:
            self.due |= {each.lower() for names in self.weekdays.items() for each in names}
        self.full_months = frozenset(map(str.lower, self.months))
        written = zip(self.months, self.SHORT_MONTHS.lower().split(), strict=True)
        self.month_forms = {
            form: number
            for number, (name, short) in enumerate(written, start=1)
            for form in (name.lower(), *short.split("/"))
            if form != "-"
        }

    def _name_signs(self) -> None:
        self.symbols = {"™": "", "®": "", "+": self.plus, "−": self.minus}
        self.symbols |= {"/": " "} if self.space else {}
        self.symbols |= {} if "{}" in self.percent else {"%": self.percent}
        self.symbols |= table(self.SYMBOLS)
        self.symbols.setdefault("*", self.symbols["×"])
        known = {typed: sign for typed, sign in TYPED_SIGNS.items() if sign in self.symbols}
        self.symbols |= {typed: self.symbols[sign] for typed, sign in known.items()}
        self.letters = dict(zip("abcdefghijklmnopqrstuvwxyz", self.LETTERS.split(), strict=False))
        self.web = {sign: self.symbols[sign] for sign in "@=&"} | {"+": self.plus}
        self.web |= table(self.WEB)

    def fill(self, template: str, fields: Mapping[str, str]) -> str:
        """Return the words of a template.

        A field "{h}" is digits, read as a number, or words. After a colon stands the number's
        gender, or the name of a method and its options: "{h:f}", "{y:year}", "{n:ordinal:gm}". A
        field that is not in `fields` is an attribute, such as "{plus}". "~" is a space at the edge.
        """

        def said(match: re.Match[str]) -> str:
            name, form = match.groups()
            if name not in fields:
                return str(getattr(self, name))
            if not fields[name].isdecimal():
                return fields[name]
            if not form or len(form) < 3:
                return self.cardinal(int(fields[name]), form or "")
            method, *options = form.split(":")
            digits: Any = fields[name] if method.startswith("spell") else int(fields[name])
            return str(getattr(self, method)(digits, *options))

        return self.space.join(_FIELD.sub(said, template).split()).replace("~", " ")

    def kept_point(self, found: Found) -> str:
        """Return "." if the last point of an expression also ends a sentence, and else ""."""
        return "." if found.text.endswith(".") and self.ends_sentence(found.rest) else ""

    def ends_sentence(self, rest: str) -> bool:
        """Return whether a sentence ends between an abbreviation's point and the text `rest`."""
        rest = rest.lstrip(CLOSING)
        if not rest.strip():
            return True
        word = first_word(rest)
        if not rest[0].isspace() or not word[:1].isupper():
            return False
        if self.nouns_are_capitalised or rest.lstrip()[0] == "(":
            return word in self.starters
        return not {word, f"{word}."} & {*self.abbreviations, *self.after_final}

    # ---- numbers ---------------------------------------------------------------------------------

    def _joint(self, word: str) -> str:
        """Return a word with the spaces between it and two others."""
        return ("" if word in self.suffixes else self.space) + word + self.space

    @property
    def between_ends(self) -> str:
        """The word between the ends of a range, with its spaces."""
        return self._joint(self.to)

    def say(self, number: int, to: str = "cardinal", **options: str) -> str:
        """Return a number in the words of num2words; `to` is its kind."""
        return numeral(self.code, number, to, **options)

    def cardinal(self, number: int, gender: str = "") -> str:
        """Return the words of a number; `gender` is the gender of the noun after it."""
        said = self.say(number)
        for ending, other in self.endings.get(gender, ()):
            said = re.sub(ending, other, said)
        return said

    def ordinal(self, number: int) -> str:
        return self.say(number, "ordinal")

    def fraction(self, top: int, bottom: int) -> str:
        """Return the words of a fraction with the given numerator and denominator."""
        return self.parts_form.format(top=self.cardinal(top), bottom=self.cardinal(bottom))

    def fraction_of(self, top: int, bottom: int, noun: Noun) -> str:
        """Return the words of a fraction of what a noun names, such as "three quarters mile"."""
        return self.fraction(top, bottom) + self.space + noun.one

    def mixed(self, whole: str, top: int, bottom: int, noun: Noun | None) -> str:
        """Return the words of a number with a fraction, such as "one and one half cups"."""
        joint = self.space + self.symbols["&"] + self.space
        said = self.number(whole) + joint + self.fraction(top, bottom)
        return said + (self.space + noun.many if noun else "")

    def number(self, whole: str, decimals: str = "", gender: str = "") -> str:
        """Return the words of a number whose digits are given without grouping marks."""
        if len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0"):
            return self.spell(whole + decimals)
        said = self.cardinal(int(whole), "" if decimals else gender) if whole else ""
        if not decimals:
            return said
        if self.decimals_are_a_number and len(decimals) <= 2 and decimals[0] != "0":
            tail = self.cardinal(int(decimals))
        else:
            tail = self.spell(decimals)
        return self.space.join(filter(None, (said, self.point, tail)))

    def spell(self, text: str) -> str:
        """Return the words of the digits in a text, one by one."""
        numbers = [unicodedata.digit(char) for char in text if char.isdigit()]  # "₂" is 2
        if self.digits:
            return self.space.join(self.digits[number] for number in numbers)
        return self.space.join(map(self.cardinal, numbers))

    def spell_phone(self, group: str) -> str:
        """Return the words of the digits in one group of a telephone number."""
        return self.spell(group)

    def gender_after(self, number: str, noun: str, before: str) -> str:
        """Return the gender that a number has before a noun; "": it has the form that it has alone.

        Args:
            number: its digits.
            before: the word before the number.
        """
        return ""

    def may_agree(self, number: str, noun: str) -> bool:
        """Return whether a number may have another form before a noun than it has alone."""
        return bool(self.gender_after(number, noun, ""))

    def regnal(self, number: int, name: str) -> str | None:
        """Return the words of the number behind a ruler's name."""
        return None

    # ---- nouns after numbers ---------------------------------------------------------------------

    def plural(self, number: int) -> int:
        """Return the form of a noun after a number: 0 is `one`, 1 is `few`, 2 is `many`."""
        return 0 if number == 1 else 2

    def form(self, whole: str, decimals: str, noun: Noun) -> str:
        """Return the noun in its form after a number, which may have decimals."""
        if decimals or not whole or len(whole) > MAX_DIGITS:
            return noun.many
        return (noun.one, noun.few, noun.many)[self.plural(int(whole))]

    def count(self, whole: str, decimals: str, noun: Noun, first: str = "") -> str:
        """Return the words of a number, after those of `first`, and of the noun after it."""
        number, name = self.number(whole, decimals, noun.gender), self.form(whole, decimals, noun)
        if "{}" in name:
            return name.format(first + number)
        return first + number + self.space + name

    def counted(self, number: int, unit: str) -> str:
        """Return the words of a number and of the unit with this symbol."""
        return self.count(str(number), "", self.units[unit])

    def agreeing(self, said: str, before: str) -> str:
        """Return the words of an expression in the case that the word before it asks for."""
        return said

    def noun_after(self, noun: Noun, before: str) -> Noun:
        """Return the forms of a noun after a number; after an article, all are singular."""
        if before.lower() not in self.articles or noun.one == "time":  # "a two times gain"
            return noun
        return Noun(noun.one, noun.one, noun.one, noun.gender)

    def money(self, whole: str, cents: str, currency: Currency) -> str:
        """Return the words of an amount of money, which has two decimals or none."""
        if not currency.cent or not cents or len(whole) > MAX_DIGITS:
            return self.count(whole, cents.strip("0") and cents, currency.unit)
        number = int(cents)
        part = self.count(str(number), "", currency.cent)
        if not int(whole or "0"):
            return part if number else self.count("0", "", currency.unit)
        said = self.count(whole, "", currency.unit)
        if not number:
            return said
        return said + self.money_joint + (part if self.says_cents else self.number(str(number)))

    # ---- dates and times -------------------------------------------------------------------------

    def year(self, number: int) -> str:
        return self.cardinal(number)

    def is_year(self, digits: str) -> bool:
        """Return whether digits without a mark between thousands are read as a year."""
        return len(digits) == 4 and "1100" <= digits < "2100"

    def dated_year(self, number: int) -> str:
        """Return the words of the year in a date."""
        return self.year(number)

    def month(self, number: int) -> str:
        """Return the name of a month, 1 to 12, in a date."""
        return self.months[number - 1] if self.months else self.cardinal(number)

    def day(self, number: int, before: str) -> str:
        """Return the words of the day in a date that comes after the word `before`."""
        return self.first_day if number == 1 and self.first_day else self.cardinal(number)

    def date(self, day: int, month: int, year: int | None, before: str) -> str:
        """Return the words of a date that comes after the word `before`."""
        parts = {"day": self.day(day, before), "month": self.month(month)}
        if year is None:
            return self.dates[0].format(**parts)
        return self.dates[1].format(**parts, year=self.dated_year(year))

    def time(self, hour: int, minute: int, second: int | None) -> str:
        """Return the words of a time of day."""
        template = self.times[1 if minute or second else 0] + (self.times[2] if second else "")
        fields = {"h": str(hour), "m": str(minute), "s": str(second or 0)}
        hours = self.form(str(hour), "", self.units["h"])
        return self.fill(template, fields | {"hours": hours})
