"""Estimates when each word of a text is heard, and how far a listener has got.

The model gives no word boundaries. Known are the text, how much audio it became (exactly, once its
last chunk has left), and when that audio was sent. Words share the audio by their length.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

# Seconds that a Latin letter takes in read speech; other characters are counted in such letters.
DEFAULT_PACE = 1 / 15
_WIDE_LETTERS = 3  # an ideograph, kana or Hangul syllable: about a fifth of a second
_DIGIT_LETTERS = 4  # "7" is read "seven"
_PAUSE_LETTERS = {**dict.fromkeys(",;:、，；：—–", 2), **dict.fromkeys(".!?…。！？", 4)}

# Words up to so far ahead of the listener are pushed while their text is being spoken; later words
# wait for a better estimate. An engine faster than speech sends the next chunk within this time.
LOOKAHEAD_S = 0.3

_LEARNABLE_LETTERS = 15  # a text of less than a second does not show the pace of a voice

# Han and kana, those of the model's scripts that have no spaces between words.
_UNSPACED = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED_LETTER = re.compile(f"[{_UNSPACED}]")
_UNSPACED_PIECE = re.compile(rf"[{_UNSPACED}][^\w\s]*|[^{_UNSPACED}]+")
_LAST_WORD_END = re.compile(rf"(?s:.+)(?:(?<=\s)|(?=[{_UNSPACED}]))")


@dataclass(frozen=True, slots=True)
class WordTime:
    """A word and when it begins; `unspaced` words are joined without spaces."""

    word: str
    seconds: float
    unspaced: bool = False


def split_words(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the words of a text, each with whether it is `unspaced`.

    A text with Han or kana is cut at each of them; the text between two of them (a Latin name, a
    number) stays in one piece, with its own spaces.
    """
    if not _UNSPACED_LETTER.search(text):
        yield from ((word, False) for word in text.split())
        return
    for piece in _UNSPACED_PIECE.findall(text):
        if piece.strip():
            yield piece.strip(), True


def whole_words(text: str) -> int:
    """Return how many characters of an unfinished text are certain to be whole words.

    The last word is not: punctuation that follows would belong to it.
    """
    end = _LAST_WORD_END.match(text)
    return end.end() if end else 0


def count_letters(text: str) -> int:
    """Return how long a text takes to speak, in Latin letters; punctuation counts as pauses."""
    return sum(map(_letters, text))


def _letters(char: str) -> int:
    if char.isdigit():
        return _DIGIT_LETTERS
    if char.isalpha():
        return _WIDE_LETTERS if unicodedata.east_asian_width(char) in "WF" else 1
    return _PAUSE_LETTERS.get(char, 0)


@dataclass(slots=True)
class WordTimer:
    """Times the words of one text while its audio is being made.

    Args:
        pace: seconds per letter, an estimate until the end of the audio is known.
        start_s: the time in the audio at which the text begins.
    """

    pace: float
    start_s: float = 0.0
    # Each word, whether it is unspaced, and the number of letters before it.
    _words: list[tuple[str, bool, int]] = field(default_factory=list)
    _num_letters: int = 0
    _next: int = 0  # index of the first word that was not returned yet
    _last_s: float = 0.0

    def add(self, text: str) -> None:
        """Append whole words."""
        for word, unspaced in split_words(text):
            self._words.append((word, unspaced, self._num_letters))
            self._num_letters += count_letters(word)

    def due(self, made_s: float, heard_s: float) -> list[WordTime]:
        """Return the next words that are within the audio made so far and soon to be heard.

        Args:
            made_s: end of the audio so far, on the scale of `start_s`.
            heard_s: how far the listener is, on the same scale.
        """
        limit = min(made_s, heard_s + LOOKAHEAD_S)
        words = []
        while self._next < len(self._words) and self._time(self.pace) < limit:
            words.append(self._take(self.pace))
        return words

    def finish(self, made_s: float) -> list[WordTime]:
        """Return all remaining words, now that the audio is known to end at `made_s`."""
        pace = (made_s - self.start_s) / max(1, self._num_letters)
        return [self._take(pace) for _ in range(self._next, len(self._words))]

    def learned_pace(self, made_s: float) -> float:
        """Return the pace to expect of the voice's next text, after all audio of this one."""
        if self._num_letters < _LEARNABLE_LETTERS:
            return self.pace
        return (self.pace + (made_s - self.start_s) / self._num_letters) / 2

    def _time(self, pace: float) -> float:
        return self.start_s + pace * self._words[self._next][2]

    def _take(self, pace: float) -> WordTime:
        self._last_s = max(self._last_s, self._time(pace))  # a better estimate never goes back
        word, unspaced, _ = self._words[self._next]
        self._next += 1
        return WordTime(word, self._last_s, unspaced)


@dataclass(slots=True)
class PlayoutClock:
    """Estimates what a listener has heard from what audio was sent and when. Times in seconds.

    Audio plays at once, or after the audio sent before. An engine slower than speech, or a pause
    between sentences, leaves gaps.
    """

    delay_s: float = 0.0  # how much later the next sample is heard than its words are timed
    _context_id: str | None = None  # the context whose audio was sent last
    _began_s: float = 0.0  # when its first sample is heard, plus the gaps since
    _end_s: float = 0.0  # when all audio that was sent will have been heard
    _kept_end_s: float = 0.0  # the same for audio that an interruption does not drop

    def begin(self, context_id: str | None, now_s: float, words_from_s: float) -> None:
        """Begin a context before its first audio; its words are timed from `words_from_s`."""
        self._context_id = context_id
        self._began_s = self._end_s = max(now_s, self._end_s)
        self.delay_s = self._began_s - words_from_s

    def send(self, now_s: float, duration_s: float, *, interruptible: bool = True) -> None:
        """Record audio that was sent."""
        gap_s = max(0.0, now_s - self._end_s)
        self._began_s += gap_s
        self.delay_s += gap_s
        self._end_s += gap_s + duration_s
        if not interruptible:
            self._kept_end_s = self._end_s

    def cut(self, now_s: float) -> None:
        """Record an interruption, which drops audio that was sent and not heard yet."""
        self._end_s = max(now_s, self._kept_end_s)

    def heard_s(self, context_id: str, now_s: float) -> float:
        """Return how much of a context's audio the listener has heard; 0 before it is sent."""
        return max(0.0, now_s - self._began_s) if context_id == self._context_id else 0.0
