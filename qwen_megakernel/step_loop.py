"""The engine's thread: slots, one step loop, delivery.

Everything here runs on one worker thread that owns all device work, `submit`, `wake`, `interrupt`
and `close` excepted.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import torch

from qwen_megakernel.audio import to_int16
from qwen_megakernel.cuda_graphs import Download
from qwen_megakernel.errors import (
    EmptyText,
    EngineClosed,
    GenerationError,
    KernelTimeout,
    QwenTTSError,
)
from qwen_megakernel.guard import RunawayGuard
from qwen_megakernel.model_tts import MAX_FRAMES_PER_STEP
from qwen_megakernel.speech_slot import Chunk, Slot
from qwen_megakernel.speech_stream import StreamState, TextPart
from qwen_megakernel.stages import Stages
from qwen_megakernel.utterance import AudioChunk, FinishReason, StepResult
from qwen_megakernel.voice import Voice

logger = logging.getLogger(__name__)

# A reader this many chunks behind pauses its own slot: about 8 s at the default chunk of 10 frames.
MAX_QUEUED_CHUNKS = 10

MAX_TIMEOUTS = 3  # launches in a row that hang before the engine gives up


class StepLoop:
    """Speaks every submitted stream on the decoder's slots, oldest first.

    Where the stages overlap (a GPU), the next frames are being drawn while a chunk is delivered:
    a turn starts a step, delivers the chunks of the turn before, waits for the step's codes, and
    starts the vocoder on the chunks that are due. Elsewhere a chunk is delivered at once.

    Args:
        build: makes the stages. It runs on the worker thread, which then owns all device work: a
            GPU context, or on a CPU the one pool of OpenMP threads. A second pool, of the thread
            that loaded the model, makes each step a third slower on as many cores as threads.
        sample_rate: of the codec, in Hz.
        on_finished: called on the worker thread when a stream is over, whatever the reason.
    Raises:
        Whatever `build` raises.
    """

    def __init__(
        self,
        build: Callable[[], Stages],
        *,
        sample_rate: int,
        on_finished: Callable[[StreamState], None],
    ):
        self._sample_rate = sample_rate
        self._on_finished = on_finished
        self._waiting: deque[StreamState] = deque()
        self._slots: list[Slot | None] = []
        self._sounding: list[Chunk] = []  # not delivered yet
        self._changed = threading.Condition()
        self._news = False
        self._closing = False
        self.failure: KernelTimeout | None = None  # why no stream is taken any more
        self._num_timeouts = 0  # launches in a row that hung
        self.spent_ms = {"prefill": 0.0, "decode": 0.0, "vocoder": 0.0}  # device work, all streams
        self._errands: deque[tuple[Future, Callable[[], Any]]] = deque()
        stages: Future[Stages] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(build, stages), name="tts-step-loop", daemon=True
        )
        self._thread.start()
        self.stages = stages.result()

    def submit(self, state: StreamState) -> None:
        """Queue a stream.

        Raises:
            EngineClosed: the loop has been closed.
            KernelTimeout: the GPU hung too often; see `failure`.
        """
        with self._changed:
            if self._closing:
                raise EngineClosed("The engine is closed.", cure="Make a new TTSEngine.")
            if self.failure:
                raise self.failure.with_traceback(None)
            self._waiting.append(state)
        self.wake()

    def run(self, errand: Callable[[], Any]) -> Any:
        """Have the worker thread do something between two steps; waits for the result.

        Raises:
            EngineClosed: the loop has been closed.
            Whatever `errand` raises.
        """
        future: Future = Future()
        with self._changed:
            if self._closing:
                raise EngineClosed("The engine is closed.", cure="Make a new TTSEngine.")
            self._errands.append((future, errand))
        self.wake()
        return future.result()

    def wake(self) -> None:
        """Make the loop look at its streams again. Never blocks for device work."""
        with self._changed:
            self._news = True
            self._changed.notify()

    def interrupt(self) -> None:
        """`wake`, and the running step ends after the frame that it is drawing."""
        self._decoder.cancel()
        self.wake()

    def close(self) -> None:
        """Cancel every stream and stop the thread; waits for it. Safe to call twice."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._decoder.cancel()
        if self._thread is not threading.current_thread():  # a finalizer may run anywhere
            self._thread.join()

    @property
    def num_active(self) -> int:
        """Streams that hold a slot or wait for one."""
        return len(self._waiting) + sum(slot is not None for slot in self._slots)

    # ---- the loop --------------------------------------------------------------------------------

    def _run(self, build: Callable[[], Stages], stages: Future) -> None:
        _settle(stages, lambda: self._take(build()))
        if stages.exception():
            return
        while not self._closing:
            self._news = False  # before looking: what happens from here on is seen next time
            while self._errands:
                _settle(*self._errands.popleft())
            self._drop_cancelled()
            self._admit()
            self._begin_parts()
            self._feed_text()
            slots = self._runnable()
            collect = self._start_step(slots) if slots else None
            self._hand_over()
            if collect:
                collect()
            self._start_chunks()
            if not self._overlaps:
                self._hand_over()
            if not slots and not self._sounding:
                with self._changed:
                    self._changed.wait_for(lambda: self._news or self._closing)
        self._abandon()

    def _take(self, stages: Stages) -> Stages:
        self._decoder, self._prompts = stages.decoder, stages.prompts
        self._vocoder, self._overlaps = stages.vocoder, stages.overlaps
        self._slots = [None] * stages.decoder.num_slots
        return stages

    def _active(self) -> list[Slot]:
        return [slot for slot in self._slots if slot]

    def _drop_cancelled(self) -> None:
        for state in [state for state in self._waiting if state.cancelled]:
            self._waiting.remove(state)
            self._finish(state, "cancelled")
        for slot in self._active():
            if slot.state.cancelled:
                slot.pending.clear()
                self._release(slot, "cancelled")

    def _admit(self) -> None:
        for index, slot in enumerate(self._slots):
            if slot is None and self._waiting:
                state = self._waiting.popleft()
                self._slots[index] = Slot(
                    index,
                    state,
                    self._vocoder.new_state(),
                    self._vocoder.lookahead,
                    state.request.first_chunk_frames,
                )

    def _begin_parts(self) -> None:
        """Prefill the next part of every stream that is between parts and has text for it."""
        between = [slot for slot in self._active() if slot.part is None and not slot.part_end]
        if any(part.ids for slot in between for part in slot.state.parts):
            self._hand_over()  # a finished chunk does not wait for somebody else's prompt
        for slot in between:
            self._protect([slot], self._begin_part, slot)

    def _begin_part(self, slot: Slot) -> None:
        state, request = slot.state, slot.state.request
        # `closed` before `ids`, here and below: a writer appends its last ids, then closes.
        while state.parts and state.parts[0].closed and not state.parts[0].ids:
            state.parts.popleft()
        if not state.parts:
            if state.text_closed and not state.parts:
                if not state.num_parts:
                    raise EmptyText("The text ended without a letter or digit to speak.")
                slot.part_end = "eos"
            return
        part, closed = state.parts[0], state.parts[0].closed
        ids = part.take()
        if not len(ids):
            return
        started = time.perf_counter()
        prefill = self._prompts.build(
            replace(state.prompt_ids, body=ids), request, text_open=not closed
        )
        self._decoder.prefill(
            slot.index,
            prefill,
            request.sampling,
            seed=request.seed,
            part=state.num_parts,
            text_open=not closed,
        )
        slot.vocoder = self._vocoder.new_state()
        if isinstance(request.voice, Voice) and request.voice.in_context:
            self._vocoder.warm(request.voice.codes, slot.vocoder)
        left = self._decoder.max_frames
        if request.max_frames is not None:
            left = min(left, request.max_frames - slot.num_frames)
        slot.part, slot.part_open, slot.guard = part, not closed, RunawayGuard(left)
        slot.guard.num_text_tokens = len(ids)
        state.num_text_tokens += len(ids)
        state.num_parts += 1
        state.timings.setdefault("prefill", self._account("prefill", started))

    def _feed_text(self) -> None:
        """Hand newly arrived text of open parts to the decoder."""
        for slot in self._active():
            if slot.part and slot.part_open:
                self._protect([slot], self._feed_part, slot)

    def _feed_part(self, slot: Slot) -> None:
        closed = slot.part.closed
        ids = slot.part.take()
        if len(ids):
            self._decoder.add_text(slot.index, self._prompts.text_rows(ids))
            slot.guard.num_text_tokens += len(ids)
            slot.state.num_text_tokens += len(ids)
        if closed:
            self._decoder.add_text(slot.index, self._prompts.end_rows())
            self._decoder.close_text(slot.index)
            slot.part_open = False

    def _runnable(self) -> list[Slot]:
        """Slots that can draw a frame: text in hand, and a reader that keeps up."""
        return [
            slot
            for slot in self._active()
            if slot.part
            and not slot.part_end
            and len(slot.state.outbox) < MAX_QUEUED_CHUNKS
            and self._decoder.frames_ready(slot.index) > 0
        ]

    def _start_step(self, slots: list[Slot]) -> Callable[[], None] | None:
        """Start drawing up to `MAX_FRAMES_PER_STEP` frames for every slot in one launch.

        Returns:
            A function that waits for them; None: the launch failed.
        """
        num_frames = min(
            MAX_FRAMES_PER_STEP,
            *(slot.frames_until_due for slot in slots),
            *(slot.guard.frames_left for slot in slots),
            *(self._decoder.frames_ready(slot.index) for slot in slots),
        )
        parts, started = [slot.part for slot in slots], time.perf_counter()
        wait = self._protect(slots, self._launch, [slot.index for slot in slots], num_frames)
        if wait is None:
            return None
        spent = self._account("decode", started)

        def collect() -> None:
            started = time.perf_counter()
            result = self._protect(slots, wait)
            if result is not None:
                self._num_timeouts = 0
                self._take_frames(slots, parts, result, spent + self._account("decode", started))

        return collect

    def _launch(self, slots: list[int], num_frames: int) -> Callable[[], StepResult]:
        if self._overlaps:
            return self._decoder.launch(slots, num_frames)
        result = self._decoder.step(slots, num_frames)
        return lambda: result

    def _take_frames(
        self, slots: list[Slot], parts: list[TextPart | None], result: StepResult, spent: float
    ) -> None:
        """Account for drawn frames; those of a part that ended meanwhile are dropped."""
        for row, (slot, part) in enumerate(zip(slots, parts, strict=True)):
            if not self._is_alive(slot) or slot.part is not part:
                continue
            timings = slot.state.timings
            timings["decode"] = timings.get("decode", 0.0) + spent
            if result.num_frames[row]:  # there is none after a cancel
                timings.setdefault("first_frame", slot.state.elapsed_ms())
            for frame in result.codes[row, : result.num_frames[row]]:
                slot.part_end = slot.part_end or slot.guard.check_codes(frame)
                if not slot.part_end:
                    slot.pending.append(frame)
            if not slot.part_end and result.ended[row]:
                slot.part_end = "eos"
            if not slot.part_end and slot.guard.frames_left <= 0:
                slot.part_end = "length"

    # ---- delivery --------------------------------------------------------------------------------

    def _start_chunks(self) -> None:
        """Start the vocoder on due frames, slots of equal chunk length in one batch."""

        def length(slot: Slot) -> tuple[int, int]:
            return slot.num_ready, len(slot.pending)

        due = [slot for slot in self._active() if slot.frames_until_due <= 0]
        due.sort(key=length)
        for (num_ready, _), group in groupby(due, key=length):
            slots = list(group)
            if num_ready:
                self._protect(slots, self._start_chunk, slots, num_ready)
                continue
            for slot in slots:
                if slot.part_end:
                    self._end_part(slot)

    def _start_chunk(self, slots: list[Slot], num_ready: int) -> None:
        started = time.perf_counter()
        codes = torch.from_numpy(np.stack([np.stack(slot.pending) for slot in slots]))
        ahead = [codes[:, num_ready:]] if self._vocoder.lookahead else []
        states = [slot.vocoder for slot in slots]
        samples = Download(self._vocoder.step(codes[:, :num_ready], states, *ahead))
        codes_by_slot = [slot.pending[:num_ready] for slot in slots]
        spent = self._account("vocoder", started)
        self._sounding.append(Chunk(slots, codes_by_slot, samples, spent))
        for slot in slots:
            del slot.pending[:num_ready]
            slot.chunk_frames = min(2 * slot.chunk_frames, slot.state.request.chunk_frames)

    def _hand_over(self) -> None:
        """Wait for the chunks that are on their way and deliver them."""
        chunks, self._sounding = self._sounding, []
        for chunk in chunks:
            self._protect(chunk.slots, self._deliver, chunk)
            for slot in chunk.slots:
                if slot.part_end and self._is_alive(slot):
                    self._end_part(slot)

    def _deliver(self, chunk: Chunk) -> None:
        started = time.perf_counter()
        pcm = chunk.samples.wait().numpy()
        spent = chunk.spent_ms + self._account("vocoder", started)
        for slot, codes, samples in zip(chunk.slots, chunk.codes, pcm, strict=True):
            if not self._is_alive(slot):
                continue
            timings = slot.state.timings
            timings["vocoder"] = timings.get("vocoder", 0.0) + spent
            frames = samples.reshape(len(codes), -1)
            for index, frame in enumerate(frames):
                reason = slot.guard.check_audio(frame)
                if reason:
                    slot.part_end, frames = reason, frames[:index]
                    slot.pending.clear()
                    break
            self._send(slot, codes[: len(frames)], frames)

    def _send(self, slot: Slot, codes: list[np.ndarray], frames: np.ndarray) -> None:
        """Deliver [num_frames, samples_per_frame] audio of `codes`."""
        state = slot.state
        first = len(state.codes)
        state.codes.extend(codes)
        if len(frames):
            state.timings.setdefault("first_chunk", state.elapsed_ms())
            self._put(state, to_int16(frames.reshape(-1)), first, len(frames))

    def _end_part(self, slot: Slot) -> None:
        """Go on to the next part, or end the stream."""
        if slot.finish == "eos":
            slot.finish = slot.part_end
        state, limit = slot.state, slot.state.request.max_frames
        exhausted = limit is not None and len(state.codes) >= limit
        over = slot.part is None  # no text is left, see _begin_part
        slot.part, slot.part_end = None, None
        self._news = True  # the next part may begin
        if over or exhausted:
            self._release(slot, slot.finish)

    def _put(
        self,
        state: StreamState,
        samples: np.ndarray,
        frame_index: int,
        num_frames: int,
        reason: FinishReason | None = None,
    ) -> None:
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

    # ---- ends ------------------------------------------------------------------------------------

    def _release(self, slot: Slot, reason: FinishReason, error: Exception | None = None) -> None:
        self._slots[slot.index] = None
        self._news = True  # a slot is free
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
            self._put(state, np.empty(0, dtype=np.int16), len(state.codes), 0, reason)

    def _protect(self, slots: list[Slot], work: Callable, *args: object):
        """Run `work`; if it fails, the streams of `slots` end with the error, the others go on."""
        try:
            return work(*args)
        except QwenTTSError as error:
            failure: Exception = error
            if isinstance(error, KernelTimeout):
                self._count_timeout(error)
        except Exception as error:  # anything else is ours; the worker must outlive it
            logger.exception("A stream failed.")
            failure = GenerationError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
        for slot in slots:
            if self._is_alive(slot):
                self._release(slot, "error", failure)
        return None

    def _count_timeout(self, error: KernelTimeout) -> None:
        """One launch that hangs may be an accident; several in a row are a GPU that is not well."""
        self._num_timeouts += 1
        if self._num_timeouts >= MAX_TIMEOUTS:
            self.failure = KernelTimeout(
                f"The engine takes no more requests: {self._num_timeouts} launches in a row hung.",
                error.what,
                "Look at nvidia-smi and the kernel log, then restart.",
            )

    def _is_alive(self, slot: Slot) -> bool:
        """Whether the slot's stream has not ended."""
        return self._slots[slot.index] is slot

    def _account(self, stage: str, started: float) -> float:
        """Milliseconds since `started`, added to the stage's total."""
        spent = 1000 * (time.perf_counter() - started)
        self.spent_ms[stage] += spent
        return spent

    def _abandon(self) -> None:
        """The loop is being closed: nobody is left waiting."""
        for future, _ in self._errands:
            future.set_exception(EngineClosed("The engine was closed."))
        for state in self._waiting:
            self._finish(state, "cancelled")
        self._waiting.clear()
        for slot in self._active():
            self._release(slot, "cancelled")


def _settle(future: Future, work: Callable[[], Any]) -> None:
    """Give `future` the result of `work`, or what it raises."""
    try:
        future.set_result(work())
    except BaseException as error:  # whoever waits for the future gets it
        future.set_exception(error)
