"""The table of the streams that wait for a slot or hold one."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from qwen_megakernel.engine.drift_guard import KEPT_S
from qwen_megakernel.engine.stages import FrameVocoder
from qwen_megakernel.engine.stream_state import Phase, StreamState
from qwen_megakernel.errors import EmptyText, GenerationError, KernelTimeout, QwenTTSError
from qwen_megakernel.gpu.driver import lost_gpu
from qwen_megakernel.printable import get_logger
from qwen_megakernel.records import FinishReason, StepResult

logger = get_logger(__name__)

MAX_TIMEOUTS = 3  # launches in a row that hang before the engine gives up


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
        self.waiting: deque[StreamState] = deque()  # any thread may append
        self._slots: list[StreamState | None] = [None] * num_slots
        self.failure: QwenTTSError | None = None  # set when the engine takes no more streams
        self._num_timeouts = 0  # launches in a row that hung

    @property
    def num_streams(self) -> int:
        """Streams that hold a slot or wait for one."""
        return len(self.waiting) + len(self.active())

    def active(self, *phases: Phase) -> list[StreamState]:
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
            with self.ending_on_error([stream]):
                stream.skip_to_text()
            if stream.is_spoken and not stream.is_over:
                error: QwenTTSError | None = stream.text.error
                if not error and not stream.num_parts:
                    error = EmptyText("The text ended without a letter or digit to speak.")
                self.release(stream, "error" if error else stream.finish, error)

    def release_held(self) -> float | None:
        """Deliver what readers need soon; returns the seconds until one does, None: none will."""
        left_s: list[float] = []
        for stream in [*self._waiting_now(), *self.active()]:
            with self.ending_on_error([stream]):
                if stream.can_redraw:
                    left_s.append(stream.buffered_s() - KEPT_S)
                elif stream.holds:
                    stream.release()
        return min(left_s, default=None)

    def drop_cancelled(self) -> None:
        """End the streams that their callers have closed."""
        for stream in [*self._waiting_now(), *self.active()]:
            if stream.cancelled:
                self.release(stream, "cancelled")

    def end_all(self, error: BaseException | None = None) -> None:
        """End every stream, so that no reader keeps waiting.

        Args:
            error: one that cannot be attributed to a stream; None: the streams are cancelled.
        """
        failure = self._failure_of(error) if error else None
        for stream in [*self._waiting_now(), *self.active()]:
            self.release(stream, "error" if failure else "cancelled", failure)

    def _waiting_now(self) -> deque[StreamState]:
        return self.waiting.copy()  # other threads may append to it

    # ---- ends ------------------------------------------------------------------------------------

    def end_part(self, stream: StreamState) -> None:
        """After the end of a part, move the stream to its next part, or end the stream."""
        with self.ending_on_error([stream]):
            is_last = stream.end_part()
            self._look_again()  # the next part may begin, or another stream may take the slot
            if is_last:
                self.release(stream, stream.finish)

    def release(
        self, stream: StreamState, reason: FinishReason, error: Exception | None = None
    ) -> None:
        """End a stream, and free its slot if it holds one."""
        if stream.phase is Phase.WAITING:
            self.waiting.remove(stream)
        else:
            self._slots[stream.index] = None
            self._look_again()
        try:
            if reason != "cancelled":
                stream.release()
            self._on_finished(stream)
        except Exception as fault:  # the stream holds no slot any more, so nothing else ends it
            reason, error = "error", error or self._failure_of(fault)
        stream.end(reason, error)

    # ---- faults ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def ending_on_error(self, streams: Sequence[StreamState]) -> Iterator[None]:
        """If the block fails, `streams` end with the error; other streams and the loop continue."""
        try:
            yield
        except Exception as error:  # all errors, because the worker thread must continue
            failure = self._failure_of(error)
            for stream in streams:
                if not stream.is_over:
                    self.release(stream, "error", failure)

    def end_failed(self, streams: Sequence[StreamState], result: StepResult) -> None:
        """End the streams that a step has lost, and count launches in a row that hung."""
        errors = {id(error): error for error in result.failures.values()}  # streams may share one
        failures = {key: self._failure_of(error) for key, error in errors.items()}
        if not any(isinstance(error, KernelTimeout) for error in failures.values()):
            self._num_timeouts = 0  # the launches that hung before were accidents
        for row, error in result.failures.items():
            if not streams[row].is_over:
                self.release(streams[row], "error", failures[id(error)])

    def _failure_of(self, error: BaseException) -> QwenTTSError:
        """Return the error that readers get for a fault; sets `failure` if no stream can
        continue."""
        if lost := lost_gpu(error):
            self.failure = lost
            return lost
        if isinstance(error, KernelTimeout):
            self._num_timeouts += 1
            if self._num_timeouts >= MAX_TIMEOUTS:  # fewer may be accidents
                self.failure = KernelTimeout(
                    "The engine takes no more requests: "
                    f"{self._num_timeouts} launches in a row hung.",
                    error.what,
                    "Look at nvidia-smi and the kernel log, then restart.",
                )
        if isinstance(error, QwenTTSError):
            return error
        logger.error("A stream failed.", exc_info=error)  # a fault of this package
        failure = GenerationError(f"{type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure
