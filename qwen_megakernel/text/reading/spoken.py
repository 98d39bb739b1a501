"""Texts that remember which characters of the user's text each of their parts stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

# Stand for a respelling, and for words that were given. No text has them, for cleaning removes
# surrogates.
RESPELT, GIVEN = "\udc00", "\udc01"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a spoken text, and the characters [start, end) of the user's text it stands for."""

    text: str
    start: int
    end: int
    is_kept: bool = False  # each of its characters stands for one of these


@dataclass(frozen=True, slots=True)
class SpokenText:
    """A text as it is spoken; its pieces, joined, are the text."""

    text: str
    pieces: tuple[Piece, ...]

    @staticmethod
    def of(pieces: Iterable[Piece]) -> SpokenText:
        """Return the text of these pieces; neighbours that were left as they are become one."""
        merged: list[Piece] = []
        for piece in pieces:
            last = merged[-1] if merged else None
            if last and last.is_kept and piece.is_kept and last.end == piece.start:
                merged[-1] = Piece(last.text + piece.text, last.start, piece.end, is_kept=True)
            else:
                merged.append(piece)
        return SpokenText("".join(piece.text for piece in merged), tuple(merged))


class Draft:
    """A text under revision, with the place in the source of each of its characters.

    Args:
        text: the text.
        starts, ends: where in the source each character comes from, as [start, end).
    """

    __slots__ = ("ends", "starts", "text")

    def __init__(self, text: str, starts: list[int], ends: list[int]):
        self.text, self.starts, self.ends = text, starts, ends

    @staticmethod
    def at(text: str, start: int) -> Draft:
        """Return a piece of the source itself."""
        places = list(range(start, start + len(text) + 1))
        return Draft(text, places[:-1], places[1:])

    @staticmethod
    def joined(drafts: Iterable[Draft]) -> Draft:
        """Return these drafts, one after the other."""
        whole = Draft("", [], [])
        texts = []
        for draft in drafts:
            texts.append(draft.text)
            whole.starts += draft.starts
            whole.ends += draft.ends
        whole.text = "".join(texts)
        return whole

    def __getitem__(self, part: slice) -> Draft:
        return Draft(self.text[part], self.starts[part], self.ends[part])

    def as_one(self, begin: int, end: int, char: str) -> Draft:
        """Return one character in the place of [begin, end)."""
        return Draft(char, [self.starts[begin]], [self.ends[end - 1]])

    def replace(self, pattern: re.Pattern[str], new: str | Callable[[re.Match[str]], str]) -> Draft:
        """Return the draft with every match replaced; a replacement stands for all of its match."""
        if not pattern.search(self.text):
            return self
        text, starts, ends, done = "", [], [], 0
        for match in pattern.finditer(self.text):
            begin, end = match.span()
            words = new if isinstance(new, str) else new(match)
            if words == match.group():
                continue
            text += self.text[done:begin] + words
            starts += self.starts[done:begin]
            ends += self.ends[done:begin]
            if begin < end:
                starts += [self.starts[begin]] * len(words)
                ends += [self.ends[end - 1]] * len(words)
            done = end
        return Draft(text + self.text[done:], starts + self.starts[done:], ends + self.ends[done:])

    def words(self, begin: int, end: int, words: str) -> Piece:
        """Return `words` in the place of the characters [begin, end)."""
        return Piece(words, self.starts[begin], self.ends[end - 1])

    def kept(self, begin: int, end: int) -> Iterator[Piece]:
        """Yield the characters [begin, end) as they are, cut where the source has others."""
        for place in range(begin + 1, end + 1):
            if place == end or not self._are_neighbours(place - 1, place):
                start, stop = self.starts[begin], self.ends[place - 1]
                yield Piece(self.text[begin:place], start, stop, place - begin == stop - start)
                begin = place

    def _are_neighbours(self, place: int, following: int) -> bool:
        """Return whether two characters are neighbours in the source."""
        start, next_start = self.starts[place], self.starts[following]
        return start + 1 == self.ends[place] == next_start == self.ends[following] - 1
