"""Where a long text is cut into parts, each of which has a prompt of its own.

Both ways to cut count a wide character as three and cut at sentences, failing that at clauses or
spaces. A whole text is cut into parts of about equal length (`split`); of a text that arrives in
pieces the end is not known, so `PartCutter` cuts at the first sentence end past a limit.
"""

import contextlib
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch
from torch import Tensor

from qwen_megakernel.errors import EmptyText
from qwen_megakernel.records import TextIds
from qwen_megakernel.text.cleaning import clean
from qwen_megakernel.text.sentences import char_length, pack_sentences, spoken_length

MIN_PART_CHARS, MAX_PART_CHARS = 200, 300  # of a whole text
OPEN_PART_CHARS = 250  # of an open one, at least

_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]{0,8}\s|[。！？]")
_MAYBE_END = re.compile(r"[.!?…][\"'”’)\]]{0,8}\Z")  # one, if white space comes next
_MAX_MAYBE_CHARS = 9
_GAPS = frozenset(" 、，；：")


def split(text: str, min_chars: int = MIN_PART_CHARS, max_chars: int = MAX_PART_CHARS) -> list[str]:
    """Cut a long text at sentences into parts that the model speaks well in one go.

    Args:
        text: any text; it is cleaned, and a short one is returned as a single part.
        min_chars, max_chars: length of a part, counted as `sentences.pack_sentences` does.
    Returns:
        The parts, stripped; joined, they are the clean text but for white space between them.
    """
    return pack_sentences(clean(text), min_chars, max_chars)


class PartEncoder(Protocol):
    """Encodes one part whose text arrives in pieces, as `tokenizer.TextStream` does."""

    def feed(self, piece: str) -> Tensor:
        """Take a piece; returns the ids [n] int64 that have become certain."""

    def end(self) -> Tensor:
        """Close the text; returns the ids that were held back. Raises `EmptyText`."""


@dataclass(slots=True, eq=False)
class TextPart:
    """Ids of one part, growing while it is open. The caller writes them, the engine reads them."""

    ids: deque[Tensor] = field(default_factory=deque)  # each [n] int64, n >= 1
    closed: bool = False  # set after the last ids were appended

    @classmethod
    def whole(cls, ids: Tensor) -> Self:
        """A part whose text is complete."""
        return cls(deque([ids]), closed=True)

    def take(self) -> Tensor:
        """All ids not taken yet, [n] int64; n may be 0."""
        taken = [self.ids.popleft() for _ in range(len(self.ids))]
        return torch.cat(taken) if taken else torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class EncodedText:
    """The text of a request as ids: its whole parts, or the way to encode parts as they come."""

    prompt_ids: TextIds  # of which each part replaces the body
    parts: list[Tensor]  # [num_text_tokens] int64 each; none where the text is open
    new_part: Callable[[], PartEncoder]  # begins a part of an open text
    part_chars: int = OPEN_PART_CHARS  # of an open text, after which a sentence end ends a part


class PartCutter:
    """Cuts a text that arrives in pieces into parts, and encodes each as it comes.

    A part ends at the first sentence end past `part_chars` characters, or failing that at the first
    space or full-width comma past twice as many: at the same places for every way to cut the text
    into pieces. Not thread-safe.

    Args:
        parts: takes the parts; the engine reads them meanwhile.
        new_part: begins to encode a part.
        part_chars: see above.
    """

    def __init__(
        self, parts: deque[TextPart], new_part: Callable[[], PartEncoder], part_chars: int
    ) -> None:
        self._parts, self._new_part, self._part_chars = parts, new_part, part_chars
        self._part: TextPart | None = None  # the one that grows
        self._encoder: PartEncoder | None = None  # of it
        self._num_chars = 0
        self._maybe_end = ""  # the last characters of the part, if they may be a sentence's end

    def feed(self, text: str) -> None:
        """Take the next piece of text, of any length.

        Raises:
            TextTooLong: a part exceeds what its encoder takes.
        """
        while text:
            cut = self._part_end(text)
            self._append(text[:cut])
            if cut is None:
                break
            self.end()
            text = text[cut:]

    def end(self) -> None:
        """End the part that grows; the next piece begins another."""
        if self._part is None:
            return
        # A part without a word is skipped by the engine, which also reports a text without any.
        with contextlib.suppress(EmptyText):
            ids = self._encoder.end()
            if len(ids):
                self._part.ids.append(ids)
        self._part.closed = True
        self._part, self._num_chars, self._maybe_end = None, 0, ""

    def _part_end(self, text: str) -> int | None:
        """Where in `text` the part that grows ends; None if it goes on past it."""
        before, length = len(self._maybe_end), self._num_chars
        ends = {match.end() - before for match in _SENTENCE_END.finditer(self._maybe_end + text)}
        for place, char in enumerate(text, start=1):
            if char in _GAPS and length >= 2 * self._part_chars:
                return place
            length += char_length(char)
            if place in ends and length >= self._part_chars:
                return place
        return None

    def _append(self, text: str) -> None:
        if self._part is None:
            self._part, self._encoder = TextPart(), self._new_part()
            self._parts.append(self._part)
        ids = self._encoder.feed(text)
        if len(ids):
            self._part.ids.append(ids)
        self._num_chars += spoken_length(text)
        maybe = _MAYBE_END.search((self._maybe_end + text)[-_MAX_MAYBE_CHARS:])
        self._maybe_end = maybe.group() if maybe else ""
