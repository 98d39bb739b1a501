"""Chooses when to report a speech's words to the pipeline, and estimates the listener's position.

A stream knows when its words are heard (`timing/`). In a part that is still being spoken, the times
are estimates, which improve as more of the part is made. Therefore words are reported only shortly
before they are heard.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qwen_megakernel.timing.words import TimedWord, is_unspaced

if TYPE_CHECKING:  # importing it loads torch
    from qwen_megakernel.engine.stream import SpeechStream

# Words this far ahead of the listener are reported while their text is being spoken; later ones
# wait for a better estimate. A faster-than-speech engine sends the next chunk within this time.
LOOKAHEAD_S = 0.3
SURE_AFTER_S = 0.7  # words that end this long before the end of the audio keep their times


@dataclass(frozen=True, slots=True)
class WordTime:
    """A word and when it begins. `unspaced` words are joined without a space between them."""

    word: str
    seconds: float
    unspaced: bool = False


class WordTimer:
    """Returns the words of one request, each once, in order.

    Args:
        start_s: the beginning of the request in the audio of its context.
    """

    def __init__(self, stream: "SpeechStream", start_s: float = 0.0) -> None:
        self._stream, self._start_s = stream, start_s
        self._words: Sequence[TimedWord] = ()  # words not yet reported, at the last look
        self._sure_s = start_s  # times of words that end before this are final
        self._told_end = 0  # index of the character after the last reported word
        self._last_s = start_s

    async def due(self, made_s: float, heard_s: float) -> list[WordTime]:
        """Return the words to report now: they are in the audio so far and will be heard soon.

        Args:
            made_s: end of the audio so far, in seconds of the context's audio.
            heard_s: the listener's position, on the same scale.
        """
        limit_s = min(made_s, heard_s + LOOKAHEAD_S)
        told = self._tell(limit_s, self._sure_s)
        if self._words and self._end_s(self._words[0]) <= self._sure_s:
            return told  # the next word has its final time, which is later
        await self._look(made_s)
        return told + self._tell(limit_s, math.inf)

    async def finish(self) -> list[WordTime]:
        """Return all words that were not yet reported, at the end of the audio."""
        await self._look(math.inf)
        return self._tell(math.inf, math.inf)

    async def _look(self, made_s: float) -> None:
        """Get the words from the stream, which takes some milliseconds to look at its samples."""
        words = await self._stream.times.find()
        self._words = [word for word in words if _end(word) > self._told_end]
        self._sure_s = made_s - SURE_AFTER_S

    def _tell(self, limit_s: float, sure_s: float) -> list[WordTime]:
        """Report the words that begin before `limit_s` and end before `sure_s`, and return them."""
        unspaced = is_unspaced(self._stream.text.written)
        told: list[WordTime] = []
        for word in self._words:
            seconds = self._start_s + word.start
            if seconds >= limit_s or self._end_s(word) > sure_s:
                break
            # With its first ideograph, a text has other words; part of one may be reported already.
            text = word.word[max(0, self._told_end - word.offset) :].strip()
            self._last_s = max(self._last_s, seconds)  # a better estimate never moves a word back
            self._told_end = _end(word)
            told.append(WordTime(text, self._last_s, unspaced))
        self._words = self._words[len(told) :]
        return told

    def _end_s(self, word: TimedWord) -> float:
        return self._start_s + word.end


def _end(word: TimedWord) -> int:
    return word.offset + len(word.word)


@dataclass(slots=True)
class PlayoutClock:
    """Estimates the listener's position from the times at which audio was sent, all in seconds.

    Audio plays at once, or after the audio that was sent before. There are gaps between sentences,
    and where the engine is slower than speech.
    """

    delay_s: float = 0.0  # how much later the next sample is heard than its words' times assume
    _context_id: str | None = None  # the context of the last audio
    _began_s: float = 0.0  # when its first sample is heard, plus all gaps since
    _end_s: float = 0.0  # when all audio that was sent will have been heard
    _kept_end_s: float = 0.0  # the same for audio that an interruption does not drop

    def begin(self, context_id: str | None, now_s: float, words_from_s: float) -> None:
        """Begin a context whose word times count from `words_from_s`."""
        self._context_id = context_id
        self._began_s = self._end_s = max(now_s, self._end_s)
        self.delay_s = self._began_s - words_from_s

    def send(self, now_s: float, duration_s: float, *, interruptible: bool = True) -> None:
        """Record that audio was sent at `now_s`."""
        hole_s = max(0.0, now_s - self._end_s)
        self._began_s += hole_s
        self.delay_s += hole_s
        self._end_s += hole_s + duration_s
        if not interruptible:
            self._kept_end_s = self._end_s

    def cut(self, now_s: float) -> None:
        """After an interruption, forget audio that was sent but not yet heard."""
        self._end_s = max(now_s, self._kept_end_s)

    def heard_s(self, context_id: str, now_s: float) -> float:
        """Return how many seconds of a context were heard; 0 unless it is the current one."""
        return max(0.0, now_s - self._began_s) if context_id == self._context_id else 0.0
