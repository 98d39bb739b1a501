"""French: 15h30, 1er, and centuries in Roman numerals."""

import re

from qwen_megakernel.text.reading.cldr import Noun
from qwen_megakernel.text.reading.romance import Romance
from qwen_megakernel.text.reading.surroundings import Found


class French(Romance):
    RULES = r"""
    1er/(?P<m>0?[1-9]|1[0-2])(?![\d/]) => premier {m:month}
    (?P<h>\d{1,2})\s?h(?:eures?)?\s1/2(?!\d) => {h:counted:h} et demie
    (?P<n>7)\s?j\s?/\s?7(?!\d) => {n:counted:jour} sur {n}
    (?P<n>\d{1,3})\s?j(?:\.|(?!['’\w])) => {n:counted:jour}
    .+ >> /j(?!['’\w])(?:\.(?!\w))? => ~par jour{end}
    \d+(?:e|ème|re|ère) >> min\. => minute{end}
    2n?d(?P<e>e?)(?!\w) => second{e}
    (?!\d+(?:er?|ème)$).* >> arr\.(?=\s[\dA-Z]) => arrivée
    la|de|à >> (?P<n>\d{1,3})['′](?!\w) => {n:ordinal}
    [lrd]\. >> (?P<a>\d{1,4})-(?P<b>\d{1,3})(?![\d-]) => {a} tiret {b}
    le|au >> (?P<a>3\d)(?P<b>[1-9]\d)(?!\d|[.,:/-]\d|\s?[€%]|\s[^\W\d_]+s(?!\w)) => {a} {b}
    4x(?P<n>4)(?!\d|[x.,]\d|\s?(?:{UNITS})(?!\w)) => quatre {n}
    (?P<m>[12])\s?m\s?(?P<c>\d\d)(?!\w) => {m:counted:m} {c}
    \b[IVX]+(?:er?|ᵉʳ?)(?:[-–]|,\s|\s(?:et|ou|au|à)\s)\S+\s$ >> s\. => siècles{end}
    [ivx]+(?:er?|ᵉʳ?) >> s\. => siècle{end}
    """

    def roman(self, number: int, found: Found, following: str) -> str | None:
        ending = re.sub(".*[IVXLCDM]", "", found.text)
        if ending == "re":
            return "première"
        is_ordinal = ending in ("e", "ᵉ") and {*found["r"]} <= {*"IVX"}
        if is_ordinal or (following in self.centuries and ending != "."):
            return self.ordinal(number)
        return super().roman(number, found, following) if ending in ("", ".", "er") else None

    def fraction_of(self, top: int, bottom: int, noun: Noun) -> str:
        """Return words such as "une demi-tasse" and "trois quarts de tasse"."""
        if (top, bottom) == (1, 2):
            return f"{'une' if noun.gender == 'f' else 'un'} demi-{noun.one}"
        joint = " d'" if noun.one[0] in "aeiouéh" else " de "
        return self.fraction(top, bottom) + joint + noun.one
