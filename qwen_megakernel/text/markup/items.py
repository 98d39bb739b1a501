"""The items into which a parser divides a text with markup, and positions in such a text."""

from dataclasses import dataclass
from typing import Protocol

from qwen_megakernel.errors import MarkupError
from qwen_megakernel.records import Manner


@dataclass(frozen=True, slots=True)
class Words:
    """Text without instructions of its own: it is read as a text without markup is."""

    text: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """Text in place of which something else is spoken."""

    written: str
    spoken: str
    is_phonemes: bool = False  # whether `spoken` holds phonemes; else it holds ordinary words


@dataclass(frozen=True, slots=True)
class SayAs:
    """Text whose kind the markup names: a date, a telephone number, single characters."""

    written: str
    kind: str  # one of the values of `values.SAY_AS`
    form: str = ""  # the order of a date's fields, such as "mdy"


@dataclass(frozen=True, slots=True)
class SentenceEnd:
    """The end of a sentence, with or without a punctuation mark."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A silence of a given length."""

    seconds: float


# A `Manner` applies to all items after it, until the next one.
Item = Words | Replaced | SayAs | SentenceEnd | Pause | Manner


class Parser(Protocol):
    """A parser of one text, which may arrive in pieces."""

    error: MarkupError | None  # once it is set, the parser ignores the rest of the text

    def feed(self, text: str) -> list[Item]:
        """Parse the next piece of the text.

        Returns the items that no later piece can change.
        """

    def end(self) -> list[Item]:
        """Close the text; returns the items that were still held back."""

    def take_warnings(self) -> list[str]:
        """Return the new warnings about markup that has no effect, each of them only once."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a text; line and column are counted from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"
