"""Divides a long text into parts, which get prompts of their own.

A whole text is cut into parts of about equal length (`split`). The end of a text that arrives in
pieces is not known, so `PartCutter` cuts at the first sentence end past a limit. Both count a wide
character as three, and cut at clauses or spaces where no sentence ends.
"""

import contextlib
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch
from torch import Tensor

from qwen_megakernel.errors import EmptyText
from qwen_megakernel.records import Manner, TextIds
from qwen_megakernel.text.cleaning import clean, visible
from qwen_megakernel.text.sentences import char_length, pack_sentences, spoken_length

MIN_PART_CHARS, MAX_PART_CHARS = 200, 300  # limits for the parts of a whole text
OPEN_PART_CHARS = 250  # minimum for the parts of a text that arrives in pieces

_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]{0,8}\s|[。！？]")
_MAYBE_END = re.compile(r"[.!?…][\"'”’)\]]{0,8}\Z")  # a sentence end if white space follows
_MAX_MAYBE_CHARS = 9
_GAPS = frozenset(" 、，；：")


def split(text: str, min_chars: int = MIN_PART_CHARS, max_chars: int = MAX_PART_CHARS) -> list[str]:
    """Cut a long text at sentences into parts that the model speaks well with one prompt.

    Args:
        text: any text; it is cleaned, and a short one is returned as a single part.
        min_chars, max_chars: length of a part, counted as `sentences.pack_sentences` does.
    Returns:
        The parts, stripped; joined, they are the clean text except for white space between them.
    """
    return pack_sentences(clean(text), min_chars, max_chars)


class PartEncoder(Protocol):
    """Encodes the text of one part, which arrives in pieces, as `tokenizer.TextStream` does."""

    def feed(self, piece: str) -> Tensor:
        """Take a piece; returns the ids [n] int64 that further text cannot change."""

    def end(self) -> Tensor:
        """Close the text; returns the ids that were held back. Raises `EmptyText`."""


@dataclass(slots=True, eq=False)
class TextPart:
    """The ids of one part; while it is open, the caller adds ids and the engine reads them."""

    ids: deque[Tensor] = field(default_factory=deque)  # each [n] int64, n >= 1
    closed: bool = False  # set after the last ids were appended
    text: str = ""  # the text that the ids stand for
    start: int = 0  # number of visible characters of the whole text before the part
    manner: Manner = field(default_factory=Manner)
    pause_s: float = 0.0  # silence before the part; 0 once the engine has taken it

    @classmethod
    def whole(
        cls, ids: Tensor, text: str = "", start: int = 0, manner: Manner | None = None
    ) -> Self:
        """Return a part with complete text."""
        return cls(deque([ids]), True, text, start, manner or Manner())

    @classmethod
    def pause(cls, seconds: float, start: int) -> Self:
        """Return a part without text, for the silence before it."""
        return cls(closed=True, start=start, pause_s=seconds)

    def take_pause(self) -> float:
        """Return the seconds of silence before the part, and 0 when called again."""
        pause_s, self.pause_s = self.pause_s, 0.0
        return pause_s

    def take(self) -> Tensor:
        """Return all ids that were not returned before, [n] int64; n may be 0."""
        taken = [self.ids.popleft() for _ in range(len(self.ids))]
        return torch.cat(taken) if taken else torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class EncodedText:
    """The text of a request as ids: its whole parts, or a function that encodes parts in pieces."""

    prompt_ids: TextIds  # the ids of the prompt; each part replaces their body
    parts: list[Tensor]  # [num_text_tokens] int64 each; empty if the text arrives in pieces
    new_part: Callable[[], PartEncoder]  # begins a part of a text that arrives in pieces
    part_chars: int = OPEN_PART_CHARS  # minimum length of a part that arrives in pieces
    texts: list[str] = field(default_factory=list)  # the texts of the complete parts

    def whole_parts(self, start: int = 0, manner: Manner | None = None) -> Iterator[TextPart]:
        """Yield the parts of a whole text.

        Args:
            start: the number of visible characters before the text.
            manner: the manner in which all parts are spoken.
        """
        for ids, text in zip(self.parts, self.texts, strict=True):
            yield TextPart.whole(ids, text, start, manner)
            start += len(visible(text))


class PartCutter:
    """Cuts a text that arrives in pieces into parts, and encodes each as it comes.

    A part ends at the first sentence end past `part_chars` characters, or at the first space or
    full-width comma past twice as many. These places do not depend on how the text was cut into
    pieces. Not thread-safe.

    Args:
        parts: receives the parts, while the engine reads them.
        new_part: returns an encoder for a new part.
        part_chars: minimum length of a part, in characters.
    """

    def __init__(
        self, parts: deque[TextPart], new_part: Callable[[], PartEncoder], part_chars: int
    ) -> None:
        self._parts, self._new_part, self._part_chars = parts, new_part, part_chars
        self._growing: tuple[TextPart, PartEncoder] | None = None
        self._num_chars = 0  # characters of the growing part
        self._num_visible = 0  # visible characters of all parts
        self._maybe_end = ""  # the part's last characters, if they may end a sentence
        self._manner = Manner()  # the manner of the growing part

    def feed(self, text: str) -> None:
        """Take the next piece of text, of any length.

        Raises:
            TextTooLong: a part exceeds the limit of its encoder.
        """
        while text:
            cut = self._part_end(text)
            self._append(text[:cut])
            if cut is None:
                break
            self.end()
            text = text[cut:]

    def end(self) -> None:
        """End the growing part; the next piece begins another."""
        if self._growing is None:
            return
        part, encoder = self._growing
        # The engine skips a part without a word, and raises an error for a text without any.
        with contextlib.suppress(EmptyText):
            ids = encoder.end()
            if len(ids):
                part.ids.append(ids)
        part.closed = True
        self._growing, self._num_chars, self._maybe_end = None, 0, ""

    def cut(self, manner: Manner, pause_s: float) -> None:
        """End the growing part; the text after it has the given manner, and follows a pause."""
        self.end()
        self._manner = manner
        if pause_s:
            self._begin(pause_s)

    def _begin(self, pause_s: float = 0.0) -> tuple[TextPart, PartEncoder]:
        part = TextPart(start=self._num_visible, manner=self._manner, pause_s=pause_s)
        self._growing = part, self._new_part()
        self._parts.append(part)
        return self._growing

    def _part_end(self, text: str) -> int | None:
        """Return where in `text` the growing part ends; None if it does not."""
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
        part, encoder = self._growing or self._begin()
        ids = encoder.feed(text)
        if len(ids):
            part.ids.append(ids)
        part.text += text
        self._num_visible += len(visible(text))
        self._num_chars += spoken_length(text)
        maybe = _MAYBE_END.search((self._maybe_end + text)[-_MAX_MAYBE_CHARS:])
        self._maybe_end = maybe.group() if maybe else ""
