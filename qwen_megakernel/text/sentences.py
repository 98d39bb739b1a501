"""Cuts long text into parts at sentence boundaries."""

import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise

from qwen_megakernel.text.reading.sentence_ends import places
from qwen_megakernel.text.reading.surroundings import (
    CLOSING,
    PAUSES,
    POINTS,
    WIDE_CLOSING,
    WIDE_PAUSES,
    WIDE_POINTS,
)

# A wide character (ideograph, kana, Hangul) is about a syllable: a fifth of a second, in which
# three Latin letters are spoken.
_WIDE_CHARS = 3

# Where a sentence that is too long for one part is cut: after closing punctuation before a space,
# or after full-width punctuation, which has no space after it.
_CLAUSE_END = re.compile(
    rf"[{POINTS}{PAUSES}—–)\]][{re.escape(CLOSING)}]*\s+"
    rf"|[{WIDE_POINTS}{WIDE_PAUSES}{WIDE_CLOSING}]+\s*"
)
_LAST_SPACE = re.compile(r".*\s", re.DOTALL)
PARAGRAPH_SEPARATOR = "\u2029"  # Unicode's; it ends a sentence, even one without a mark
_ZERO_WIDTH_JOINER = "\u200d"


def unspeakable(text: str) -> bool:
    """Return whether a text has no letter and no digit: white space, punctuation, emoji."""
    return not any(char.isalnum() for char in text)


def pack_sentences(text: str, min_chars: int, max_chars: int) -> list[str]:
    """Cut a text into parts of about equal length, at sentences as far as possible.

    Sentences are packed so that parts fall short of `min_chars` as little as possible, and are as
    few as possible. A sentence above `max_chars` is cut at a clause; if that is not possible,
    between words; and if that is not possible, between characters.

    Args:
        text: clean text, without white space at its ends.
        min_chars, max_chars: length of a part in Latin characters; a wide one counts as three.
    Returns:
        The parts, stripped; joined, they are the text except for white space between them. A run of
        punctuation joins its neighbour, so no part of a speakable text is unspeakable. Only such a
        run makes a part exceed `max_chars`.
    """
    if spoken_length(text) <= max_chars:
        return [text]
    pieces: list[str] = []
    for begin, end in sentence_spans(text):
        for piece in _cut(text[begin:end], max_chars):
            if pieces and (unspeakable(piece) or unspeakable(pieces[-1])):
                pieces[-1] += piece
            else:
                pieces.append(piece)
    return [part.strip() for part in _pack(pieces, min_chars, max_chars)]


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return the characters [begin, end) of each sentence; together they are the whole text."""
    ends = [place for place, is_end in places(text) if is_end]
    return [span for span in pairwise([0, *ends, len(text)]) if span[0] < span[1]]


def spoken_length(text: str) -> int:
    """Return the length of a text in Latin characters of about the same duration."""
    return sum(map(char_length, text))


def char_length(char: str) -> int:
    """Return the length of a character in Latin characters of about the same duration."""
    is_wide = char.isalpha() and unicodedata.east_asian_width(char) in "WF"
    return _WIDE_CHARS if is_wide else 1


def _cut(sentence: str, max_chars: int) -> Iterator[str]:
    """Cut a sentence into pieces of at most `max_chars`; joined, they are the sentence."""
    while (head := _head_length(sentence, max_chars)) < len(sentence):
        place = _cut_place(sentence, head)
        yield sentence[:place]
        sentence = sentence[place:]
    yield sentence


def _head_length(text: str, max_chars: int) -> int:
    """Return the length of the longest head that fits, with white space after it; at least 1."""
    length = 0
    for idx, char in enumerate(text):
        length += char_length(char)
        if length > max_chars and idx > 0 and not char.isspace():
            return idx
    return len(text)


def _cut_place(text: str, head: int) -> int:
    """Return where to cut `text[:head]`: at a clause in its second half, a space or a character."""
    clause_ends = [clause.end() for clause in _CLAUSE_END.finditer(text, 0, head)]
    if clause_ends and clause_ends[-1] > head // 2:
        return clause_ends[-1]
    last_space = _LAST_SPACE.match(text, 0, head)
    if last_space:
        return last_space.end()
    place = head
    while place > 0 and _is_inside_character(text, place):
        place -= 1
    return place or head  # one character with hundreds of marks is cut


def _is_inside_character(text: str, place: int) -> bool:
    is_mark = unicodedata.category(text[place]).startswith("M")
    return is_mark or _ZERO_WIDTH_JOINER in text[place - 1 : place + 1]


def _pack(pieces: list[str], min_chars: int, max_chars: int) -> list[str]:
    """Join neighbouring pieces so that the sum of squared shortfalls of the parts is least."""
    lengths = [spoken_length(piece) for piece in pieces]
    # For the first n pieces: (shortfall, number of parts, first piece of the last part).
    best = [(0, 0, 0)]
    for stop in range(1, len(pieces) + 1):
        options: list[tuple[int, int, int]] = []
        length = len(pieces[stop - 1].rstrip()) - len(pieces[stop - 1])
        for start in range(stop - 1, -1, -1):
            length += lengths[start]
            if options and length > max_chars:
                break
            shortfall, num_parts, _ = best[start]
            shortfall += max(0, min_chars - length) ** 2
            options.append((shortfall, num_parts + 1, start))
        best.append(min(options))
    parts: list[str] = []
    stop = len(pieces)
    while stop:
        start = best[stop][2]
        parts.insert(0, "".join(pieces[start:stop]))
        stop = start
    return parts
