"""The times of letters, from the times of words.

The letters of a word share its time evenly, and what is between two words fills the gap between
them. All letters joined are the text.
"""

from collections.abc import Iterable

from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.timing.words import spoken_spans

TimedLetters = list[tuple[str, float, float]]  # a letter, and the seconds in which it is heard


class LetterTimer:
    """The times of the letters of one speech, as the client writes it and as it is spoken."""

    def __init__(self, speaking: ActiveSpeech):
        self._speaking = speaking
        self._written, self._spoken = _Reader(), _Reader()

    async def take(self) -> tuple[TimedLetters, TimedLetters]:
        """Return the written and the spoken letters that have become final since the last call."""
        record = self._speaking.record
        is_over = self._speaking.finish_reason in ("eos", "length")  # asked before the last words
        words = await self._speaking.words()
        times = [(word.start, word.end) for word in words]
        spans = [(word.offset, word.offset + len(word.word)) for word in words]
        text = self._speaking.stream.text
        spoken = spoken_spans(text.pieces, spans)
        end_s = record.num_samples / record.sample_rate if is_over else None
        return (
            self._written.take(text.written, zip(spans, times, strict=True), end_s),
            self._spoken.take(text.spoken, zip(spoken, times, strict=True), end_s),
        )


class _Reader:
    """How far a text has been read, in characters and seconds."""

    def __init__(self) -> None:
        self._place, self._now_s = 0, 0.0

    def take(
        self,
        text: str,
        words: Iterable[tuple[tuple[int, int], tuple[float, float]]],
        end_s: float | None,
    ) -> TimedLetters:
        """Return the letters up to the last word; with `end_s`, up to the end of the text."""
        found: TimedLetters = []
        for (begin, end), (start_s, stop_s) in words:
            found += self._up_to(text[:begin], self._now_s, start_s)
            found += self._up_to(text[:end], start_s, stop_s)
        if end_s is not None:
            found += self._up_to(text, self._now_s, max(end_s, self._now_s))
        return found

    def _up_to(self, text: str, start_s: float, end_s: float) -> TimedLetters:
        letters = text[self._place :]
        step_s = (end_s - start_s) / max(len(letters), 1)
        self._place, self._now_s = max(self._place, len(text)), end_s
        return [
            (letter, start_s + index * step_s, start_s + (index + 1) * step_s)
            for index, letter in enumerate(letters)
        ]
