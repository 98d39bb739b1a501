"""The times of letters, from the times of words.

The letters of a word share its time evenly, and what is between two words fills the gap between
them. The letters of all steps joined are the text, as the client sent it or as it is spoken.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.timing.words import TimedWord, spoken_spans

_Spans = Sequence[tuple[int, int]]


@dataclass(slots=True)
class TimedLetters:
    """Consecutive characters of a text, and the seconds in which each is heard."""

    letters: str = ""
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def add(self, letters: str, start_s: float, end_s: float) -> None:
        """Add characters that share a time evenly."""
        step_s = (end_s - start_s) / max(len(letters), 1)
        self.letters += letters
        self.starts += [start_s + index * step_s for index in range(len(letters))]
        self.ends += [start_s + (index + 1) * step_s for index in range(len(letters))]

    def extend(self, more: "TimedLetters") -> None:
        """Add the letters that follow."""
        self.letters += more.letters
        self.starts += more.starts
        self.ends += more.ends


class LetterTimer:
    """The times of the letters of one speech.

    Args:
        speaking: the speech.
    """

    def __init__(self, speaking: ActiveSpeech):
        self._speaking = speaking
        self._written, self._spoken = _Reader(), _Reader()

    async def take(self) -> tuple[TimedLetters, TimedLetters]:
        """Return the letters that have become final since the last call.

        Returns:
            The letters of the client's text, without markup, and those of the spoken text. The
            last of them come when the speech is over.
        """
        stream, record = self._speaking.stream, self._speaking.record
        is_over = self._speaking.finish_reason in ("eos", "length")  # before the last words come
        words = await self._speaking.words()
        end_s = record.num_samples / record.sample_rate if is_over else None
        spans = [(word.offset, word.offset + len(word.word)) for word in words]
        spoken = spoken_spans(stream.spoken_pieces, spans)
        return (
            self._written.take(stream.written_text, words, spans, end_s),
            self._spoken.take(stream.spoken_text, words, spoken, end_s),
        )


class _Reader:
    """How far a text has been read, in characters and seconds."""

    def __init__(self) -> None:
        self._place, self._now_s = 0, 0.0

    def take(
        self, text: str, words: Sequence[TimedWord], spans: _Spans, end_s: float | None
    ) -> TimedLetters:
        """Return the letters up to the last word; with `end_s`, up to the end of the text."""
        found = TimedLetters()
        for word, (begin, end) in zip(words, spans, strict=True):
            self._add(found, text, begin, self._now_s, word.start)
            self._add(found, text, end, word.start, word.end)
        if end_s is not None:
            self._add(found, text, len(text), self._now_s, max(end_s, self._now_s))
        return found

    def _add(
        self, found: TimedLetters, text: str, until: int, start_s: float, end_s: float
    ) -> None:
        found.add(text[self._place : until], start_s, end_s)
        self._place, self._now_s = max(self._place, until), end_s
