"""Rules that French, Italian, Portuguese and Spanish have in common."""

import re

from qwen_megakernel.text.reading.language import Language, Rules


class Romance(Language):
    """A language with decimal commas, two decimals read as one number, and feminine ordinals."""

    decimal, decimals_are_a_number = ",", True
    plural_ending = "s"
    feminine_marks = ""  # regular expression of what follows the digits of a feminine ordinal
    max_named_part = 9999  # the largest denominator that is read as an ordinal

    def rules(self) -> Rules:
        """Feminine ordinals, which end in -a."""
        if self.feminine_marks:
            yield rf"(?P<n>\d{{1,3}})(?:{self.feminine_marks})", "{n:feminine}"

    def feminine(self, number: int) -> str:
        """Return the feminine ordinal."""
        return re.sub(r"o\b", "a", self.ordinal(number))

    def fraction(self, top: int, bottom: int) -> str:
        part = self.parts.get(bottom, "")
        if not part and bottom <= self.max_named_part:
            part = self.ordinal(bottom)
        if not part:
            return super().fraction(top, bottom)
        return f"{self.cardinal(top, 'c')} {self.parts_of(part) if top > 1 else part}"

    def parts_of(self, part: str) -> str:
        """Return the plural of a denominator's name."""
        return part if part.endswith("s") else part + "s"
