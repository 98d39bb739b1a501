"""The engine's thread: gives text to the slots, steps the decoder, and delivers chunks.

Everything but `submit`, `run`, `wake`, `interrupt` and `close` runs on one worker thread, which
owns all device work. `slots` records which stream holds which slot, `delivery` turns drawn frames
into chunks.
"""

import contextlib
import copy
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from qwen_megakernel.engine.delivery import LOW_BUFFER_S, ChunkDelivery
from qwen_megakernel.engine.slots import SlotTable
from qwen_megakernel.engine.stages import MAX_FRAMES_PER_STEP, Stages, add_time
from qwen_megakernel.engine.stream_state import Phase, StreamState
from qwen_megakernel.errors import EngineClosed
from qwen_megakernel.records import StepResult
from qwen_megakernel.text.parts import TextPart
from qwen_megakernel.voice import Voice

# While another stream waits for its slot, the text of a part may come this late. The part then ends
# with the text that has come, and later text becomes a part of its own, for which a slot is found.
TEXT_PATIENCE_S = 2.0

# The states of the vocoder behind so many frames in context are kept: 5 MB each at released shapes.
MAX_CONTEXTS = 4


class StepLoop:
    """Speaks every submitted stream on the decoder's slots, oldest first.

    Where the device is asynchronous (a GPU), the next frames are being drawn while a chunk is
    delivered: a turn starts a step, delivers the chunks of the turn before, waits for the step's
    codes, and starts the vocoder on the chunks that are due. On a CPU, a chunk is delivered in the
    turn that drew its frames.

    Args:
        build: makes the stages. It runs on the worker thread, which then owns all device work: a
            GPU context, or on a CPU the one pool of OpenMP threads. A second pool, in the thread
            that loaded the model, would slow each step by a third with as many cores as threads.
        on_finished: called on the worker thread when a stream is over, for any reason.
    """

    def __init__(self, build: Callable[[], Stages], *, on_finished: Callable[[StreamState], None]):
        self._on_finished = on_finished
        # Calls, or None after a stream has changed. A queue, because a stream that is
        # garbage-collected wakes the loop in any thread, at any line of it, in the loop's own too.
        self._news: SimpleQueue[tuple[Future, Callable[[], Any]] | None] = SimpleQueue()
        self._closing = False
        self._next_look_s: float | None = None  # when a turn is due without news; None: never
        # Milliseconds of each stage's work, of all streams together.
        self.spent_ms = {"prefill": 0.0, "decode": 0.0, "vocoder": 0.0}
        self._ahead: deque[np.ndarray] = deque()  # frames of contexts that will be needed
        self._contexts: dict[bytes, Any] = {}  # frames -> the vocoder's state behind them
        is_built: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(build, is_built), name="tts-step-loop", daemon=True
        )
        try:
            self._thread.start()
            is_built.result()
        except BaseException:  # also Ctrl-C, after which the caller has no loop to close
            self._closing = True
            self.wake()
            raise

    def submit(self, state: StreamState) -> None:
        """Queue a stream.

        Raises:
            EngineClosed: the loop has been closed, or this process is a fork of the engine's.
            KernelTimeout, GPULost: the GPU hung too often, or is lost; see `SlotTable.failure`.
        """
        self._check_open()
        if self.table.failure:
            raise self.table.failure.with_traceback(None)
        self.table.waiting.append(state)
        self.wake()
        self._check_open()  # a loop that has just been closed may not have seen it

    def run(self, call: Callable[[], Any]) -> Any:
        """Call a function on the worker thread, between two steps; return or raise what it does.

        Raises:
            EngineClosed: as in `submit`.
        """
        future: Future = Future()
        self._news.put((future, call))
        self._check_open()  # behind `put`, because a closed loop looks no more
        return future.result()

    def prepare(self, frames: np.ndarray) -> None:
        """Run the vocoder over frames in context, before the part that continues them begins.

        This happens only if no stream has anything to do. Only the worker thread may call it.
        """
        self._ahead.append(frames)

    def wake(self) -> None:
        """Make the loop look at its streams again, without waiting for device work."""
        self._news.put(None)

    def interrupt(self) -> None:
        """Wake the loop, and end the running step after the frame that it is drawing."""
        self.stages.decoder.cancel()
        self.wake()

    def close(self) -> None:
        """Cancel every stream, stop the thread and wait for it. A second call does nothing."""
        self._closing = True
        self.interrupt()
        if self._thread is not threading.current_thread():  # a finalizer may run anywhere
            self._thread.join()

    def _check_open(self) -> None:
        if self._closing:
            raise EngineClosed("The engine is closed.", hint="Make a new TTSEngine.")
        if not self._thread.is_alive():  # a fork has only the thread that forked
            raise EngineClosed(
                "The engine's thread is not in this process, which is a fork of the engine's.",
                "PyTorch does not compute in a fork of a process in which it has computed.",
                'Make the engine in a process that multiprocessing.get_context("spawn") starts.',
            )

    # ---- the loop --------------------------------------------------------------------------------

    def _run(self, build: Callable[[], Stages], is_built: Future) -> None:
        _settle(is_built, lambda: self._take(build()))
        if is_built.exception():
            return
        while not self._closing:
            try:
                is_busy = self._turn()
            except BaseException as error:  # a bug, or Rust's panic; no reader waits for ever
                self.table.end_all(error)
                is_busy = False
            self._await_news(0 if is_busy else self._next_look_s)
        self._await_news(0)
        self.table.end_all()

    def _await_news(self, timeout_s: float | None) -> None:
        with contextlib.suppress(Empty):
            while True:  # all news, before the turn: what comes later leads to another turn
                call = self._news.get(timeout=timeout_s)
                timeout_s = 0
                if call:
                    _settle(call[0], self._check_open if self._closing else call[1])

    def _turn(self) -> bool:
        """Do each kind of work once; returns whether there is more to do at once."""
        self.table.drop_cancelled()
        self.table.end_spoken()
        self.table.admit(self.stages.vocoder)
        self._begin_parts()
        self._feed_text()
        is_wanted = self.table.is_wanted
        looks = self.table.release_held(), self._end_late_text() if is_wanted else None
        self._next_look_s = min((max(0, each) for each in looks if each is not None), default=None)
        streams = self._runnable(is_wanted)
        collect = self._start_step(streams) if streams else None
        self._delivery.deliver()
        if collect:
            collect()
        more_is_due = self._delivery.start_vocoder(streams)
        is_behind = bool(self.table.active(Phase.BETWEEN_PARTS))
        is_busy = bool(streams or self._delivery.under_way) or is_behind or more_is_due
        while self._ahead:
            frames = self._ahead.popleft()
            if not is_busy:
                self._vocoder_after(frames)
        return is_busy

    def _take(self, stages: Stages) -> None:
        self.stages = stages
        self.table = SlotTable(
            stages.decoder.num_slots, on_finished=self._on_finished, look_again=self.wake
        )
        self._delivery = ChunkDelivery(stages, self.table, self.spent_ms)

    def _begin_parts(self) -> None:
        """Prefill the next parts of streams that are between parts; all of them have text.

        While a reader has little left to play, one part begins in a turn. Of streams that arrive
        together, the first would otherwise be silent during the prompts of the others.
        """
        streams = sorted(self.table.active(Phase.BETWEEN_PARTS), key=_is_dry, reverse=True)
        if streams:
            self._delivery.deliver()  # a finished chunk does not wait for another stream's prompt
        for stream in streams:
            with self.table.ending_on_error([stream]):
                self._begin_part(stream)
            if any(map(_is_dry, self._runnable(is_wanted=False))):
                break

    def _begin_part(self, stream: StreamState) -> None:
        part = stream.text.parts[0]
        encoding = part.encoding or stream.text.encoding
        request, closed = encoding.request, part.closed
        ids = part.take()
        started = time.perf_counter()
        prompt_ids = replace(encoding.prompt_ids, body=ids)
        voice = request.voice if isinstance(request.voice, Voice) else None
        frames = voice.codes if voice else None
        if said := stream.recall(request.voice):
            prompt_ids = said.in_context(prompt_ids, voice, encoding.encode)
            frames = prompt_ids.frames
        prefill = self.stages.prompts.build(prompt_ids, request, text_open=not closed)
        self.stages.decoder.prefill(
            stream.index,
            prefill,
            request.sampling,
            seed=request.seed,
            part=stream.num_parts + stream.draw,
            text_open=not closed,
        )
        vocoder = self._vocoder_after(frames)
        left = self.stages.decoder.max_frames
        if request.max_frames is not None:
            left = min(left, request.max_frames - stream.num_frames)
        stream.begin_part(part, len(ids), text_open=not closed, max_frames=left, vocoder=vocoder)
        stream.timings.setdefault("prefill", add_time(self.spent_ms, "prefill", started))

    def _vocoder_after(self, frames: np.ndarray | None) -> Any:
        """Return the vocoder's state behind frames in context; None: behind nothing."""
        if frames is None:
            return self.stages.vocoder.new_state()
        key = frames.tobytes()
        state = self._contexts.pop(key, None)
        if state is None:
            state = self.stages.vocoder.new_state()
            self.stages.vocoder.warm(frames, state)
        self._contexts[key] = state  # the one used last is at the end
        if len(self._contexts) > MAX_CONTEXTS:
            del self._contexts[next(iter(self._contexts))]
        return copy.deepcopy(state)

    def _feed_text(self) -> None:
        for stream in self.table.active(Phase.SPEAKING):
            if stream.part and stream.text_open:
                with self.table.ending_on_error([stream]):
                    self._feed_part(stream, stream.part)

    def _feed_part(self, stream: StreamState, part: TextPart) -> None:
        closed = part.closed
        ids = part.take()
        if len(ids):
            self.stages.decoder.add_text(stream.index, self.stages.prompts.text_rows(ids))
            stream.add_text(len(ids))
        if closed:
            self._close_text(stream)

    def _close_text(self, stream: StreamState) -> None:
        self.stages.decoder.add_text(stream.index, self.stages.prompts.end_rows())
        self.stages.decoder.close_text(stream.index)
        stream.text_open = False

    def _end_late_text(self) -> float | None:
        """End the parts that have waited too long for text, because other streams need the slots.

        Returns:
            Seconds until the next part will have waited too long; None: no part waits for text.
        """
        left_s: list[float] = []
        for stream in self.table.active(Phase.SPEAKING):
            if stream.text_open and self.stages.decoder.frames_ready(stream.index) <= 0:
                if stream.late_text_s < TEXT_PATIENCE_S:
                    left_s.append(TEXT_PATIENCE_S - stream.late_text_s)
                    continue
                with self.table.ending_on_error([stream]):
                    self._close_text(stream)
        return min(left_s, default=None)

    def _runnable(self, is_wanted: bool) -> list[StreamState]:
        """Return streams that can draw a frame: they have text, no due chunk, and a reader that
        keeps up.

        Args:
            is_wanted: another stream waits for a slot. A stream then does not wait for its reader,
                so that its part ends soon.
        """
        return [
            stream
            for stream in self.table.active(Phase.SPEAKING)
            if (is_wanted or not stream.is_reader_behind)
            and stream.frames_until_due > 0
            and self.stages.decoder.frames_ready(stream.index) > 0
        ]

    def _start_step(self, streams: list[StreamState]) -> Callable[[], None] | None:
        """Start drawing up to `MAX_FRAMES_PER_STEP` frames for every stream in one launch; return
        what takes them. None: the launch failed, which ended its streams.
        """
        num_frames = min(
            MAX_FRAMES_PER_STEP,
            *(stream.frames_until_due for stream in streams),
            *(stream.guard.frames_left for stream in streams),
            *(self.stages.decoder.frames_ready(stream.index) for stream in streams),
        )
        slots, parts = [stream.index for stream in streams], [stream.part for stream in streams]
        started = time.perf_counter()
        with self.table.ending_on_error(streams):
            wait = self.stages.decoder.launch(slots, num_frames)
            spent = add_time(self.spent_ms, "decode", started)
            return partial(self._collect, streams, parts, wait, spent)
        return None

    def _collect(
        self,
        streams: list[StreamState],
        parts: list[TextPart | None],
        wait: Callable[[], StepResult],
        spent: float,
    ) -> None:
        """Wait for a step and take its frames, except those of a part that ended meanwhile.

        Args:
            parts: for each stream, the part that its frames belong to.
            spent: milliseconds that the launch took.
        """
        started = time.perf_counter()
        with self.table.ending_on_error(streams):
            result = wait()
            self.table.end_failed(streams, result)
            spent += add_time(self.spent_ms, "decode", started)
            for row, (stream, part) in enumerate(zip(streams, parts, strict=True)):
                if stream.is_over or stream.part is not part:
                    continue
                timings = stream.timings
                timings["decode"] = timings.get("decode", 0.0) + spent
                num_drawn = result.num_frames[row]
                if num_drawn:  # 0 after a cancel
                    timings.setdefault("first_frame", stream.elapsed_ms())
                stream.take_frames(result.codes[row, :num_drawn], result.ended[row])


def _is_dry(stream: StreamState) -> bool:
    return -math.inf < stream.buffered_s() < LOW_BUFFER_S  # -inf: there was nothing to play yet


def _settle(future: Future, work: Callable[[], Any]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # raised again where the caller waits for the future
        future.set_exception(error)
