"""Words as their scripts write them, and records of their times."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from qwen_megakernel.text.reading.spoken import Piece
from qwen_megakernel.text.scripts import UNSPACED, VOICING_MARKS

_UNSPACED_LETTER = re.compile(f"[{UNSPACED}]")
_UNSPACED_PIECE = re.compile(rf"[{UNSPACED}][{VOICING_MARKS}]*[^\w\s]*|[^{UNSPACED}]+")
_WORD = re.compile(r"\S+")
_LAST_WORD_END = re.compile(rf"(?s:.+)(?:(?<=\s)|(?=[{UNSPACED}])(?![{VOICING_MARKS}]))")


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word of the user's text, and the seconds of the speech in which it is heard."""

    word: str
    start: float
    end: float
    offset: int  # index of its first character in the user's text
    speaker: str | None = None  # its voice, as the text names it; None: the request's voice

    def facts(self) -> dict[str, str | float]:
        """Return a dict for JSON, with the field names of OpenAI's transcriptions."""
        times = {"start": round(self.start, 3), "end": round(self.end, 3)}
        return {"word": self.word, **times, **_named(self.speaker)}


@dataclass(frozen=True, slots=True)
class Segment:
    """A sentence of the user's text, and the seconds of the speech in which it is heard."""

    id: int  # counted from 0
    start: float
    end: float
    text: str
    speaker: str | None = None  # as of a word

    def facts(self) -> dict[str, str | float]:
        times = {"start": round(self.start, 3), "end": round(self.end, 3)}
        return {"id": self.id, **times, "text": self.text, **_named(self.speaker)}


def _named(speaker: str | None) -> dict[str, str]:
    return {} if speaker is None else {"speaker": speaker}


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the characters [begin, end) of each word of a text.

    In a text with Han or kana, each such character is a word; the text between two of them (a Latin
    name, a number) is one word, with its own spaces.
    """
    spans = []
    for match in (_UNSPACED_PIECE if is_unspaced(text) else _WORD).finditer(text):
        word = match.group()
        if stripped := word.strip():
            begin = match.start() + len(word) - len(word.lstrip())
            spans.append((begin, begin + len(stripped)))
    return spans


def is_unspaced(text: str) -> bool:
    """Return whether a text has Han or kana, so that its words are joined without spaces."""
    return bool(_UNSPACED_LETTER.search(text))


def whole_words(text: str) -> int:
    """Return how many characters of an unfinished text are certain to be whole words.

    The last word is not counted, because more letters or punctuation may follow it.
    """
    end = _LAST_WORD_END.match(text)
    return end.end() if end else 0


def spoken_spans(
    pieces: Sequence[Piece], spans: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Find the words of the user's text in the spoken text.

    Args:
        pieces: the pieces of the spoken text, in order.
        spans: the characters [begin, end) of each word in the user's text, in order.
    Returns:
        For each word, the characters [begin, end) of the spoken text that stand for it. Words that
        share a piece divide its characters among them. The span is empty if the word is not spoken.
    """
    found: list[tuple[int, int]] = []
    first, offset = 0, 0  # the first piece that may overlap the word, and its place
    nexts = [begin for begin, _ in spans[1:]]
    for (begin, end), following in zip(spans, [*nexts, math.inf], strict=False):
        while first < len(pieces) and pieces[first].end <= begin:
            offset += len(pieces[first].text)
            first += 1
        low: int | None = None
        high, place, index = offset, offset, first
        while index < len(pieces) and pieces[index].start < end:
            piece = pieces[index]
            if piece.end > piece.start:
                # The first of two words in a piece gets the characters for the space between them.
                stop = end if piece.is_kept else following
                if low is None:
                    low = place + _share(piece, max(begin, piece.start))
                high = place + _share(piece, min(stop, piece.end))
            place += len(piece.text)
            index += 1
        found.append((high if low is None else low, high))
    return found


def _share(piece: Piece, char: float) -> int:
    """Count the characters of a piece that stand for the user's text before `char`."""
    if piece.is_kept:
        return round(char - piece.start)
    if char <= piece.start:
        return 0
    if char >= piece.end:
        return len(piece.text)
    share = len(piece.text) * (char - piece.start) / (piece.end - piece.start)
    begins = [match.end() for match in re.finditer(r"\s", piece.text)]  # where its words begin
    return min(begins or [round(share)], key=lambda begin: abs(begin - share))
