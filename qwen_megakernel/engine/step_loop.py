"""The engine's thread: text to its slots, steps of the decoder, and who does what when.

Everything here runs on one worker thread that owns all device work, `submit`, `run`, `wake`,
`interrupt` and `close` excepted. Which stream holds which slot is in `slots`, what becomes of
drawn frames in `delivery`.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from qwen_megakernel.engine.delivery import ChunkDelivery
from qwen_megakernel.engine.runaway_guard import RunawayGuard
from qwen_megakernel.engine.slots import ActiveStream, SlotTable
from qwen_megakernel.engine.stages import MAX_FRAMES_PER_STEP, Stages, StageTimes
from qwen_megakernel.engine.stream import StreamState, TextPart
from qwen_megakernel.errors import EmptyText, EngineClosed, QwenTTSError
from qwen_megakernel.records import StepResult
from qwen_megakernel.voice import Voice

# A reader this many chunks behind pauses its own slot: about 8 s at the default chunk of 10 frames.
MAX_QUEUED_CHUNKS = 10


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
        self._changed = threading.Condition()
        self._news = False
        self._closing = False
        self._spent = StageTimes()
        self._errands: deque[tuple[Future, Callable[[], Any]]] = deque()
        stages: Future[Stages] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(build, stages), name="tts-step-loop", daemon=True
        )
        try:
            self._thread.start()
            self.stages = stages.result()
        except BaseException:  # Ctrl-C, say: nobody will ever close what is being built
            self._closing = True
            raise

    def submit(self, state: StreamState) -> None:
        """Queue a stream.

        Raises:
            EngineClosed: the loop has been closed, or this is a fork of its process.
            KernelTimeout, GPULost: the GPU hung too often, or is lost; see `failure`.
        """
        with self._changed:
            self._check_open()
            if self.failure:
                raise self.failure.with_traceback(None)
            self._table.waiting.append(state)
        self.wake()

    def run(self, errand: Callable[[], Any]) -> Any:
        """Have the worker thread do something between two steps; waits for the result.

        Raises:
            EngineClosed: as `submit`.
            Whatever `errand` raises.
        """
        future: Future = Future()
        with self._changed:
            self._check_open()
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
        return self._table.num_streams

    @property
    def failure(self) -> QwenTTSError | None:
        """Why no stream is taken any more; None while they are."""
        return self._table.failure

    @property
    def spent_ms(self) -> dict[str, float]:
        """Milliseconds of `prefill`, `decode` and `vocoder` work, of all streams together."""
        return dict(self._spent.ms)

    def _check_open(self) -> None:
        if self._closing:
            raise EngineClosed("The engine is closed.", cure="Make a new TTSEngine.")
        if not self._thread.is_alive():  # a fork has no threads but the one that forked
            raise EngineClosed(
                "The engine's thread is not in this process, which is a fork of its own.",
                cure="Make the engine after the fork, in the process that speaks.",
            )

    # ---- the loop --------------------------------------------------------------------------------

    def _run(self, build: Callable[[], Stages], stages: Future) -> None:
        _settle(stages, lambda: self._take(build()))
        if stages.exception():
            return
        while not self._closing:
            self._news = False  # before looking: what happens from here on is seen next time
            try:
                is_busy = self._turn()
            except (
                Exception
            ) as error:  # ours: nobody may be left listening to a thread that is gone
                self._table.fail_all(error)
                is_busy = False
            if not is_busy:
                with self._changed:
                    self._changed.wait_for(lambda: self._news or self._closing)
        for future, _ in self._errands:
            future.set_exception(EngineClosed("The engine was closed."))
        self._table.end_all("cancelled")

    def _turn(self) -> bool:
        """Everything once; whether there is more to do at once."""
        while self._errands:
            _settle(*self._errands.popleft())
        self._table.drop_cancelled()
        self._table.admit(self._vocoder)
        self._begin_parts()
        self._feed_text()
        slots = self._runnable()
        collect = self._start_step(slots) if slots else None
        self._delivery.hand_over()
        if collect:
            collect()
        self._delivery.start_due()
        if not self._overlaps:
            self._delivery.hand_over()
        return bool(slots) or self._delivery.is_under_way

    def _take(self, stages: Stages) -> Stages:
        self._decoder, self._prompts = stages.decoder, stages.prompts
        self._vocoder, self._overlaps = stages.vocoder, stages.overlaps
        self._table = SlotTable(
            stages.decoder.num_slots,
            sample_rate=self._sample_rate,
            on_finished=self._on_finished,
            look_again=self.wake,
        )
        self._delivery = ChunkDelivery(stages.vocoder, self._table, self._spent)
        return stages

    def _begin_parts(self) -> None:
        """Prefill the next part of every stream that is between parts and has text for it."""
        between = [slot for slot in self._table.active() if slot.part is None and not slot.part_end]
        parts = (part for slot in between for part in slot.state.parts.copy())  # writers append
        if any(part.ids for part in parts):
            self._delivery.hand_over()  # a finished chunk does not wait for somebody else's prompt
        for slot in between:
            self._table.protect([slot], self._begin_part, slot)

    def _begin_part(self, slot: ActiveStream) -> None:
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
        state.timings.setdefault("prefill", self._spent.add("prefill", started))

    def _feed_text(self) -> None:
        """Hand newly arrived text of open parts to the decoder."""
        for slot in self._table.active():
            if slot.part and slot.part_open:
                self._table.protect([slot], self._feed_part, slot)

    def _feed_part(self, slot: ActiveStream) -> None:
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

    def _runnable(self) -> list[ActiveStream]:
        """Slots that can draw a frame: text in hand, and a reader that keeps up."""
        return [
            slot
            for slot in self._table.active()
            if slot.part
            and not slot.part_end
            and len(slot.state.outbox) < MAX_QUEUED_CHUNKS
            and self._decoder.frames_ready(slot.index) > 0
        ]

    def _start_step(self, slots: list[ActiveStream]) -> Callable[[], None] | None:
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
        wait = self._table.protect(slots, self._launch, [slot.index for slot in slots], num_frames)
        if wait is None:
            return None
        spent = self._spent.add("decode", started)

        def collect() -> None:
            started = time.perf_counter()
            result = self._table.protect(slots, wait)
            if result is not None:
                self._table.end_failed(slots, result)
                self._take_frames(slots, parts, result, spent + self._spent.add("decode", started))

        return collect

    def _launch(self, slots: list[int], num_frames: int) -> Callable[[], StepResult]:
        if self._overlaps:
            return self._decoder.launch(slots, num_frames)
        result = self._decoder.step(slots, num_frames)
        return lambda: result

    def _take_frames(
        self,
        slots: list[ActiveStream],
        parts: list[TextPart | None],
        result: StepResult,
        spent: float,
    ) -> None:
        """Account for drawn frames; those of a part that ended meanwhile are dropped."""
        for row, (slot, part) in enumerate(zip(slots, parts, strict=True)):
            if not self._table.is_alive(slot) or slot.part is not part:
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


def _settle(future: Future, work: Callable[[], Any]) -> None:
    """Give `future` the result of `work`, or what it raises."""
    try:
        future.set_result(work())
    except BaseException as error:  # whoever waits for the future gets it
        future.set_exception(error)
