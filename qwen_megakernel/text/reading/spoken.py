"""Spoken texts, which record the characters of the user's text that each part stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

# Placeholders for a respelling and for words from `TextReader.give`. No text has them, because
# cleaning removes surrogates.
RESPELT, GIVEN = "\udc00", "\udc01"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a spoken text; it stands for the characters [start, end) of the user's text."""

    text: str
    start: int
    end: int
    is_kept: bool = False  # whether its characters are those of the user's text, one for one


class SpokenText:
    """A text as it is spoken.

    Args:
        made: the pieces that it consists of, in order.
    """

    __slots__ = ("_made",)

    def __init__(self, made: Iterable[Piece]):
        self._made = tuple(made)

    @property
    def text(self) -> str:
        """All of the text."""
        return "".join([piece.text for piece in self._made])

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The text's pieces; neighbours that are spoken as written are merged."""
        runs: list[list[Piece]] = []
        last = None
        for piece in self._made:
            if last and last.is_kept and piece.is_kept and last.end == piece.start:
                runs[-1].append(piece)
            else:
                runs.append([piece])
            last = piece
        return tuple(
            Piece("".join([each.text for each in run]), run[0].start, run[-1].end, run[0].is_kept)
            for run in runs
        )


class Draft:
    """A text that is being rewritten, with the place in the user's text of each character.

    Args:
        text: the text.
        starts, ends: for each character of `text`, the characters [start, end) of the user's text
            that it stands for.
        written: for each character of `text`, what is spoken if no rule reads it; without it, the
            character itself.
    """

    __slots__ = ("ends", "starts", "text", "written")

    def __init__(self, text: str, starts: list[int], ends: list[int], written: Sequence[str] = ""):
        self.text, self.starts, self.ends, self.written = text, starts, ends, written or text

    @staticmethod
    def at(text: str, start: int) -> Draft:
        """Return a piece of the user's text, which begins there at `start`."""
        places = list(range(start, start + len(text) + 1))
        return Draft(text, places[:-1], places[1:])

    @staticmethod
    def joined(drafts: Iterable[Draft]) -> Draft:
        """Return these drafts, one after the other."""
        whole = Draft("", [], [])
        texts: list[str] = []
        written: list[str] = []
        for draft in drafts:
            texts.append(draft.text)
            written += draft.written
            whole.starts += draft.starts
            whole.ends += draft.ends
        whole.text, whole.written = "".join(texts), written
        return whole

    def __getitem__(self, part: slice) -> Draft:
        return Draft(self.text[part], self.starts[part], self.ends[part], self.written[part])

    def as_one(self, begin: int, end: int, char: str) -> Draft:
        """Return a draft of one character that stands for the characters [begin, end)."""
        return Draft(char, [self.starts[begin]], [self.ends[end - 1]])

    def replace(
        self,
        pattern: re.Pattern[str],
        new: str | Callable[[re.Match[str]], str],
        is_spoken: bool = True,
    ) -> Draft:
        """Replace every match; each character of a replacement stands for the whole match.

        If `is_spoken` is False, the replacement is only for the rules: if no rule reads its one
        character, the match is spoken.
        """
        if not pattern.search(self.text):
            return self
        text, starts, ends, done = "", list[int](), list[int](), 0
        written: list[str] = []
        for match in pattern.finditer(self.text):
            begin, end = match.span()
            words = new if isinstance(new, str) else new(match)
            if words == match.group():
                continue
            text += self.text[done:begin] + words
            written += self.written[done:begin]
            written += words if is_spoken else [match.group()]
            starts += self.starts[done:begin]
            ends += self.ends[done:begin]
            if begin < end:
                starts += [self.starts[begin]] * len(words)
                ends += [self.ends[end - 1]] * len(words)
            done = end
        text, written = text + self.text[done:], [*written, *self.written[done:]]
        return Draft(text, starts + self.starts[done:], ends + self.ends[done:], written)

    def words(self, begin: int, end: int, words: str) -> Piece:
        """Return a piece of `words` that stands for the characters [begin, end)."""
        return Piece(words, self.starts[begin], self.ends[end - 1])

    def kept(self, begin: int, end: int) -> Iterator[Piece]:
        """Yield the characters [begin, end) unchanged, as one piece for each unbroken run.

        A run ends where the user's text has further characters in between.
        """
        for place in range(begin + 1, end + 1):
            if place == end or not self._are_neighbours(place - 1, place):
                start, stop = self.starts[begin], self.ends[place - 1]
                text = "".join(self.written[begin:place])
                yield Piece(text, start, stop, len(text) == stop - start)
                begin = place

    def _are_neighbours(self, place: int, following: int) -> bool:
        """Return whether two characters stand side by side in the user's text."""
        start, next_start = self.starts[place], self.starts[following]
        return start + 1 == self.ends[place] == next_start == self.ends[following] - 1
