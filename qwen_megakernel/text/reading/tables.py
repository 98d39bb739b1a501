"""The tables of a language: what it says, apart from numerals, and how it writes.

They are in a file of `language_tables`, whose keys are attributes of `Tables` or of `Romance`.
An attribute in capitals is a string of entries "keys: value"; spaces separate keys, and semicolons
or line ends separate entries. These are parsed when a language is first used.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from qwen_megakernel.text.languages import code_of_language
from qwen_megakernel.text.reading.cldr import (
    Noun,
    currency_forms,
    month_names,
    unit_forms,
    weekday_names,
)

# Signs as they are typed, and the signs that they stand for.
TYPED_SIGNS = {">=": "≥", "<=": "≤", "!=": "≠", "->": "→", "=>": "→", "==": "="}

_FILES = Path(__file__).parent / "language_tables"
_NUMBER_SIGNS = ("n.º", "nº", "n°", "N.º", "Nº", "N°")
_NAMES = {"max.", "art.", "mar.", "etc."}  # abbreviations that are words if they are capitalised
# Units that people also type with other capitals, and that remain the same units.
_TYPED_ANYHOW = re.compile(
    "(?:[kMG]?Hz|kWh?|mAh|km(?:/h)?|kg|cm|ml|[MGT]B|tbsp|tsp|lbs?|oz"
    "|кВт|кВт·?ч|[кМГ]?Гц|мА·?ч|км(?:/ч)?|кг|мл|[МГТ]Б)"
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


class Tables:
    """The tables of one language."""

    code: str  # the language's code in num2words
    # Numbers.
    minus = "minus"
    plus = "plus"
    subtraction = ""  # the word for a minus between two numbers, if it is not `minus`
    point: str  # between a whole number and its decimals
    decimal = "."  # the mark before decimals; the other one of "." and "," groups thousands
    decimals_are_a_number = False  # whether two decimals are read as one number
    ENDINGS = ""  # for each gender: regular expressions to replace in a numeral, and replacements
    DIGITS = ""  # the ten digits, if a single digit is read differently from a number
    PARTS = ""  # names of fractions by their denominators: "4: Viertel"
    fraction_joint = ""  # between a number and a fraction, if it is not the word for "&"
    parts_form = "{bottom} {top}"  # the words of a fraction whose denominator has no name
    ordinal_form = ""  # the words of an ordinal, if a cardinal is part of them
    ordinal_marks = r"(?!)"  # regular expression of what follows the digits of an ordinal
    degree_is_ordinal = False  # whether "1°" may be an ordinal
    pointed_endings: tuple[str, ...] = ()  # of words with a point, such as "Hauptstr."
    has_ordinal_points = False  # whether "5." may be an ordinal
    number_sign: str  # the word for "#" before a number
    opus = "opus"
    BEFORE_DIGITS = ""  # further regular expressions of marks before numbers, and their words
    COMPASS = ""  # the names of the directions by their letters
    to: str  # the word between the ends of a range
    suffixes: tuple[str, ...] = ()  # written together with the number before them
    score: str | None = None  # the word between the numbers of 16:9 and 3-1, if it is not `to`
    by: str  # the word between the dimensions of a thing, as in 3 x 4
    count_joint = ""  # the same between a count and a quantity, if it is not the word for "×"
    over: str  # the word in a reading of two numbers such as 118/76
    rating: str  # the words of a rating such as 4.5/5
    position = ""  # the words of a place in a total, as in "page 5/12", if they are others
    chapter, verse = ",", ""  # what is said behind the two numbers of "John 3:16"
    born = ""  # what is said for the star in "(* 1749)"
    version_mark = r"v\.?"  # regular expression of it
    version_name = "version"  # what is said for the "v" of "v2.1"
    BOOKS = ""  # of the Bible, which may have a number, as they are written
    book_number = "{n:ordinal}"  # what is said for that number
    power: str  # what is said for "^", with "{}" for the number after it
    postal_digits = 5  # of a postal code
    groups_with_spaces = False  # whether spaces group the thousands of a number
    extension = ""  # the word for the "x" behind a telephone number
    # Nouns after numbers.
    noun_gender = "m"
    plural_ending = ""
    UNITS: str  # "~" stands for a space in their symbols, "{}" in a name for the number
    has_compounds = False  # whether a unit is singular after a hyphen, as in "a 10-km race"
    articles = words("")  # after them the unit of a number is singular, as in "a $5 bill"
    feminine_articles = words("")  # in lower case; after them a number alone is feminine
    SCALES: str  # written after a number: "million", "bn"
    MONEY_SCALES = ""  # scales that only amounts of money have
    CURRENCIES: str  # "signs: noun / noun of the hundredth part"
    per: str  # the word for "/" in km/h
    money_joint = " "  # the text between whole units and hundredth parts
    says_cents = True  # whether the name of the hundredth part is spoken
    scale_joint = " "  # the text between a scale and a currency
    numbered = words("")  # in lower case, before a Roman numeral: "chapter"
    rulers = words("")  # names and titles before the number of a ruler
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
    halves = "", ""  # of the day, before the hour
    times = "", "", ""  # templates: on the hour, with minutes, and the ending with seconds
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
    followers = words("am pm a.m p.m")  # words, in lower case, that may belong to a number before
    space = " "  # the text between words
    letters_follow = False  # whether words are written directly after digits

    def __init_subclass__(cls) -> None:
        """Give a language its code and the attributes in its file."""
        cls.code = code_of_language(cls.__name__) or ""
        file = _FILES / f"{cls.__name__.lower()}.toml"
        own = tomllib.loads(file.read_text("utf-8")) if file.exists() else {}
        for name, value in own.items():
            if not hasattr(cls, name) and name not in Tables.__annotations__:
                raise ValueError(f"{file}: unknown key {name!r}; add it to Tables, or correct it.")
            is_set = isinstance(getattr(cls, name, None), frozenset)
            listed = tuple(value) if isinstance(value, list) else value
            setattr(cls, name, words(value) if is_set else listed)

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
        names = {each.unit.many: each for each in self.currencies.values()} | self.currencies
        # Codes and plurals, as in "$80 MXN".
        self.currency_names = {
            name: names[name] for name in names if len(name) > 3 or name.isupper()
        }
        if not self.space:
            self.money_joint = self.scale_joint = ""
        self.compass = table(self.COMPASS)
        self.group_mark = "," if self.decimal == "." else "."
        self.ratio = self.to if self.score is None else self.score
        self.books = table(self.BOOKS)
        self.opens |= {*_NUMBER_SIGNS, "№", "op.", "Op.", "v.", "ver.", "Ver.", "AM", "PM"}
        self.opens |= {"km", "Km"} & {*self.units}
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
        self.weekdays = weekday_names(self.code)
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
        self.symbols |= {} if "{}" in self.units["%"].many else {"%": self.units["%"].many}
        self.symbols |= table(self.SYMBOLS)
        self.symbols.setdefault("*", self.symbols["×"])
        known = {typed: sign for typed, sign in TYPED_SIGNS.items() if sign in self.symbols}
        self.symbols |= {typed: self.symbols[sign] for typed, sign in known.items()}
        self.day_links = [self.to, self.symbols["&"], *self.links]
        self.letters = dict(zip("abcdefghijklmnopqrstuvwxyz", self.LETTERS.split(), strict=False))
        self.web = {sign: self.symbols[sign] for sign in "@=&"} | {"+": self.plus}
        self.web |= table(self.WEB)
        self.dot, self.slash, self.web["∗"] = self.web["."], self.web["/"], self.web["*"]
