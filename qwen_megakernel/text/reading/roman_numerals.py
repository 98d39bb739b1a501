"""Roman numerals, alone, in ranges and in lists, behind a name or a word such as "chapter"."""

import re

from qwen_megakernel.text.reading.codes import Codes
from qwen_megakernel.text.reading.surroundings import Found, first_word

_ROMAN = re.compile("M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
# "centuries XVII and XVIII": a list of Roman numerals, and the word before it.
_LISTED = re.compile(r"([^\W\d_]+\.?)\s[IVXLC]+(?:,\s[IVXLC]+)*,?\s\w+\s$")


def roman_number(text: str) -> int:
    """Return the number of a Roman numeral, or 0 for other letters."""
    if not _ROMAN.fullmatch(text):
        return 0
    letters = dict(zip("IVXLCDM", (1, 5, 10, 50, 100, 500, 1000), strict=True))
    values = [letters[char] for char in text]
    pairs = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < following else value for value, following in pairs)


class RomanNumerals(Codes):
    """The rules of Roman numerals; `roman` is what a language may say otherwise."""

    def read_roman(self, found: Found) -> str | None:
        """Return the words of a Roman numeral after a name or a word such as "chapter"."""
        number = roman_number(found["r"])
        if number and self.letters_follow and not found.before[-1:].isascii():
            return self.cardinal(number)  # between characters of another script
        if not number or found.last.strip(" (\"'"):
            return None
        said = self.roman(number, found, first_word(found.rest))
        return said + self.kept_point(found) if said else None

    def roman(self, number: int, found: Found, following: str) -> str | None:
        """Return the words of a Roman numeral before the word `following`."""
        before = self.numbered_by(found)
        if self.numbering(found) in self.numbered:
            return self.cardinal(number)
        is_word = before.replace("-", "").isalpha()  # "Jean-Paul"
        is_name = before[:1].isupper() and is_word and not before.isupper()
        is_name &= before not in self.abbreviations  # "Mlle X"
        return self.regnal(number, before) if is_name and {*found["r"]} <= {*"IVX"} else None

    def read_roman_range(self, found: Found) -> str | None:
        """Return the words of a range of Roman numerals, such as "chapters II-IV"."""
        numbers = roman_number(found["r"]), roman_number(found["to"])
        if not 0 < numbers[0] < numbers[1]:
            return None
        if self.numbering(found) in self.numbered:
            return self.between_ends.join(map(self.cardinal, numbers))
        following = first_word(found.rest)
        said = [self.roman(number, found, following) or "" for number in numbers]
        return self.between_ends.join(said) if all(said) else None

    def numbered_by(self, found: Found) -> str:
        """Return the word before a number, or before the list that it ends: "chapters IV and V"."""
        listed = found.word == self.symbols["&"] and _LISTED.search(found.past)
        return listed[1] if listed else found.before

    def numbering(self, found: Found) -> str:
        """Return that word in lower case, without an abbreviation."""
        word = self.numbered_by(found)
        return self.abbreviations.get(word, word).lower()
