"""What the streams of a conversation have just said, which the next part of it continues.

At the end of a part, its samples show where its words are. The last four seconds of its frames, cut
at a word, and their words are then in the context of the next part's prompt, behind the reference
of the voice: the official in-context rows.
"""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from qwen_megakernel import audio
from qwen_megakernel.engine.drift_guard import (
    IDENTITY_S,
    MIN_SPEECH_S,
    Figures,
    Identify,
    beginning,
)
from qwen_megakernel.records import TextIds
from qwen_megakernel.text.cleaning import clean
from qwen_megakernel.timing.alignment import align
from qwen_megakernel.timing.loudness import Loudness
from qwen_megakernel.timing.sounds import sounds_of
from qwen_megakernel.timing.words import is_unspaced, word_spans
from qwen_megakernel.voice import Voice

if TYPE_CHECKING:
    from torch import Tensor

CONTEXT_S = 4.0  # the longest context
MAX_VOICES = 16  # voices of a conversation whose speech is kept


@dataclass(frozen=True, slots=True)
class Said:
    """The end of what a voice has said, which begins with a word.

    Attributes:
        codes: [num_frames, num_code_groups] int32.
        words: for each word its first frame, and its characters up to the next word.
    """

    codes: np.ndarray
    words: tuple[tuple[int, str], ...]

    @classmethod
    def part(cls, text: str, codes: np.ndarray, loudness: Loudness) -> "Said | None":
        """Find the words of a complete part in its samples; None if it has none."""
        text, rows = clean(text), loudness.rows()
        sounds = sounds_of(text)
        if not sounds or not len(rows):
            return None
        hops = align(rows, sounds)
        hops_per_frame = len(rows) / len(codes)
        place = [*accumulate((not char.isspace() for char in text), initial=0)]
        frames_of = (hops[:, 0] / hops_per_frame).astype(int).tolist()
        heard = dict(zip((sound.first for sound in sounds), frames_of, strict=True))
        begins: list[tuple[int, int]] = []  # frame and first character of each word with a sound
        for begin, end in word_spans(text):
            frames = [heard[at] for at in range(place[begin], place[end]) if at in heard]
            if frames:
                begins.append((frames[0], begin) if begins else (0, 0))
        stops = [begin for _, begin in begins[1:]] + [len(text)]
        spans = zip(begins, stops, strict=True)
        return cls(codes, tuple((frame, text[begin:stop]) for (frame, begin), stop in spans))

    @property
    def text(self) -> str:
        """The words of the frames."""
        return "".join(word for _, word in self.words)

    def in_context(
        self, ids: TextIds, voice: Voice | None, encode: Callable[[str], "Tensor"]
    ) -> TextIds:
        """Return the ids of a prompt that continues the voice's reference, and then this."""
        text = self.text
        if voice and voice.codes is not None:
            text = joined(clean(voice.transcript or ""), text)
        return replace(ids, reference=encode(text.strip()), frames=self.frames_behind(voice))

    def frames_behind(self, voice: str | Voice | None) -> np.ndarray:
        """Return the frames of the voice's reference, and then these."""
        if not isinstance(voice, Voice) or voice.codes is None:
            return self.codes
        return np.concatenate([voice.codes, self.codes])

    def after(self, earlier: "Said | None", num_frames: int) -> "Said | None":
        """Return the last `num_frames` of `earlier` and this, from a word on; None: no word is."""
        codes, words = self.codes, self.words
        if earlier is not None:
            space = joined(earlier.text, self.text)[len(earlier.text) : -len(self.text)]
            frame, last = earlier.words[-1]
            shift = len(earlier.codes)
            words = (
                *earlier.words[:-1],
                (frame, last + space),
                *((frame + shift, word) for frame, word in words),
            )
            codes = np.concatenate([earlier.codes, codes])
        least = len(codes) - num_frames
        kept = [(frame, word) for frame, word in words if frame >= least]
        if not kept or kept[0][0] >= len(codes):
            return None
        first = kept[0][0]
        return Said(codes[first:].copy(), tuple((frame - first, word) for frame, word in kept))


def joined(text: str, more: str) -> str:
    """Return two texts as one, with a space between them if the second one's script has spaces."""
    return text + more if is_unspaced(more) else f"{text} {more}"


@dataclass(frozen=True, slots=True)
class _Memory:
    """What the voices of a conversation have said since it was last forgotten."""

    said: dict[Hashable, Said] = field(default_factory=dict)  # who spoke last is at the end
    firsts: dict[Hashable, Figures] = field(default_factory=dict)  # of each voice's first part


class Conversation:
    """What each voice of a conversation has just said: at most `CONTEXT_S` for each.

    Give it to every stream of the conversation, with `continuity="context"`. A stream begins when
    the one before it is drawn, so read them in order. A stream that fails, or is closed before its
    end was read, makes the next one begin anew.
    """

    def __init__(self) -> None:
        self._memory = _Memory()
        self._lock = threading.Lock()
        self._last: Turn | None = None

    def join(self, workers: Executor, wake: Callable[[], None], **options: Any) -> "Turn":
        """Add a stream.

        Args:
            workers: look at the samples of its parts.
            wake: makes the engine check its streams again.
            options: `identify` and `prepare` of `Turn`.
        """
        with self._lock:
            turn = Turn(self, workers, wake, self._last, self._memory, **options)
            self._last = turn
            return turn

    @property
    def is_begun(self) -> bool:
        """Whether a stream that joins now may find something that was said."""
        last = self._last
        may_come = last is not None and not last.is_over and not last.is_interrupted
        return may_come or bool(self._memory.said)

    def forget(self) -> None:
        """Forget everything that was said; words that are still looked for come too late.

        This takes no lock: a stream that is garbage-collected calls it, wherever its thread is.
        """
        self._memory = _Memory()

    def said(self, voice: str | Voice | None) -> Said | None:
        """Return the end of what a voice has said."""
        return self._memory.said.get(_key(voice))

    def compares(self, voice: str | Voice | None) -> bool:
        """Return whether a part of a voice will be compared with an earlier one."""
        return _key(voice) in self._memory.firsts

    def compare(self, turn: "Turn", voice: str | Voice | None, own: Figures) -> dict[str, float]:
        """Return how a part has drifted from the first one of its voice, which it may be itself."""
        memory = turn.memory
        if own.speech_s < MIN_SPEECH_S or memory is not self._memory:
            return {}
        with self._lock:
            first = memory.firsts.setdefault(_key(voice), own)
            if len(memory.firsts) > MAX_VOICES:
                del memory.firsts[next(iter(memory.firsts))]
        return own.drift_from(first)

    def say(
        self, turn: "Turn", voice: str | Voice | None, said: Said | None, most: int
    ) -> Said | None:
        """Keep the last `most` frames of a voice, and return them; None: the next part of the voice
        begins anew."""
        key, memory = _key(voice), turn.memory
        if memory is not self._memory:
            return None
        with self._lock:
            earlier = memory.said.pop(key, None)
            kept = said and said.after(earlier, most)
            if kept:
                memory.said[key] = kept
            if len(memory.said) > MAX_VOICES:
                del memory.said[next(iter(memory.said))]
        return kept


@dataclass(slots=True, eq=False)
class Turn:
    """One stream's place in its conversation.

    Args:
        identify: see `Figures.of`.
        prepare: takes the frames that the voice's next part will probably have in context.
    """

    conversation: Conversation
    workers: Executor
    wake: Callable[[], None]
    before: "Turn | None"  # the stream before it, until that is over
    memory: _Memory  # the conversation's, until that is forgotten
    identify: Identify | None = None
    prepare: Callable[[np.ndarray], None] = lambda frames: None
    is_over: bool = False
    is_interrupted: bool = False
    is_guarded: bool = False  # whether the current part will be compared with an earlier one
    # Of the last part: its drift, what it said, and how many frames of that to keep.
    _finding: Future[tuple[dict[str, float], Said | None, int]] | None = None
    _voice: str | Voice | None = None
    _samples: list[np.ndarray] = field(default_factory=list)  # of the current part, int16
    _num_samples: int = 0
    _identity: Future[np.ndarray] | None = None  # the x-vector of the current part

    @property
    def is_found(self) -> bool:
        """Whether the words of the last part, and its drift, are known."""
        return self._finding is None or self._finding.done()

    @property
    def is_due(self) -> bool:
        """Whether what was said before the stream's next part is known."""
        if self.before and self.before.is_over:
            self.before = None
        return self.before is None and self.is_found

    def begin_part(self, voice: str | Voice | None, *, goes_on: bool) -> Said | None:
        """Begin a part, and return what its voice has said.

        Args:
            goes_on: the rest of the part before, whose text was late.
        """
        if goes_on:
            return None
        self._voice, self._samples, self._num_samples, self._identity = voice, [], 0, None
        self.is_guarded = self.conversation.compares(voice)
        return self.conversation.said(voice)

    def hear(self, samples: np.ndarray, rate: int) -> None:
        """Take samples of the part, [num_samples] int16.

        Who speaks is found while the rest of the part is drawn, because the next part waits for it.
        """
        self._samples.append(samples)
        self._num_samples += len(samples)
        if self.identify and not self._identity and self._num_samples >= IDENTITY_S * rate:
            sound = beginning(audio.joined(self._samples), rate)
            self._identity = self.workers.submit(self.identify, sound, rate)

    def end_part(self, text: str | None, codes: list[np.ndarray], rate: int) -> None:
        """End a part; None: the frames are not all of a text, so nothing can continue them."""
        if text is None or not codes:
            self.conversation.say(self, self._voice, None, 0)
            return
        samples = audio.joined(self._samples)
        self._finding = self.workers.submit(self._find, text, codes, samples, rate, self._identity)
        self._finding.add_done_callback(lambda _: self.wake())

    def _find(
        self,
        text: str,
        codes: list[np.ndarray],
        samples: np.ndarray,
        rate: int,
        identity: Future[np.ndarray] | None,
    ) -> tuple[dict[str, float], Said | None, int]:
        identify = (lambda *_: identity.result()) if identity else self.identify
        figures = Figures.of(text, samples, rate, identify)
        drift = self.conversation.compare(self, self._voice, figures)
        loudness = Loudness()
        loudness.add(samples, rate)
        said = Said.part(text, np.array(codes, dtype=np.int32), loudness)
        return drift, said, round(CONTEXT_S * len(codes) / (len(samples) / rate))

    def settle(self, *, can_redraw: bool) -> dict[str, float]:
        """Return the drift of the last part, once; if it `can_redraw`, drop what that part said."""
        if not self._finding:
            return {}
        drift, said, most = self._finding.result()  # raises what failed
        self._finding = None
        if not (drift and can_redraw):
            kept = self.conversation.say(self, self._voice, said, most)
            if kept:
                self.prepare(kept.frames_behind(self._voice))
        return drift

    def end(self, *, is_good: bool) -> None:
        """End the stream; one that was cancelled or failed leaves nothing to continue."""
        if not is_good:
            self.interrupt()
        self._samples, self.before = [], None  # a conversation keeps its last turn
        self.is_over = True
        self.wake()

    def interrupt(self) -> None:
        """Let the next stream begin anew, because the listener has not heard this one's end."""
        if not self.is_interrupted:  # later streams may have said something since
            self.is_interrupted = True
            self.conversation.forget()


def _key(voice: str | Voice | None) -> Hashable:
    if not isinstance(voice, Voice):
        return voice
    return voice.name, None if voice.x_vector is None else voice.x_vector.tobytes()
