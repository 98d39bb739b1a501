"""Rules that French, Italian, Portuguese and Spanish have in common."""

import re

from qwen_megakernel.text.reading.cldr import Noun
from qwen_megakernel.text.reading.language import Language
from qwen_megakernel.text.reading.surroundings import Found, first_word
from qwen_megakernel.text.reading.tables import words


class Romance(Language):
    """A language with decimal commas, two decimals read as one number, and feminine ordinals."""

    decimal, decimals_are_a_number = ",", True
    plural_ending, book_number = "s", "{n:feminine}"
    feminine_marks = "(?!)"  # regular expression of what follows the digits of a feminine ordinal
    degree_is_ordinal = True
    feminine_names = words("Isabel Elizabeth Elisabeth")  # names of women that do not end in -a
    clock_words = words("")  # behind them "16.30" is a time
    halves = "mezzo", "mezza"  # before a masculine noun, and before a feminine one
    # Endings of nouns that follow a number, and words with such endings that are no nouns.
    FEMININE, MASCULINE = "a", "o"
    no_nouns = masculine_nouns = words("")
    last_ordinal_of_rulers = 10  # after higher numbers of rulers, cardinals are spoken

    RULES = r"""
    anni|años|anos|années|[dn]?[ae]l|du|sul|los|os|et|{FULL_MONTHS}
        >> ['’](?P<n>\d\d|[3-9]00)(?!['’]?\w) => {n}
    (?P<w>[5-9]|1\d|2\d)/(?P<b>20|30)(?![\d/]) => .rated
    (?:aux|l?es|des|à|a|pour|par|d['’]|enfants|jeunes|tarif|ai|gli|d?egli|dei|per|i|[ao]s|aos|às|d[ao]s|para|por|l[ao]s)
        >> [-−–](?!\S) => {minus}
    (?P<n>24)\s?h\s?/\s?24(?!\d) => {n:counted:h} {over} {n}
    (?P<n>\d{1,3})(?:{FEMININE_MARKS}) => {n:feminine}
    1/2(?=\s(?!(?:{UNITS})(?!\w))(?P<noun>[^\W\d_]{4,})(?!\w)) => .half
    {CLOCK_WORDS}|{DAYS}|.*\.\d\d[-–] >> {HOUR}\.{MINUTE}(?![\d.,]\d|\d|\s?%)(?:\sh(?!\w))? => .time
    {HOUR}\.{MINUTE}(?:\sh(?!\w)|(?<=00|15|30|45)(?=[-–]\d\d?\.(?:00|15|30|45)(?!\d|[.,]\d)))
        => .time
    """

    def agreeing(self, said: str, before: str) -> str:
        """Return the words with the elisions of Italian, and without wrong ones of French."""
        said = re.sub(r"\bd'(?=[^\Waeiouyhéè])", "de ", said)  # "millions de dollars"
        return re.sub(r"\buna (?=[aeiou])", "un'", said) if self.code == "it" else said

    def gender_after(self, number: str, noun: str, before: str) -> str:
        if number == "1/2" and noun not in self.no_nouns and self.code != "fr":
            return self.halves[noun.endswith(tuple(self.FEMININE.split()))]
        if not number.isdecimal():
            return ""
        value = int(number[-3:])
        is_varied = self.cardinal(value, "f") != self.cardinal(value)
        is_noun = noun.islower() and len(noun) > 3 and noun not in self.no_nouns
        if not (is_varied and is_noun):
            return ""
        if noun.removesuffix("s") in self.masculine_nouns:
            return "c"
        plural = "s" * (number != "1" and self.code != "it")
        if noun.endswith(tuple(each + plural for each in self.FEMININE.split())):
            return "f"
        return "c" if noun.endswith(tuple(each + plural for each in self.MASCULINE.split())) else ""

    def read_half(self, found: Found) -> str | None:
        return self.gender_after("1/2", found["noun"], "") or None

    def read_abbreviation(self, found: Found) -> str:
        """Return an adjective, whose entry ends with "o/a", in the gender of the noun before it."""
        said, noun = super().read_abbreviation(found), self.numbering(found)
        if not said.endswith("o/a"):
            return said
        is_feminine = noun.endswith(tuple(self.FEMININE.split()))
        is_feminine &= self.code == "it" or not found.before.isupper()  # "IVA"
        point = "" if first_word(found.rest).isupper() else self.kept_point(found)  # "incl. IVA"
        return said[:-3] + "oa"[is_feminine] + point

    def roman(self, number: int, found: Found, following: str) -> str | None:
        """Return an ordinal at a noun such as "century", and other numerals as elsewhere."""
        noun = self.numbering(found) if self.code == "it" else ""
        noun = following if following in self.centuries else noun
        if noun in self.centuries:
            return self.feminine(number) if noun.endswith("a") else self.ordinal(number)
        return super().roman(number, found, following)

    def regnal(self, number: int, name: str) -> str | None:
        if number > self.last_ordinal_of_rulers:
            return self.cardinal(number)
        is_feminine = name.endswith("a") or name in self.feminine_names
        return self.feminine(number) if is_feminine else self.ordinal(number)

    def fraction_of(self, top: int, bottom: int, noun: Noun) -> str:
        """Return words such as "media taza" and "tres cuartos de taza"."""
        if (top, bottom) == (1, 2):
            return f"{self.halves[noun.gender == 'f']} {noun.one}"
        return f"{self.fraction(top, bottom)}{self.scale_joint}{noun.one}"

    def mixed(self, whole: str, top: int, bottom: int, noun: Noun | None) -> str:
        """Return words such as "una taza y media" and "dos tazas y tres cuartos"."""
        part = self.fraction(top, bottom)
        if (top, bottom) == (1, 2):
            part = self.halves[noun is not None and noun.gender == "f"]
        said = self.count(whole, "", noun) if noun else self.number(whole)
        return f"{said} {self.symbols['&']} {part}"

    def feminine(self, number: int) -> str:
        return re.sub(r"o\b", "a", self.ordinal(number)).replace("premier", "première")

    def fraction(self, top: int, bottom: int) -> str:
        part = self.parts.get(bottom, "")
        if not part and bottom <= self.max_named_part:
            part = self.ordinal(bottom)
        if not part:
            return super().fraction(top, bottom)
        many = part[:-1] + "i" if self.code == "it" else part.removesuffix("s") + "s"
        return f"{self.cardinal(top, 'c')} {many if top > 1 else part}"
