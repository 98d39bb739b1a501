"""Segments: the units in which a text is read, and which of them are complete in an open text.

A segment is a word, or several words that may be one expression ("$3.5 million"). It ends before a
word that does not belong to the expression, or `MAX_OPEN_CHARS` characters after its first digit.
The ends depend on the text alone, so a text has the same segments whether it arrives in one piece
or in many.
"""

import re
from collections.abc import Callable

from qwen_megakernel.text.reading.surroundings import WIDE_PAUSES, WIDE_POINTS
from qwen_megakernel.text.scripts import UNSPACED

MAX_OPEN_CHARS = 24  # an expression is held back for at most so many characters after its 1st digit
_MAX_WORD_CHARS = 64  # for a word without a digit
_MAX_ADDRESS_CHARS = 256  # for a word that contains an address or is a long number
_MAX_GROUPS_CHARS = 48  # for digits in groups, and IBANs, after their first digit

_UNSPACED_CHAR = re.compile(f"[{UNSPACED}]")
_RUN = re.compile(rf"[^\s{UNSPACED}{WIDE_POINTS}{WIDE_PAUSES}]+")
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"[\W_]{0,3}(?:[A-Z]{2}\d\d[A-Z\d ]*|\d[\d.,'() -]*)[\W_]*")
_ADDRESS = re.compile(r"://|www\.|@|\]\(|(?::[\da-f]{0,4}){3}:", re.IGNORECASE)


def segment_end(
    text: str,
    begin: int,
    is_ended: bool,
    opens: Callable[[str], bool],
    joins: Callable[[str, str, str], bool],
) -> int | None:
    """Return the end of the segment at `begin`, or None while later text may still change it.

    The character at `begin` is no white space. `is_ended` is whether the text is complete; see
    `joining.WordJoining` for `opens` and `joins`.
    """
    end = _word_end(text, begin)
    if not is_ended and _is_open(text, end):
        return None
    digit = _DIGIT.search(text, begin, end)
    while opens(text[begin:end]):
        limit = (digit.start() if digit else begin) + MAX_OPEN_CHARS
        if end > limit - MAX_OPEN_CHARS // 2 and _NUMBER.fullmatch(text, begin, end):
            limit += _MAX_GROUPS_CHARS - MAX_OPEN_CHARS
        start = end + (text[end : end + 1].isspace())
        if start >= len(text):
            return end if is_ended else None
        if text[start].isspace():
            break
        next_end = _word_end(text, start)
        if next_end > limit:
            break
        if not is_ended and _is_open(text, next_end):
            return None
        if not joins(text[begin:end], text[end:start], text[start:next_end]):
            break
        end = next_end
        digit = digit or _DIGIT.search(text, begin, end)
    return end


def is_too_long(text: str, begin: int) -> bool:
    """Return whether the word at `begin` is too long for an expression."""
    end = _word_end(text, begin)
    if end - begin <= MAX_OPEN_CHARS:
        return False
    digit = _DIGIT.search(text, begin, begin + _MAX_WORD_CHARS)
    limit = _MAX_WORD_CHARS
    if digit:
        limit = min(limit, digit.start() - begin + MAX_OPEN_CHARS)
    stop = begin + limit
    if _ADDRESS.search(text, begin, stop) or (digit and _NUMBER.fullmatch(text, begin, stop)):
        limit = _MAX_ADDRESS_CHARS
    return end - begin > limit


def run_end(text: str, begin: int) -> int:
    """Return the end of the characters from `begin` on that are no white space, Han or kana."""
    run = _RUN.match(text, begin)
    return run.end() if run else begin


def _word_end(text: str, begin: int) -> int:
    return max(begin + 1, run_end(text, begin))


def _is_open(text: str, end: int) -> bool:
    """Return whether the next piece of the text may continue the word that ends at `end`."""
    return end == len(text) and not _UNSPACED_CHAR.match(text, end - 1)
