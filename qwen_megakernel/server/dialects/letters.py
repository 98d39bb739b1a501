"""The times of letters, from the times of words.

The letters of a word share its time evenly, and what is between two words fills the gap between
them. All letters joined are the text.
"""

from collections.abc import AsyncIterator

from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.timing.words import spoken_spans

TimedLetters = list[tuple[str, float, float]]  # a letter, and the seconds in which it is heard


class LetterTimer:
    """The times of the letters of one speech, as the client writes it and as it is spoken."""

    def __init__(self, speaking: ActiveSpeech):
        self._speaking = speaking
        self._readers = _Reader(), _Reader()

    async def take(self) -> list[TimedLetters]:
        """Return the written and the spoken letters that have become final since the last call."""
        is_over = self._speaking.finish_reason in ("eos", "length")  # asked before the last words
        words = await self._speaking.words()
        text = self._speaking.stream.text
        spans = [(word.offset, word.offset + len(word.word)) for word in words]
        both = (text.written, spans), (text.spoken, spoken_spans(text.pieces, spans))
        found = []
        for reader, (letters, places) in zip(self._readers, both, strict=True):
            final = TimedLetters()
            for (begin, end), word in zip(places, words, strict=True):
                final += reader.read(letters[:begin], word.start)
                final += reader.read(letters[:end], word.end)
            if is_over:
                final += reader.read(letters, max(self._speaking.length_s, reader.now_s))
            found.append(final)
        return found


async def timed(speaking: ActiveSpeech) -> AsyncIterator[tuple[bytes, list[TimedLetters]]]:
    """Yield audio, and letters, written and spoken, whose times became final before it."""
    timer, letters = LetterTimer(speaking), [TimedLetters(), TimedLetters()]
    async for audio in speaking.audio():
        if audio or any(letters):
            yield audio, letters
        letters = await timer.take()  # takes a while, so the audio does not wait for it
    if any(letters):
        yield b"", letters


class _Reader:
    """How far a text has been read, in characters and seconds."""

    place, now_s = 0, 0.0

    def read(self, text: str, end_s: float) -> TimedLetters:
        """Return the letters from there to the end of `text`, which take until `end_s`."""
        start_s, letters = self.now_s, text[self.place :]
        step_s = (end_s - start_s) / max(len(letters), 1)
        self.place, self.now_s = max(self.place, len(text)), end_s
        return [
            (letter, start_s + index * step_s, start_s + (index + 1) * step_s)
            for index, letter in enumerate(letters)
        ]
