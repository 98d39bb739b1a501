"""Divides a long text into parts, which get prompts of their own.

A whole text is cut into parts of about equal length (`sentences.pack_sentences`). The end of a text
that arrives in pieces is not known, so `PartEnds` finds the first sentence end past a limit. Both
count a wide character as three, and cut at clauses or spaces where no sentence ends. `intake` makes
the parts.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from qwen_megakernel.records import AS_REQUESTED, FinishReason, Manner, TextIds
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.reading.sentence_ends import WINDOW, places
from qwen_megakernel.text.sentences import char_length, spoken_length

MIN_PART_CHARS, MAX_PART_CHARS = 200, 300  # limits for the parts of a whole text
# Limits for the parts of a text that arrives in pieces: a part ends at the first sentence end past
# the lower one, or else at the first space past the higher one.
OPEN_PART_CHARS = 250, 500
# The same where a part is spoken only when it is complete, so that speech does not begin late.
WAITING_PART_CHARS = 40, 300

_GAPS = frozenset(" 、，；：")


class PartEncoder(Protocol):
    """Encodes the text of one part, which arrives in pieces, as `tokenizer.TextStream` does."""

    def feed(self, piece: str) -> Tensor:
        """Take a piece; returns the ids [n] int64 that further text cannot change."""

    def end(self) -> Tensor:
        """Close the text; returns the ids that were held back. Raises `EmptyText`."""


@dataclass(slots=True, eq=False)
class TextPart:
    """One part of a text. While it is open, the caller adds ids and the engine reads them; the
    engine writes which frames speak it, and the timer of the words reads that."""

    ids: deque[Tensor] = field(default_factory=deque)  # each [n] int64, n >= 1
    closed: bool = False  # set after the last ids were appended
    text: str = ""  # the text that the ids stand for
    start: int = 0  # number of visible characters of the whole text before the part
    manner: Manner = AS_REQUESTED
    pause_s: float = 0.0  # silence before the part; 0 once the engine has taken it
    encoding: "TextEncoding | None" = None  # of the part's manner; None: the request's
    first_frame: int = -1  # -1 until it is spoken
    end_frame: int | None = None  # None until it has been spoken
    has_ended: bool = False  # whether the model ended it with an end token

    @classmethod
    def whole(
        cls,
        ids: Tensor,
        text: str = "",
        start: int = 0,
        manner: Manner = AS_REQUESTED,
        encoding: "TextEncoding | None" = None,
    ) -> Self:
        return cls(deque([ids]), True, text, start, manner, encoding=encoding)

    @classmethod
    def pause(cls, seconds: float, start: int) -> Self:
        """Return a part without text, for the silence before it."""
        return cls(closed=True, start=start, pause_s=seconds)

    def take_pause(self) -> float:
        pause_s, self.pause_s = self.pause_s, 0.0
        return pause_s

    def add(self, ids: Tensor) -> None:
        """Append [n] int64 ids; n may be 0."""
        if len(ids):
            self.ids.append(ids)

    def end(self, end_frame: int, reason: FinishReason) -> None:
        """Record where the speech of the part ends, and why."""
        self.has_ended = reason == "eos"
        self.end_frame = end_frame  # set last, because the timer reads it first

    def take(self) -> Tensor:
        """Return all ids that were not returned before, [n] int64; n may be 0."""
        taken = [self.ids.popleft() for _ in range(len(self.ids))]
        return torch.cat(taken) if taken else torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class TextEncoding:
    """How the parts of one request's text become ids; a model family makes it for a request."""

    request: SpeechOptions  # as the model speaks it
    prompt_ids: TextIds  # the ids of the prompt; each part replaces their body
    encode: Callable[[str], Tensor]  # a clean part -> [num_text_tokens] int64
    # Begins a part whose ids are spoken while its text arrives; None: a prompt has all ids of a
    # part, so a part of an open text waits until it is complete.
    new_part: Callable[[], PartEncoder] | None
    part_chars: tuple[int, int] = (MIN_PART_CHARS, MAX_PART_CHARS)  # of a whole text
    open_part_chars: tuple[int, int] = OPEN_PART_CHARS  # of a text that arrives in pieces
    opens_once: bool = False  # only the first part is spoken while its text arrives

    def waiting(self, *, after_first: bool) -> Self:
        """Return the encoding of a text whose parts wait until they are complete.

        Args:
            after_first: the first part does not wait.
        """
        if self.new_part is None or after_first:
            return replace(self, opens_once=True)
        return replace(self, new_part=None, open_part_chars=WAITING_PART_CHARS)


class PartEnds:
    """Finds where the parts of a text end that arrives in pieces.

    A part ends at the first sentence end past `min_chars` characters, or at the first space or
    full-width comma past `max_chars`. These places do not depend on how the text was cut into
    pieces: past `min_chars`, a word that decides whether a sentence ends before it is not taken
    into the part until it decides.
    """

    def __init__(self, min_chars: int, max_chars: int) -> None:
        self.begin(min_chars, max_chars)

    def begin(self, *limits: int) -> None:
        """Begin a part; with `limits`, it and those after it have other ones."""
        if limits:
            self._min_chars, self._max_chars = limits
        self._num_chars = 0  # characters of the part
        self._tail = ""  # the part's last characters

    def find(self, text: str, *, is_last: bool) -> tuple[int, bool]:
        """Return how much of `text` belongs to the growing part, and whether the part ends there.

        Args:
            text: what follows the characters that `add` was given.
            is_last: no text follows, so that nothing stays undecided.
        """
        before, length = len(self._tail), self._num_chars
        found = ((at - before, is_end) for at, is_end in places(self._tail + text))
        ends = {at: is_end for at, is_end in found if is_end is not False and at >= 0}
        for place in range(len(text) + 1):
            is_end = ends.get(place, False) if length >= self._min_chars else False
            if is_end or (is_end is None and not is_last):
                return place, bool(is_end)
            if place < len(text):
                if text[place] in _GAPS and length >= self._max_chars:
                    return place + 1, True
                length += char_length(text[place])
        return len(text), False

    def add(self, text: str) -> None:
        self._num_chars += spoken_length(text)
        self._tail = (self._tail + text)[-WINDOW:]
