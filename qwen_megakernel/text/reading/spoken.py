"""Spoken texts, which record the characters of the user's text that each part stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

# Placeholders for a respelling and for words from `TextReader.give`, which are in the origin of the
# placeholder. No text has them, because cleaning removes surrogates.
PLACEHOLDERS = RESPELT, GIVEN = "\udc00", "\udc01"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a spoken text; it stands for the characters [start, end) of the user's text."""

    text: str
    start: int
    end: int
    is_kept: bool = False  # whether its characters are those of the user's text, one for one


class SpokenText:
    """A text as it is spoken, made of pieces."""

    __slots__ = ("_made",)

    def __init__(self, made: Iterable[Piece]):
        self._made = tuple(made)

    @property
    def text(self) -> str:
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
    """A text that is being rewritten, with the origin of each character.

    Args:
        text: the text.
        origins: for each character, the place [start, end) in the user's text for which it stands,
            and what is spoken if no rule reads it.
    """

    __slots__ = ("origins", "text")

    def __init__(self, text: str, origins: list[tuple[int, int, str]]):
        self.text, self.origins = text, origins

    @staticmethod
    def at(text: str, start: int) -> Draft:
        """Return a piece of the user's text, which begins there at `start`."""
        return Draft(text, [(at, at + 1, char) for at, char in enumerate(text, start)])

    @staticmethod
    def of(words: str, start: int, end: int, written: str | None = None) -> Draft:
        """Return words that stand for the characters [start, end) of the user's text.

        If no rule reads them, `written` is spoken for each character, or the character itself.
        """
        return Draft(words, [(start, end, char if written is None else written) for char in words])

    @staticmethod
    def joined(drafts: Sequence[Draft]) -> Draft:
        origins = [origin for draft in drafts for origin in draft.origins]
        return Draft("".join(draft.text for draft in drafts), origins)

    def __getitem__(self, part: slice) -> Draft:
        return Draft(self.text[part], self.origins[part])

    def place(self, begin: int, end: int) -> tuple[int, int]:
        """Return the place in the user's text of the characters [begin, end)."""
        return self.origins[begin][0], self.origins[end - 1][1]

    def replace(
        self,
        pattern: re.Pattern[str],
        new: str | Callable[[re.Match[str]], str | Draft],
        is_spoken: bool = True,
    ) -> Draft:
        """Replace every match; each character of a replacement stands for the whole match.

        If `is_spoken` is False, the replacement is only for the rules: if no rule reads its one
        character, the match is spoken.
        """
        parts, done = list[Draft](), 0
        for match in pattern.finditer(self.text):
            begin, end = match.span()
            words = new if isinstance(new, str) else new(match)
            if isinstance(words, str) and words != match[0]:
                written = None if is_spoken else match[0]
                words = Draft.of(words, *self.place(begin, end), written)
            if isinstance(words, Draft):
                parts += [self[done:begin], words]
                done = end
        return Draft.joined([*parts, self[done:]]) if parts else self

    def unwrapped(self, pattern: re.Pattern[str]) -> Draft:
        """Replace every match by the part of it that is group 1."""
        return self.replace(pattern, lambda match: self[match.start(1) : match.end(1)])

    def filled(self, words: str, begin: int, end: int) -> str:
        """Return a rule's words for the characters [begin, end) without placeholders."""
        for char, (_, _, written) in zip(
            self.text[begin:end], self.origins[begin:end], strict=True
        ):
            if char in PLACEHOLDERS:
                words = words.replace(char, written, 1)
        return words

    def kept(self, begin: int, end: int) -> Iterator[Piece]:
        """Yield the characters [begin, end) unchanged, as one piece for each unbroken run.

        A run ends where the user's text has further characters in between. Characters that stand
        together for others ("kg" for "㎏") are a run of their own.
        """
        for _, run in groupby(range(begin, end), self._run):
            places = [*run]
            start, stop = self.place(places[0], places[-1] + 1)
            text = "".join(self.origins[at][2] for at in places)
            is_kept = len(text) == stop - start and self.text[places[0]] not in PLACEHOLDERS
            yield Piece(text, start, stop, is_kept)

    def _run(self, at: int) -> int | tuple[int, int]:
        """Return a value that is the same for all characters of an unbroken run."""
        start, end, written = self.origins[at]
        neighbours = (*self.origins[max(0, at - 1) : at], *self.origins[at + 1 : at + 2])
        is_own = len(written) == end - start == 1 and self.text[at] not in PLACEHOLDERS
        is_own &= all((start, end) != (first, last) for first, last, _ in neighbours)
        return start - at if is_own else (start, end)
