"""Italian: "un" and "una", ordinals such as "1º", and the plurals of fractions."""

import re

from qwen_megakernel.text.reading.romance import Romance
from qwen_megakernel.text.reading.surroundings import Found

_IMPURE = re.compile("s[^aeiou]|z|gn|ps|x|y")


class Italian(Romance):
    RULES = r"""
    (?P<n>\d{1,2})°\sp\. => {n:ordinal} piano{end}
    {HOUR}\s?h\s?{MINUTE}(?!\w|['′]) => .time
    arriv\w+|classificat\w+|piazzat\w+|giunt\w+ >> (?P<n>\d{1,3})°(?![CF\d]) => {n:ordinal}
    all?|dall?|[dn]el|il|sul|e >> (?P<n>\d{1,3})['′](?!\w) => {n:ordinal}
    """

    def gender_after(self, number: str, noun: str, before: str) -> str:
        gender = super().gender_after(number, noun, before)
        return "" if gender == "c" and _IMPURE.match(noun) else gender  # "uno zaino"

    def read_per(self, found: Found) -> str:
        """Return "al giorno", or "per chilogrammo" behind another unit."""
        said = super().read_per(found)
        unit = self.units.get(found["per"])
        if not unit or not (
            found["sym"] or re.search("(?:x|volt[ae])/|/die|^/(?:giorno|mese|anno)", found.text)
        ):
            return said
        article = "all'" if unit.one[0] in "aeiou" else "alla " if unit.gender == "f" else "al "
        return said.replace("per ", article)

    def read_date(self, found: Found) -> str | None:
        said = super().read_date(found)
        return re.sub("^primo", "uno", said) if said and found.last == "'" else said

    def say(self, number: int, to: str = "cardinal", **options: str) -> str:
        return re.sub(r"\Btre\b", "tré", super().say(number, to, **options))
