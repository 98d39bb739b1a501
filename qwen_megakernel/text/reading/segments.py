"""How much of a text that is still open may be read: segments, and where they end.

A segment is a word, or several that may be one expression ("$3.5", "million"). It ends where the
next word does not go on with it, or `MAX_OPEN_CHARS` characters past its first digit. Where
segments end depends on the text alone, so a text that comes in pieces has those of the whole.
"""

import re
from typing import Protocol

MAX_OPEN_CHARS = 24  # past the first digit of an expression, until which it is held back
_MAX_WORD_CHARS = 64  # of a word without a digit
_MAX_ADDRESS_CHARS = 256  # of a word with an address in it

# Han and kana, which are written without spaces: each is a word of its own.
UNSPACED = (
    r"\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    r"\U00020000-\U0003ffff"
)
_UNSPACED_CHAR = re.compile(f"[{UNSPACED}]")
_RUN = re.compile(rf"[^\s{UNSPACED}]+")
_DIGIT = re.compile(r"\d")
_ADDRESS = re.compile(r"://|www\.|@|\]\(", re.IGNORECASE)


class Joining(Protocol):
    """The rule that decides which words may be one expression."""

    def opens(self, words: str) -> bool:
        """Return whether the next word may continue these words."""

    def joins(self, words: str, gap: str, word: str) -> bool:
        """Return whether `word` continues these words; `gap` is the space between, or empty."""


def segment_end(text: str, begin: int, is_ended: bool, joining: Joining) -> int | None:
    """Return where the segment that begins at `begin` ends; None while later text may change that.

    Args:
        text: of which the end may be missing; no white space at `begin`.
        is_ended: whether it is complete.
        joining: of the languages the text may be in.
    """
    end = _word_end(text, begin)
    if not is_ended and _is_open(text, end):
        return None
    digit = _DIGIT.search(text, begin, end)
    while joining.opens(text[begin:end]):
        limit = (digit.start() if digit else begin) + MAX_OPEN_CHARS
        start = end + (text[end : end + 1].isspace())
        if start >= len(text):
            return end if is_ended or start > limit else None
        if text[start].isspace():
            break
        next_end = _word_end(text, start)
        if next_end > limit:
            break
        if not is_ended and _is_open(text, next_end):
            return None
        if not joining.joins(text[begin:end], text[end:start], text[start:next_end]):
            break
        end = next_end
        digit = digit or _DIGIT.search(text, begin, end)
    return end


def is_too_long(text: str, begin: int) -> bool:
    """Return whether the word at `begin` is too long for an expression and stays as it is."""
    end = _word_end(text, begin)
    if end - begin <= MAX_OPEN_CHARS:
        return False
    digit = _DIGIT.search(text, begin, begin + _MAX_WORD_CHARS)
    limit = _MAX_WORD_CHARS
    if digit:
        limit = min(limit, digit.start() - begin + MAX_OPEN_CHARS)
    if _ADDRESS.search(text, begin, begin + limit):
        limit = _MAX_ADDRESS_CHARS
    return end - begin > limit


def run_end(text: str, begin: int) -> int:
    """Return the end of the run at `begin` without white space, Han and kana; `begin` for none."""
    run = _RUN.match(text, begin)
    return run.end() if run else begin


def _word_end(text: str, begin: int) -> int:
    return max(begin + 1, run_end(text, begin))


def _is_open(text: str, end: int) -> bool:
    """Return whether a word that ends here may go on in the next piece."""
    return end == len(text) and not _UNSPACED_CHAR.match(text, end - 1)
