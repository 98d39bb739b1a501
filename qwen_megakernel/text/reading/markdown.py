"""Removes Markdown, as language models write it: emphasis, lists, links, code, tables.

The text is processed one segment (`segments`) at a time, so a text that arrives in pieces need not
wait for more than that. Each mark is removed by itself; nothing checks whether marks are balanced.
"""

import re

from qwen_megakernel.text.reading.spoken import Draft
from qwen_megakernel.text.scripts import UNSPACED

_HEADING = re.compile(r"#{1,6}$")
_BULLET = re.compile(r"(?:[-*+•]|\d{1,3}[.)])$")
_QUOTE = re.compile(r">+$")
_RULE = re.compile(r"(?:[-_*=]{3,}|\|?[-:|]{3,}|\[[xX]?\]?|\])$")  # also the box of a task
_FENCE = re.compile(r"(?:```+|~~~+)[\w+-]*$")

# Footnotes, the targets of links, brackets, the marks of code and of struck words.
_FOOTNOTE = r"(?<=[^\W\d_]{2})\[\^?\d{1,3}\]|(?<=[.,;!?])\[\^?\d{1,3}\]|\[\^\w+\]"
_UNSPOKEN = re.compile(rf"{_FOOTNOTE}|\]\([^)\s]*\)?|\]\[[^\]\s]*\]|!?\[|\]|`+|~~+")
_AUTOLINK = re.compile(r"<(https?://[^>\s]*|[^@>\s]+@[^>\s]+)>")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_STARS = re.compile(r"(?<![\d\s\\*])\*+|(?<!\\)\*+(?![\d\s*])|(?<=\d)\*+(?=\s(?!\d))")
# A star that stands alone, or before the second part of a word, is a key of a telephone.
_KEY = re.compile(r"(?<![^\"'“„«])\*(?=[\"'”“»),.;:!?]*$|-[^\W\d_])")
KEY = "∗"  # as the rules see it
BORN = "(*"  # before a date: "Goethe (* 28. August 1749)"
_BORN = re.compile(r"(?<=^\()\*(?=\s\d)")
_BEFORE_KEY = re.compile(r"[按「『]\Z|[^.!?…\s]\s\Z")  # behind a sentence, it is that of a footnote
# A star before digits, or before a Japanese or Korean particle, is one if the text is about keys.
_DIALLED = re.compile(
    r"(?<![^\"'“„«「『])\*(?=\d{1,3}(?:[^\0-\x7f](?!.*\*)|\*\*)|\d{0,3}[\"'”“»」』)\]_,.;:!?을를이번]*$)"
)
_PRESSED = re.compile(
    r"(?i)(?:\bpress|\bdial|\bwähl|\bdrück|\bcompos|\bappuy|\btapez|\bprem|\bdigit|\bmarque|\bpuls"
    r"|\bpresion|\btecl|\bdisque|\bapert|нажм|набер|[按拨撥押])[^.!?。]*\Z"
)
# A star behind a single digit is that of a hotel, unless it ends an emphasis: "a 5* hotel".
_RATING = re.compile(
    r"(?:(?<=^[1-7])|(?<=^_[1-7])|(?<=^\*\*[1-7])|(?<=[^\w.,$€£¥*+/\\#-][1-7]))\*(?!\*(?!\*))"
    rf"(?=-[^\W\d]|(?:[^\w\s]|_)*$|[{UNSPACED}])"
)
_PARTICLE = re.compile(r"\*\d*」?[を을를かと]")
_STRONG = re.compile(r"\*{2,}")
_PRODUCT = re.compile(r"[^*]*[\w)]\*[\w(][^*]*")  # a single star between two factors
_UNDERSCORES = re.compile(r"(?<!\\)_+")
_INDEX = re.compile(r"(?<![^\W_])([^\W\d_])_(?=\d)")  # "x_1"
_ADDRESS = re.compile(r"://|www\.|@", re.IGNORECASE)
_PIPE = re.compile(r"\|")
_MARKS = re.compile(r"[*_`~\[\]\\<>&|#-]|\d[.)]$|[+•]$")


class Markdown:
    """Removes the marks of one text, and keeps track of the line that is being read."""

    def __init__(self) -> None:
        self.is_begun = True  # whether the line has only marks such as "-" or "##" so far
        self._is_row = False  # whether the line is one of a table
        self._is_item = False  # whether the line is a heading or a list entry
        self._is_emphasised = False  # whether a single star is open

    def strip(self, segment: Draft, past: str, following: str) -> Draft:
        """Return the segment without its marks; the result is empty if it has nothing else.

        `past` is the text before it, and `following` the character behind it, if there is one.
        """
        begins, text = self.is_begun, segment.text
        if not _MARKS.search(text):
            self.is_begun = False
            return segment
        if begins and (found := self._mark_of_line(text)) is not None:
            self._is_emphasised = text == "*"
            return segment.replace(re.compile(r".+", re.DOTALL), found)
        if begins:
            self.is_begun, self._is_row = False, text.startswith("|")
        if _FENCE.match(text):
            return segment.replace(_FENCE, "")
        is_alone = not following.isalnum() or past.endswith("按")
        if not begins and is_alone and _BEFORE_KEY.search(past):
            segment = segment.replace(_KEY, KEY)
        segment = segment.replace(_BORN, KEY)
        is_pressed = _PRESSED.search(past) or _PARTICLE.search(text + following)
        if is_pressed and not self._is_emphasised:
            segment = segment.replace(_DIALLED, KEY)
        elif not (self._is_emphasised or following.isalnum()):
            segment = segment.replace(_RATING, "-★")
        self._is_emphasised ^= segment.text.count("*") % 2 == 1
        return _without_marks(segment, self._is_row)

    def end_line(self, last: str) -> str:
        """End a line whose last character is `last`; returns the full stop it lacks, or "".

        An entry without a word lacks none.
        """
        is_item, self._is_item = self._is_item and not self.is_begun, False
        self.is_begun, self._is_row, self._is_emphasised = True, False, False
        return "." if is_item and last.isalnum() else ""

    def _mark_of_line(self, text: str) -> str | None:
        """Return the words for a mark of the line's kind, such as "##"; None for other text."""
        if _FENCE.match(text) or _RULE.match(text) or _QUOTE.match(text):
            return ""
        if _HEADING.match(text) or _BULLET.match(text):
            self._is_item = True
            if text[0].isdigit():
                self.is_begun = False
                return None
            return ""
        if text == "|":
            self.is_begun, self._is_row = False, True
            return ""
        return None


def _without_marks(segment: Draft, is_row: bool) -> Draft:
    draft = segment.unwrapped(_AUTOLINK).replace(_UNSPOKEN, "")
    if is_row:
        draft = draft.replace(_PIPE, ",")
    if not _ADDRESS.search(draft.text):
        draft = draft.replace(_STRONG, "")
        draft = draft if _PRODUCT.fullmatch(draft.text) else draft.replace(_STARS, "")
        draft = draft.unwrapped(_INDEX).replace(_UNDERSCORES, _between_words)
    return draft.unwrapped(_ESCAPE)


def _between_words(match: re.Match[str]) -> str:
    """Return a space for an underscore inside a word ("snake_case"), and "" at its edges."""
    text, (begin, end) = match.string, match.span()
    return " " if text[begin - 1 : begin].isalnum() and text[end : end + 1].isalnum() else ""
