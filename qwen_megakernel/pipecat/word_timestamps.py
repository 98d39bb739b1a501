"""When each word of a text is heard, estimated; and how far a listener has got.

The model says nothing about word boundaries. What is known is the text, what is spoken for each
part of it, how much audio it became (exactly, once its last chunk has left), and when that audio
was sent. Words share the audio by the length of what is spoken for them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qwen_megakernel.text.reading.spoken import Piece
from qwen_megakernel.timing.words import count_letters, split_words

# Seconds that a Latin letter takes in read speech; everything else is counted in such letters.
DEFAULT_PACE = 1 / 15

# Words this far ahead of the listener are reported while their text is being spoken; later ones
# wait for a better estimate. A faster-than-speech engine sends the next chunk within this time.
LOOKAHEAD_S = 0.3

# A text of less than a second says nothing about the pace of a voice.
_LEARNABLE_LETTERS = 15


@dataclass(frozen=True, slots=True)
class WordTime:
    """A word and when it begins. `unspaced` words are joined without a space between them."""

    word: str
    seconds: float
    unspaced: bool = False


@dataclass(slots=True)
class WordTimer:
    """Times for the words of one text while its audio is being made.

    Args:
        pace: seconds per letter, the estimate until the end of the audio is known.
        start_s: where in the audio the text begins.
        spoken: returns what is spoken for the text so far (numbers in words), in order; None: the
            text is spoken as it is written.
    """

    pace: float
    start_s: float = 0.0
    spoken: Callable[[], Sequence[Piece]] | None = None
    _words: list[tuple[str, bool, int]] = field(default_factory=list)  # and where they begin
    _letters: list[float] = field(default_factory=list)  # spoken for each character of the text
    _spoken_end: int = 0  # how much of the text the engine has taken
    _next: int = 0  # first word that was not reported yet
    _num_letters: float = 0.0  # spoken for the first `_num_counted` characters
    _num_counted: int = 0
    _last_s: float = 0.0

    def add(self, text: str) -> None:
        """Append whole words, which are reported as they are written here."""
        first, end = len(self._letters), 0
        for word, unspaced in split_words(text):
            begin = text.index(word, end)
            end = begin + len(word)
            self._words.append((word, unspaced, first + begin))
        if self.spoken:
            self._letters += [0.0] * len(text)
        else:
            self._letters += map(count_letters, text)
            self._spoken_end = len(self._letters)

    def due(self, made_s: float, heard_s: float) -> list[WordTime]:
        """Return the words to report now: within the audio made so far, and soon to be heard.

        Args:
            made_s: end of the audio so far, on the scale of `start_s`.
            heard_s: how far the listener is, on the same scale.
        """
        self._listen()
        limit = min(made_s, heard_s + LOOKAHEAD_S)
        words = []
        while self._is_next_spoken() and self._time(self.pace) < limit:
            words.append(self._tell(self.pace))
        return words

    def finish(self, made_s: float) -> list[WordTime]:
        """Return all words not reported yet, now that the audio is known to end at `made_s`."""
        self._listen()
        pace = (made_s - self.start_s) / max(1.0, sum(self._letters))
        return [self._tell(pace) for _ in range(self._next, len(self._words))]

    def learned_pace(self, made_s: float) -> float:
        """Return the pace to expect of the voice's next text, after all audio of this one."""
        num_letters = sum(self._letters)
        if num_letters < _LEARNABLE_LETTERS:
            return self.pace
        return (self.pace + (made_s - self.start_s) / num_letters) / 2

    def _listen(self) -> None:
        """Take the letters of what is spoken for the text since."""
        if not self.spoken or self._spoken_end == len(self._letters):
            return
        known = self._spoken_end
        for piece in reversed(self.spoken()):
            if piece.end <= known:
                break
            self._spoken_end = max(self._spoken_end, piece.end)
            first = max(piece.start, known)
            letters: list[float] = [*map(count_letters, piece.text[first - piece.start :])]
            if not piece.is_kept:  # the characters that it stands for share it
                num_chars = piece.end - first
                letters = [count_letters(piece.text) / num_chars] * num_chars
            for place, more in enumerate(letters, start=first):
                self._letters[place] += more

    def _is_next_spoken(self) -> bool:
        """Return whether the engine took the next word: an expression may wait for more text."""
        return self._next < len(self._words) and self._words[self._next][2] < self._spoken_end

    def _time(self, pace: float) -> float:
        begin = self._words[self._next][2]
        self._num_letters += sum(self._letters[self._num_counted : begin])
        self._num_counted = begin
        return self.start_s + pace * self._num_letters

    def _tell(self, pace: float) -> WordTime:
        self._last_s = max(self._last_s, self._time(pace))  # a better estimate never goes back
        word, unspaced, _ = self._words[self._next]
        self._next += 1
        return WordTime(word, self._last_s, unspaced)


@dataclass(slots=True)
class PlayoutClock:
    """Where a listener is, judged by what audio was sent and when. All times in seconds.

    Audio plays at once, or after what was sent before. There are gaps between
    sentences, and where the engine is slower than speech.
    """

    delay_s: float = 0.0  # how much later the next sample is heard than its words were set for
    _context_id: str | None = None  # whose audio was sent last
    _began_s: float = 0.0  # when its first sample is heard, moved up by the holes since
    _end_s: float = 0.0  # when all that was sent will have been heard
    _kept_end_s: float = 0.0  # the same for what an interruption does not drop

    def begin(self, context_id: str | None, now_s: float, words_from_s: float) -> None:
        """Begin a context, whose word times count from `words_from_s`."""
        self._context_id = context_id
        self._began_s = self._end_s = max(now_s, self._end_s)
        self.delay_s = self._began_s - words_from_s

    def send(self, now_s: float, duration_s: float, *, interruptible: bool = True) -> None:
        """Audio was sent."""
        hole_s = max(0.0, now_s - self._end_s)
        self._began_s += hole_s
        self.delay_s += hole_s
        self._end_s += hole_s + duration_s
        if not interruptible:
            self._kept_end_s = self._end_s

    def cut(self, now_s: float) -> None:
        """Drop what was sent and not heard yet, after an interruption."""
        self._end_s = max(now_s, self._kept_end_s)

    def heard_s(self, context_id: str, now_s: float) -> float:
        """Return how much of a context's audio was heard; 0 before it is sent."""
        return max(0.0, now_s - self._began_s) if context_id == self._context_id else 0.0
