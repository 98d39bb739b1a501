"""Who is spoken: streams that wait, streams that hold a slot, and how each of them ends."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qwen_megakernel.engine.runaway_guard import RunawayGuard
from qwen_megakernel.engine.stages import FrameVocoder
from qwen_megakernel.engine.stream import StreamState, TextPart
from qwen_megakernel.errors import GenerationError, KernelTimeout, QwenTTSError
from qwen_megakernel.gpu.driver import lost_gpu
from qwen_megakernel.records import AudioChunk, FinishReason, StepResult

logger = logging.getLogger(__name__)

MAX_TIMEOUTS = 3  # launches in a row that hang before the engine gives up


@dataclass(slots=True, eq=False)
class ActiveStream:
    """One stream being spoken: what only the worker thread knows about it."""

    index: int
    state: StreamState
    vocoder: Any  # its state in the vocoder
    lookahead: int  # frames the vocoder must see behind those it turns into audio
    chunk_frames: int  # of the chunk being filled; doubles up to the request's
    part: TextPart | None = None  # None: between parts
    part_open: bool = False  # its text goes on
    guard: RunawayGuard | None = None
    pending: list[np.ndarray] = field(default_factory=list)  # frames not yet turned into audio
    part_end: FinishReason | None = None  # the part is over; pending frames are its last
    finish: FinishReason = "eos"  # the first reason that was not eos, over all parts

    @property
    def num_frames(self) -> int:
        """Frames of this utterance so far, delivered or pending."""
        return len(self.state.codes) + len(self.pending)

    @property
    def frames_until_due(self) -> int:
        """Frames missing until the next chunk can leave."""
        return 0 if self.part_end else self.chunk_frames + self.lookahead - len(self.pending)

    @property
    def num_ready(self) -> int:
        """Pending frames that can be turned into audio."""
        return len(self.pending) - (0 if self.part_end else self.lookahead)


class SlotTable:
    """Streams, from their submission to their end. Used by the worker thread alone.

    Args:
        num_slots: streams that are spoken at the same time; the others wait.
        sample_rate: of the codec, in Hz.
        on_finished: called when a stream is over, whatever the reason.
        look_again: called when there is news for the loop, such as a free slot.
    """

    def __init__(
        self,
        num_slots: int,
        *,
        sample_rate: int,
        on_finished: Callable[[StreamState], None],
        look_again: Callable[[], None],
    ):
        self._sample_rate = sample_rate
        self._on_finished = on_finished
        self._look_again = look_again
        self.waiting: deque[StreamState] = deque()  # any thread may append
        self._slots: list[ActiveStream | None] = [None] * num_slots
        self.failure: QwenTTSError | None = None  # why no stream is taken any more
        self._num_timeouts = 0  # launches in a row that hung

    @property
    def num_streams(self) -> int:
        """Streams that hold a slot or wait for one."""
        return len(self.waiting) + len(self.active())

    def active(self) -> list[ActiveStream]:
        """The slots in use."""
        return [slot for slot in self._slots if slot]

    def is_alive(self, slot: ActiveStream) -> bool:
        """Whether the slot's stream has not ended."""
        return self._slots[slot.index] is slot

    def admit(self, vocoder: FrameVocoder) -> None:
        """Give free slots to waiting streams, oldest first."""
        for index, slot in enumerate(self._slots):
            if slot is None and self.waiting:
                state = self.waiting.popleft()
                self._slots[index] = ActiveStream(
                    index,
                    state,
                    vocoder.new_state(),
                    vocoder.lookahead,
                    state.request.first_chunk_frames,
                )

    def drop_cancelled(self) -> None:
        """End the streams that their callers have closed."""
        for state in self.waiting.copy():  # others append meanwhile
            if state.cancelled:
                self.waiting.remove(state)
                self._finish(state, "cancelled")
        for slot in self.active():
            if slot.state.cancelled:
                slot.pending.clear()
                self.release(slot, "cancelled")

    def end_all(self, reason: FinishReason, error: Exception | None = None) -> None:
        """Nobody is left waiting."""
        while self.waiting:
            self._finish(self.waiting.popleft(), reason, error)
        for slot in self.active():
            self.release(slot, reason, error)

    # ---- ends ------------------------------------------------------------------------------------

    def end_part(self, slot: ActiveStream) -> None:
        """Let a stream whose part is over go on to the next part, or end it."""
        if slot.finish == "eos":
            slot.finish = slot.part_end
        state, limit = slot.state, slot.state.request.max_frames
        exhausted = limit is not None and len(state.codes) >= limit
        over = slot.part is None  # no text is left, see StepLoop._begin_part
        slot.part, slot.part_end = None, None
        self._look_again()  # the next part may begin
        if over or exhausted:
            self.release(slot, slot.finish)

    def release(
        self, slot: ActiveStream, reason: FinishReason, error: Exception | None = None
    ) -> None:
        """End a stream and free its slot."""
        self._slots[slot.index] = None
        self._look_again()
        self._finish(slot.state, reason, error)

    def _finish(
        self, state: StreamState, reason: FinishReason, error: Exception | None = None
    ) -> None:
        state.finish_reason = reason
        state.timings["total"] = state.elapsed_ms()
        self._on_finished(state)
        if error:
            state.outbox.put(error)
        else:
            self.put(state, np.empty(0, dtype=np.int16), len(state.codes), 0, reason)

    def put(
        self,
        state: StreamState,
        samples: np.ndarray,
        frame_index: int,
        num_frames: int,
        reason: FinishReason | None = None,
    ) -> None:
        """Deliver a chunk to its reader: [num_samples] int16 of `num_frames` frames."""
        state.outbox.put(
            AudioChunk(
                samples=samples,
                sample_rate=self._sample_rate,
                frame_index=frame_index,
                num_frames=num_frames,
                t_ms=state.elapsed_ms(),
                is_last=reason is not None,
                finish_reason=reason,
            )
        )

    # ---- faults ----------------------------------------------------------------------------------

    def protect(self, slots: list[ActiveStream], work: Callable, *args: object):
        """Run `work`; if it fails, the streams of `slots` end with the error, the others go on."""
        try:
            return work(*args)
        except Exception as error:  # whatever it is, the worker must outlive it
            failure = self._told(error)
        for slot in slots:
            if self.is_alive(slot):
                self.release(slot, "error", failure)
        return None

    def end_failed(self, slots: list[ActiveStream], result: StepResult) -> None:
        """End the streams that a step has lost, and look whether launches hang."""
        errors = {id(error): error for error in result.failures.values()}  # each once
        told = {key: self._told(error) for key, error in errors.items()}
        if not any(isinstance(error, KernelTimeout) for error in told.values()):
            self._num_timeouts = 0  # the ones that hung before were accidents
        for row, error in result.failures.items():
            if self.is_alive(slots[row]):
                self.release(slots[row], "error", told[id(error)])

    def fail_all(self, error: Exception) -> None:
        """End every stream after an error that is nobody's in particular."""
        self.end_all("error", self._told(error))

    def _told(self, error: Exception) -> QwenTTSError:
        """What the readers of a stream are told of a fault; sets `failure` where it is for good."""
        if lost := lost_gpu(error):
            self.failure = lost
            return lost
        if isinstance(error, KernelTimeout):
            self._count_timeout(error)
        return error if isinstance(error, QwenTTSError) else _unforeseen(error)

    def _count_timeout(self, error: KernelTimeout) -> None:
        """One launch that hangs may be an accident; several in a row are a GPU that is not well."""
        self._num_timeouts += 1
        if self._num_timeouts >= MAX_TIMEOUTS:
            self.failure = KernelTimeout(
                f"The engine takes no more requests: {self._num_timeouts} launches in a row hung.",
                error.what,
                "Look at nvidia-smi and the kernel log, then restart.",
            )


def _unforeseen(error: Exception) -> GenerationError:
    """What a reader is told of a fault of ours."""
    logger.error("A stream failed.", exc_info=error)
    failure = GenerationError(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
