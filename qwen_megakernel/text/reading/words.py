"""How a language says numbers, what is counted, dates and times: what all languages share.

The numerals come from num2words. Each language has methods for what only that language does.
"""

import functools
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from qwen_megakernel.text.reading.cldr import Noun
from qwen_megakernel.text.reading.surroundings import CLOSING, Found, first_word
from qwen_megakernel.text.reading.tables import Currency, Tables

MAX_DIGITS = 15  # for a number that is read as one; the digits of a longer one are read singly

_DAY = re.compile(r" \{day\}[,일]|\{day\}日|\{day\} (?:de )?")  # of the form of a date
_FIELD = re.compile(r"\{(\w+)(?::([\w:%]+))?\}")


@functools.lru_cache(maxsize=16384)
def numeral(code: str, number: int, to: str, **options: str) -> str:
    """Return a number in the words of num2words, which is imported when it is first needed."""
    from num2words import num2words

    said: str = num2words(number, lang=code, to=to, **options)
    return said.replace(",", "")


class Words(Tables):
    """What one language says."""

    def fill(self, template: str, fields: Mapping[str, str]) -> str:
        """Return the words of a template.

        A field "{h}" is digits, read as a number, or words. After a colon stands a gender, a table
        of words, or a method and its options: "{h:f}", "{d:compass}", "{n:ordinal:gm}". A field
        that is not in `fields` is an attribute, such as "{plus}". "~" is a space at the edge.
        """

        def said(match: re.Match[str]) -> str:
            name, form = match.groups()
            if name not in fields:
                return str(getattr(self, name))
            if not fields[name].isdecimal() and form not in ("spell", "version"):
                names = getattr(self, form or "", None)
                said = names[fields[name]] if isinstance(names, dict) else fields[name]
                return said.many if isinstance(said, Noun) else said
            if not form or len(form) < 3:
                return self.cardinal(int(fields[name]), form or "")
            method, *options = form.split(":")
            is_text = method in ("spell", "spell_phone", "version")
            digits: Any = fields[name] if is_text else int(fields[name])
            return str(getattr(self, method)(digits, *options))

        return self.space.join(_FIELD.sub(said, template).split()).replace("~", self.space)

    def kept_point(self, found: Found) -> str:
        """Return "." if the last point of an expression also ends a sentence, and else ""."""
        return "." if found.text.endswith(".") and self.ends_sentence(found.rest) else ""

    def ends_sentence(self, rest: str) -> bool:
        """Return whether a sentence ends between an abbreviation's point and the text `rest`."""
        rest = rest.lstrip(CLOSING)
        first = rest.strip()
        if not first or (len(first) == 1 and first.isupper()):  # the rest of the word is unknown
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
        form = self.ordinal_form
        return form.format(self.cardinal(number)) if form else self.say(number, "ordinal")

    def fraction(self, top: int, bottom: int) -> str:
        return self.parts_form.format(top=self.cardinal(top), bottom=self.cardinal(bottom))

    def fraction_of(self, top: int, bottom: int, noun: Noun) -> str:
        """Return the words of a fraction of what a noun names, such as "three quarters mile"."""
        return self.fraction(top, bottom) + self.space + noun.one

    def mixed(self, whole: str, top: int, bottom: int, noun: Noun | None) -> str:
        """Return the words of a number with a fraction, such as "one and one half cups"."""
        joint = self._joint(self.fraction_joint or self.symbols["&"])
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
        say = self.digits.__getitem__ if self.digits else self.cardinal
        return self.space.join(map(say, numbers))

    def spell_phone(self, group: str) -> str:
        return self.spell(group)

    def gender_after(self, number: str, noun: str, before: str) -> str:
        """Return the gender that a number behind the word `before` has before a noun, or ""."""
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
        return 0 if number == 1 or (number == 0 and self.code == "fr") else 2

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
        return self.year(number)

    def month(self, number: int) -> str:
        return self.months[number - 1] if self.months else self.cardinal(number)

    def day(self, number: int, before: str) -> str:
        """Return the words of the day in a date that comes after the word `before`."""
        return self.first_day if number == 1 and self.first_day else self.cardinal(number)

    def date(self, day: int, month: int, year: int | None, before: str) -> str:
        """Return the words of a date; `day` is 0 for a month of a year."""
        parts = {"day": self.day(day, before) if day else "", "month": self.month(month)}
        form = self.dates[year is not None] if day else _DAY.sub("", self.dates[1])
        return form.format(**parts, year=year and self.dated_year(year))

    def time(self, hour: int, minute: int, second: int | None) -> str:
        template = self.times[1 if minute or second else 0] + (self.times[2] if second else "")
        fields = {"h": str(hour), "m": str(minute), "s": str(second or 0)}
        hours = self.form(str(hour), "", self.units["h"])
        return self.fill(template, fields | {"hours": hours})
