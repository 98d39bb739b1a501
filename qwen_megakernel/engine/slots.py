"""The streams of an engine, and the table of those that wait or hold a slot."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import numpy as np

from qwen_megakernel.audio import to_int16
from qwen_megakernel.engine.runaway_guard import RunawayGuard
from qwen_megakernel.engine.stages import FrameVocoder
from qwen_megakernel.engine.stream_state import StreamState
from qwen_megakernel.errors import EmptyText, GenerationError, KernelTimeout, QwenTTSError
from qwen_megakernel.gpu.driver import lost_gpu
from qwen_megakernel.printable import get_logger
from qwen_megakernel.records import FinishReason, StepResult
from qwen_megakernel.text.parts import TextPart
from qwen_megakernel.timing.speech_timer import SpokenPart

logger = get_logger(__name__)

MAX_TIMEOUTS = 3  # launches in a row that hang before the engine gives up

# A reader that is this many chunks behind pauses its stream: 8 s at the default chunk of 10 frames.
MAX_QUEUED_CHUNKS = 10

# Speech has 3 to 4 text tokens per second, so text that comes more slowly makes a speaker wait.
SECONDS_PER_TEXT_TOKEN = 0.25


class Phase(Enum):
    """The phase that a stream is in; only the methods of `ActiveStream` change it."""

    WAITING = auto()  # for a slot; or for text or its reader, which it needs before a slot
    BETWEEN_PARTS = auto()  # it holds a slot; the prompt of its next part has not run
    SPEAKING = auto()  # frames of a part are drawn
    DRAINING = auto()  # a part is over; the pending frames become audio
    OVER = auto()


@dataclass(slots=True, eq=False)
class ActiveStream:
    """A stream as the engine's thread sees it: phase, part, and frames that are not audio yet."""

    state: StreamState
    phase: Phase = Phase.WAITING
    index: int = -1  # the slot's index
    vocoder: Any = None  # the stream's state in the vocoder
    lookahead: int = 0  # frames the vocoder must see after those it turns into audio
    chunk_frames: int = 0  # size of the current chunk; it doubles up to the request's size
    part: TextPart | None = None  # None: between parts
    text_open: bool = False  # more text of the part will come
    text_due: float = 0.0  # perf_counter() when a speaker would need more text than has come
    guard: RunawayGuard = field(default_factory=lambda: RunawayGuard(0))  # one for each part
    pending: list[np.ndarray] = field(default_factory=list)  # frames not yet turned into audio
    part_end: FinishReason = "eos"  # the reason why a draining part has ended
    finish: FinishReason = "eos"  # the first reason that was not eos, over all parts

    @property
    def num_frames(self) -> int:
        """Frames of this utterance so far, delivered or pending."""
        return len(self.state.codes) + len(self.pending)

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended; another stream may hold its slot."""
        return self.phase is Phase.OVER

    @property
    def is_reader_behind(self) -> bool:
        """Whether the reader leaves so many chunks that it needs no more now."""
        return len(self.state.outbox) >= MAX_QUEUED_CHUNKS

    @property
    def is_ready(self) -> bool:
        """Whether the next part can begin: there is text, and the reader keeps up."""
        parts = self.state.text.parts
        has_text = bool(parts and parts[0].ids and not parts[0].pause_s)
        return has_text and not self.is_reader_behind

    @property
    def is_spoken(self) -> bool:
        """Whether all parts are over, and no text will come."""
        text = self.state.text
        # A writer appends its last part, then closes the text, so `parts` is read again.
        return not text.parts and text.is_closed and not text.parts

    @property
    def late_text_s(self) -> float:
        """Seconds by which the text is behind a speaker, who says a few tokens per second."""
        return time.perf_counter() - self.text_due

    @property
    def frames_until_due(self) -> int:
        """Number of frames that the next chunk still lacks."""
        if self.phase is Phase.DRAINING:
            return 0
        return self.chunk_frames + self.lookahead - len(self.pending)

    @property
    def num_ready(self) -> int:
        """Pending frames that can be turned into audio."""
        return len(self.pending) - (0 if self.phase is Phase.DRAINING else self.lookahead)

    # ---- transitions -----------------------------------------------------------------------------

    def enter(self, index: int, lookahead: int) -> None:
        """Take slot `index`; `lookahead` is the vocoder's."""
        self.index, self.lookahead = index, lookahead
        self.chunk_frames = self.chunk_frames or self.state.request.first_chunk_frames
        self.phase = Phase.BETWEEN_PARTS

    def leave(self) -> None:
        """Give up the slot between two parts; the vocoder's state is of no further use."""
        self.index, self.vocoder, self.phase = -1, None, Phase.WAITING

    def skip_to_text(self) -> None:
        """Between parts, drop the parts that are over, and deliver pauses, up to the next text."""
        state, parts = self.state, self.state.text.parts
        # `closed` is read before `ids`, as in `StepLoop._feed_part`: a writer appends, then closes.
        while parts:
            if pause_s := parts[0].take_pause():
                state.deliver_pause(pause_s)
            if not parts[0].closed or parts[0].ids:
                break
            part = parts.popleft()
            if state.spoken_parts and state.spoken_parts[-1].text is part:
                state.spoken_parts[-1].end(len(state.codes), self.part_end)

    def begin_part(
        self, part: TextPart, num_tokens: int, *, text_open: bool, max_frames: int, vocoder: Any
    ) -> None:
        """Begin a part after its prompt has run.

        Args:
            num_tokens: text tokens of the part so far.
            text_open: more text of the part will come.
            max_frames: hard limit for this part.
            vocoder: the state of the vocoder before its first frame.
        """
        self.part, self.text_open, self.vocoder = part, text_open, vocoder
        self.guard = RunawayGuard(max_frames)
        self.text_due = time.perf_counter()
        self.add_text(num_tokens)
        self.state.num_parts += 1
        spoken = self.state.spoken_parts
        if not spoken or spoken[-1].text is not part:  # else it goes on after an early end
            spoken.append(SpokenPart(part, len(self.state.codes)))
        self.phase = Phase.SPEAKING

    def add_text(self, num_tokens: int) -> None:
        """Count text tokens that the decoder has received."""
        self.guard.num_text_tokens += num_tokens
        self.state.num_text_tokens += num_tokens
        due = self.text_due + num_tokens * SECONDS_PER_TEXT_TOKEN
        self.text_due = min(due, time.perf_counter())

    def take_frames(self, codes: np.ndarray, ended: bool) -> None:
        """Take drawn frames [num_frames, num_code_groups]; the guard may cut them.

        Args:
            ended: the decoder drew the end token after them.
        """
        reason: FinishReason | None = None
        for frame in codes:
            if reason := self.guard.check_codes(frame):
                break
            self.pending.append(frame)
        if not reason and ended:
            reason = "eos"
        if not reason and self.guard.frames_left <= 0:
            reason = "length"
        if reason:
            self.part_end, self.phase = reason, Phase.DRAINING

    def take_chunk(self) -> list[np.ndarray]:
        """Take the ready frames out of the pending ones, and double the next chunk's length."""
        codes, self.pending = self.pending[: self.num_ready], self.pending[self.num_ready :]
        self.chunk_frames = min(2 * self.chunk_frames, self.state.request.chunk_frames)
        return codes

    def deliver(self, codes: list[np.ndarray], pcm: np.ndarray) -> None:
        """Deliver a chunk to the reader; the guard may cut it, which ends the part.

        Args:
            codes: [num_code_groups] for each frame.
            pcm: [num_samples] float32, the samples of all frames.
        """
        frames = pcm.reshape(len(codes), -1)
        for index, frame in enumerate(frames):
            if reason := self.guard.check_audio(frame):
                frames = frames[:index]
                self.pending.clear()
                self.part_end, self.phase = reason, Phase.DRAINING
                break
        first = len(self.state.codes)
        self.state.codes.extend(codes[: len(frames)])
        if len(frames):
            self.state.timings.setdefault("first_chunk", self.state.elapsed_ms())
            manner = self.part.manner if self.part else None
            self.state.deliver(to_int16(frames.reshape(-1)), first, len(frames), manner=manner)

    def end_part(self) -> bool:
        """End the part; returns True if the request's limit leaves no frame for another."""
        if self.finish == "eos":
            self.finish = self.part_end
        limit = self.state.request.max_frames
        self.part, self.phase = None, Phase.BETWEEN_PARTS
        return limit is not None and len(self.state.codes) >= limit


class SlotTable:
    """Streams, from their submission to their end. Only the worker thread uses the table.

    Args:
        num_slots: streams that are spoken at the same time; the others wait.
        on_finished: called when a stream is over, for any reason.
        look_again: called when the loop has something new to do, such as filling a free slot.
    """

    def __init__(
        self,
        num_slots: int,
        *,
        on_finished: Callable[[StreamState], None],
        look_again: Callable[[], None],
    ):
        self._on_finished = on_finished
        self._look_again = look_again
        self.waiting: deque[ActiveStream] = deque()  # any thread may append
        self._slots: list[ActiveStream | None] = [None] * num_slots
        self.failure: QwenTTSError | None = None  # set when the engine takes no more streams
        self._num_timeouts = 0  # launches in a row that hung

    @property
    def num_streams(self) -> int:
        """Streams that hold a slot or wait for one."""
        return len(self.waiting) + len(self.active())

    def active(self, *phases: Phase) -> list[ActiveStream]:
        """Return the streams that hold a slot; if `phases` are given, those in one of them."""
        return [
            stream for stream in self._slots if stream and (not phases or stream.phase in phases)
        ]

    @property
    def is_wanted(self) -> bool:
        """Whether a waiting stream could speak now, if it had a slot."""
        return any(stream.is_ready for stream in self._waiting_now())

    def admit(self, vocoder: FrameVocoder) -> None:
        """Give the slots to streams that can begin a part, in the order of `waiting`.

        A stream that cannot begin its next part gives its slot up, and waits behind the others.
        """
        for holding in self.active(Phase.BETWEEN_PARTS):
            if not holding.is_ready:
                self._slots[holding.index] = None
                holding.leave()
                self.waiting.append(holding)
        ready = (stream for stream in self._waiting_now() if stream.is_ready)
        for index, holder in enumerate(self._slots):
            if holder is None and (stream := next(ready, None)):
                self.waiting.remove(stream)
                self._slots[index] = stream
                stream.enter(index, vocoder.lookahead)

    def end_spoken(self) -> None:
        """Advance the streams between parts to their next text; end those that have none left."""
        for stream in [*self._waiting_now(), *self.active(Phase.BETWEEN_PARTS)]:
            stream.skip_to_text()
            if stream.is_spoken:
                error: QwenTTSError | None = stream.state.text.error
                if not error and not stream.state.num_parts:
                    error = EmptyText("The text ended without a letter or digit to speak.")
                self.release(stream, "error" if error else stream.finish, error)

    def drop_cancelled(self) -> None:
        """End the streams that their callers have closed."""
        for stream in [*self._waiting_now(), *self.active()]:
            if stream.state.cancelled:
                self.release(stream, "cancelled")

    def end_all(self, reason: FinishReason, error: Exception | None = None) -> None:
        """End every stream, so that no reader keeps waiting."""
        for stream in [*self._waiting_now(), *self.active()]:
            self.release(stream, reason, error)

    def _waiting_now(self) -> deque[ActiveStream]:
        return self.waiting.copy()  # other threads may append to it

    # ---- ends ------------------------------------------------------------------------------------

    def end_part(self, stream: ActiveStream) -> None:
        """After the end of a part, move the stream to its next part, or end the stream."""
        is_last = stream.end_part()
        self._look_again()  # the next part may begin, or another stream may take the slot
        if is_last:
            self.release(stream, stream.finish)

    def release(
        self, stream: ActiveStream, reason: FinishReason, error: Exception | None = None
    ) -> None:
        """End a stream, and free its slot if it holds one."""
        if stream.phase is Phase.WAITING:
            self.waiting.remove(stream)
        else:
            self._slots[stream.index] = None
            self._look_again()
        stream.phase = Phase.OVER
        stream.pending.clear()
        self._on_finished(stream.state)
        stream.state.end(reason, error)

    # ---- faults ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def ending_on_error(self, streams: Sequence[ActiveStream]) -> Iterator[None]:
        """If the block fails, `streams` end with the error; other streams and the loop continue."""
        try:
            yield
        except Exception as error:  # all errors, because the worker thread must continue
            failure = self._failure_of(error)
            for stream in streams:
                if not stream.is_over:
                    self.release(stream, "error", failure)

    def end_failed(self, streams: Sequence[ActiveStream], result: StepResult) -> None:
        """End the streams that a step has lost, and count launches in a row that hung."""
        errors = {id(error): error for error in result.failures.values()}  # streams may share one
        failures = {key: self._failure_of(error) for key, error in errors.items()}
        if not any(isinstance(error, KernelTimeout) for error in failures.values()):
            self._num_timeouts = 0  # the launches that hung before were accidents
        for row, error in result.failures.items():
            if not streams[row].is_over:
                self.release(streams[row], "error", failures[id(error)])

    def fail_all(self, error: Exception) -> None:
        """End every stream after an error that cannot be attributed to one of them."""
        self.end_all("error", self._failure_of(error))

    def _failure_of(self, error: Exception) -> QwenTTSError:
        """Return the error that readers get for a fault; sets `failure` if no stream can
        continue."""
        if lost := lost_gpu(error):
            self.failure = lost
            return lost
        if isinstance(error, KernelTimeout):
            self._count_timeout(error)
        return error if isinstance(error, QwenTTSError) else _unforeseen(error)

    def _count_timeout(self, error: KernelTimeout) -> None:
        """Set `failure` after several launches in a row that hung; one may be an accident."""
        self._num_timeouts += 1
        if self._num_timeouts >= MAX_TIMEOUTS:
            self.failure = KernelTimeout(
                f"The engine takes no more requests: {self._num_timeouts} launches in a row hung.",
                error.what,
                "Look at nvidia-smi and the kernel log, then restart.",
            )


def _unforeseen(error: Exception) -> GenerationError:
    """Return the error that readers get for a fault of this package, and log it."""
    logger.error("A stream failed.", exc_info=error)
    failure = GenerationError(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
