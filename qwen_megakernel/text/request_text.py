"""The text of one request: what the user wrote, the words to speak for it, and warnings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from qwen_megakernel.errors import MarkupError
from qwen_megakernel.records import Manner
from qwen_megakernel.text.reading.reader import TextReader
from qwen_megakernel.text.reading.spoken import Piece, SpokenText
from qwen_megakernel.text.unreadable import TextWatch


@dataclass(frozen=True, slots=True)
class Cut:
    """The beginning of a new passage: the words after it are not joined to those before it."""

    manner: Manner  # of the new passage
    pause_s: float = 0.0  # silence before the new passage


class RequestText:
    """A text without markup, which may arrive in pieces. Not thread-safe.

    Args:
        reader: turns numbers and abbreviations into words; without one, the text is spoken as it
            is written.
        watch: finds characters that the model cannot read; without one, there are no warnings about
            them.
    """

    def __init__(self, reader: TextReader | None = None, watch: TextWatch | None = None):
        self._reader, self._watch = reader, watch
        self._written: list[str] = []
        # With which piece of `_written` a speaker of a cast begins; None: the request's voice.
        self._turns: list[tuple[int, str | None]] = [(0, None)]
        self._num_watched = 0  # pieces of `_written` that `_watch` has seen

    @property
    def error(self) -> MarkupError | None:
        """The first error in the markup, or None. Text after the error is ignored."""
        return None

    @property
    def is_read(self) -> bool:
        """Whether numbers become words, or a lexicon respells words, before the text is spoken."""
        return self._reader is not None

    @property
    def written(self) -> str:
        """The text so far without its markup, as the user wrote it."""
        return "".join(self._written)

    @property
    def speakers(self) -> list[tuple[int, str | None]]:
        """Where in `written` each speaker of a cast begins, with the name of its voice in the text;
        None: the request's voice."""
        turns = self._turns[:]
        if len(turns) == 1:
            return turns
        begins = list(accumulate(map(len, self._written), initial=0))
        return [(begins[piece], name) for piece, name in turns]

    @property
    def spoken(self) -> SpokenText:
        """The words to speak, in pieces that know which characters of the text they stand for."""
        if self._reader:
            return self._reader.spoken
        text = self.written
        return SpokenText([Piece(text, 0, len(text), is_kept=True)] if text else [])

    def take_warnings(self) -> list[str]:
        """Return the new warnings about the text and its reading, each of them only once."""
        new = "".join(self._written[self._num_watched :])
        self._num_watched = len(self._written)
        warnings = self._watch.look(new) if self._watch else []
        return warnings + self._reader.take_warnings() if self._reader else warnings

    def check(self, words: str) -> None:
        """Raise `EmptyText` for the words of a whole text of which the model reads none."""
        if self._watch:
            self._watch.check(words)

    def feed(self, text: str) -> Iterator[str | Cut]:
        """Take the next piece of the text; yields the words and cuts that cannot change."""
        self._written.append(text)
        yield self._reader.feed(text) if self._reader else text

    def end(self) -> Iterator[str | Cut]:
        """Close the text; yields the words and cuts that were still held back."""
        if self._reader:
            yield self._reader.end()
