"""What stands around an expression: marks that are no part of it, and the end of a sentence."""

import re

OPENING = "\"'“”‘‚„«»‹›([{*_`¿¡"
CLOSING = "\"'”“’»«›‹)]}*_`"
WIDE_CLOSING = "）」』】》〕〉"
POINTS, WIDE_POINTS = ".!?…؟।॥", "。！？｡．"  # marks with which sentences end
PAUSES, WIDE_PAUSES = ",;:", "，、；："  # marks inside a sentence
SENTENCE_ENDS = f"{POINTS}{WIDE_POINTS};:；："  # marks after which no full stop is missing
TRAILING = CLOSING + WIDE_CLOSING + POINTS + WIDE_POINTS + PAUSES + WIDE_PAUSES
_DECADE = re.compile(r"'\d(?:0'?s|\d|00)(?!['’]?\w)")
_OPEN_BRACKETS = re.compile(r"[^()]*\([^()]*\)")


class Found:
    """What the pattern of a rule has found, and what stands around it.

    `found["d"]` is what a group has matched; "" if it has matched nothing, or if there is none.

    Args:
        match: the match of the pattern.
        before: the word before it, without marks around it.
        past: the text before it, at most `codes.MAX_PAST` characters.
    """

    def __init__(self, match: re.Match[str], before: str, past: str = ""):
        self.match, self.text, self.past = match, match[0], past
        self.before, self.word = before, before.lower()
        self.last = match.string[: match.start()][-1:]  # the character directly before it
        self.rest = match.string[match.end() :]

    def __getitem__(self, name: str) -> str:
        return (self.match[name] or "") if name in self.match.re.groupindex else ""


def bare(word: str) -> str:
    """Return a word without the quotation marks, brackets and emphasis around it."""
    return word.lstrip(OPENING).rstrip(CLOSING)


def first_word(text: str) -> str:
    """Return the first word of a text without the marks around it; empty: there is none."""
    words = text.split(maxsplit=1)
    return words[0].lstrip(OPENING).rstrip(TRAILING) if words else ""


def inside(text: str, quotes: str) -> tuple[int, int]:
    """Return the part [begin, end) of a segment that is left without the marks around it.

    One point directly after a word stays, because it may belong to an abbreviation, and so do the
    marks for feet and inches after a number, unless they close a quotation.
    `quotes` are the straight quotation marks that are open before the segment.
    """
    begin, end = 0, len(text.rstrip(TRAILING))
    while begin < end and text[begin] in OPENING and not _is_part(text, begin, end):
        begin += 1
    if not end:
        return 0, 0
    marks = text[end:]
    if marks.startswith(")") and text.count("(", begin, end) > text.count(")", begin, end):
        end += 1
    if marks.startswith(".") and not marks.startswith(".."):
        end += 1
    elif match := _LENGTH_MARKS.match(text[end - 1 :]):
        number = match.end() - 1
        is_closing = marks[0] in text[:begin] + open_quotes(text[:end], quotes)
        end += min(number, marks.rindex(marks[0])) if is_closing else number
    return begin, end


_QUOTES = re.compile(r"(\d?)\"")  # a digit before the mark for inches
_OTHERS = "".join(set(TRAILING) - set("\"'"))
_LENGTH_MARKS = re.compile(rf"\d[\"'″′]+(?=(?:[{re.escape(_OTHERS)}]+\"?)?$)")


def open_quotes(text: str, quotes: str, is_size: bool = False) -> str:
    """Return the straight quotation marks that are open after a segment; `quotes` are before it.

    `is_size` is whether a mark behind a digit means inches even inside a quotation.
    """
    if '"' not in text and "'" not in text:
        return quotes
    is_open, is_quoted = '"' in quotes, '"' in text[: len(text) - len(text.lstrip(OPENING))]
    for digit in _QUOTES.findall(text):
        if not digit or ((is_open or is_quoted) and not is_size):
            is_open = not is_open
    quotes = quotes.replace('"', "") + '"' * is_open
    if text.rstrip(_OTHERS).endswith("'"):
        return quotes.replace("'", "")
    return quotes + "'" if text.lstrip('"(').startswith("'") else quotes


def _is_part(text: str, place: int, end: int) -> bool:
    """Return whether the opening mark at `place` belongs to the expression after it."""
    if text[place] == "(":  # "(555) 010-0199"
        return _OPEN_BRACKETS.match(text[place:end]) is not None
    return _DECADE.match(text, place) is not None
