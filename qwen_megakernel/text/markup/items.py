"""What a parser makes of a marked-up text, in its order; positions in it, and its errors."""

from dataclasses import dataclass
from typing import Protocol

from qwen_megakernel.errors import MarkupError
from qwen_megakernel.records import Manner


@dataclass(frozen=True, slots=True)
class Words:
    """Text that is read like any other."""

    text: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """Text with other words to speak in its place."""

    written: str
    spoken: str
    is_phonemes: bool = False  # else words, which are read like any others


@dataclass(frozen=True, slots=True)
class SayAs:
    """Text that is read as a thing of one kind."""

    written: str
    kind: str  # of `values.SAY_AS`
    form: str = ""  # "mdy", of a date


@dataclass(frozen=True, slots=True)
class SentenceEnd:
    """A sentence ends here, with or without a mark."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence."""

    seconds: float


# A `Manner` is that of everything behind it.
Item = Words | Replaced | SayAs | SentenceEnd | Pause | Manner


class Parser(Protocol):
    """Finds the items of one text, whole or as it arrives."""

    error: MarkupError | None  # once it is set, nothing behind its place is looked at

    def feed(self, text: str) -> list[Item]:
        """Take the next piece of the text; returns what has become certain."""

    def end(self) -> list[Item]:
        """Close the text; returns what was held back."""

    def take_warnings(self) -> list[str]:
        """Return warnings of what has no effect, each of them once."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a text, both numbers counted from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"
