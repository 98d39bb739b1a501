"""Italian: "un" and "una", ordinals such as "1º", and the plurals of fractions."""

import re

from qwen_megakernel.text.reading.cldr import Noun
from qwen_megakernel.text.reading.romance import Romance
from qwen_megakernel.text.reading.surroundings import Found

_CENTURIES = ("secolo", "millennio", "secoli", "guerra")  # before an ordinal


class Italian(Romance):
    RULES = r"""
    (?P<a>lun|mar|mer|gio|ven|sab|dom)(?=\s\d{1,2}(?:[-–:/]\d|\s{MONTH})) => .days
    {HOUR}\s?h\s?{MINUTE}(?!\w|['′]) => .time
    all?|dall?|[dn]el|il|sul >> (?P<n>\d{1,3})['′](?!\w) => {n:ordinal}
    """

    def say(self, number: int, to: str = "cardinal", **options: str) -> str:
        return re.sub(r"\Btre\b", "tré", super().say(number, to, **options))

    def roman(self, number: int, found: Found, following: str) -> str | None:
        if following in self.centuries or self.numbering(found) in _CENTURIES:
            return self.ordinal(number)
        return super().roman(number, found, following)

    def count(self, whole: str, decimals: str, noun: Noun, first: str = "") -> str:
        return re.sub(r"\buna (?=[aeiou])", "un'", super().count(whole, decimals, noun, first))

    def parts_of(self, part: str) -> str:
        """Return the plural of a denominator's name."""
        return part[:-1] + "i"
