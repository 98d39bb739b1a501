"""The text of one request: what the user wrote, the words that are spoken, and warnings of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qwen_megakernel.errors import MarkupError
from qwen_megakernel.records import Manner
from qwen_megakernel.text.reading.reader import TextReader
from qwen_megakernel.text.reading.spoken import Piece, SpokenText
from qwen_megakernel.text.unreadable import TextWatch


@dataclass(frozen=True, slots=True)
class Cut:
    """Words behind it are a part of their own."""

    manner: Manner
    pause_s: float = 0.0  # before it


@dataclass(frozen=True, slots=True)
class Passage:
    """What is spoken in one manner, and the pause before it."""

    text: str
    manner: Manner
    pause_s: float


class RequestText:
    """A text, whole or as it arrives; this class obeys no markup. Not thread-safe.

    Args:
        reader: reads it as words; None: it is spoken as it is written.
        watch: knows what the model can read; None: nobody is warned.
    """

    def __init__(self, reader: TextReader | None = None, watch: TextWatch | None = None):
        self._reader, self._watch = reader, watch
        self._written: list[str] = []
        self._num_watched = 0  # of `_written`

    @property
    def error(self) -> MarkupError | None:
        """What is wrong with the markup. Nothing behind it is read."""
        return None

    @property
    def is_read(self) -> bool:
        """Whether it is read as words, or by a lexicon, before it is spoken."""
        return self._reader is not None

    @property
    def written(self) -> str:
        """The text so far without its markup: what the user wrote to be spoken."""
        return "".join(self._written)

    @property
    def spoken(self) -> SpokenText:
        """What is spoken for it, and which of its characters each piece stands for."""
        if self._reader:
            return self._reader.spoken
        text = self.written
        return SpokenText(text, (Piece(text, 0, len(text), is_kept=True),) if text else ())

    def take_warnings(self) -> list[str]:
        """Return warnings of the text and of how it is read, each of them once."""
        new = "".join(self._written[self._num_watched :])
        self._num_watched = len(self._written)
        warnings = self._watch.look(new) if self._watch else []
        return warnings + self._reader.take_warnings() if self._reader else warnings

    def whole(self, text: str) -> list[Passage]:
        """Return what is spoken for a complete text; the last passage may be a pause alone.

        Raises:
            MarkupError: the markup is broken.
        """
        passages: list[Passage] = []
        words, cut = "", Cut(Manner())
        for step in [*self.feed(text), *self.end(), Cut(Manner())]:
            if isinstance(step, str):
                words += step
                continue
            if words or cut.pause_s:
                passages.append(Passage(words, cut.manner, cut.pause_s))
            words, cut = "", step
        if self.error:
            raise self.error
        return passages

    def feed(self, text: str) -> Iterator[str | Cut]:
        """Take the next piece of the text; yields what has become certain, words and cuts."""
        self._written.append(text)
        yield self._reader.feed(text) if self._reader else text

    def end(self) -> Iterator[str | Cut]:
        """Close the text; yields what was held back."""
        if self._reader:
            yield self._reader.end()
