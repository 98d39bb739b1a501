"""The state of a stream, which its caller shares with the engine's thread."""

import asyncio
import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from qwen_megakernel.records import AudioChunk, FinishReason, Manner, SpeechRequest
from qwen_megakernel.sound.chunks import HeardChunks
from qwen_megakernel.text.intake import TextIntake
from qwen_megakernel.timing.speech_timer import SpokenPart


class Outbox:
    """A queue of chunks for one reader, which may be a thread or a coroutine."""

    def __init__(self) -> None:
        self._items: deque[AudioChunk | Exception] = deque()
        self._changed = threading.Condition()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: AudioChunk | Exception) -> None:
        """Add an item without blocking; the engine looks at `len` before it decodes more."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()
            waiter = self._waiter
        if waiter:
            with contextlib.suppress(RuntimeError):  # its event loop is closed: no reader waits
                waiter[0].call_soon_threadsafe(waiter[1].set)

    def get(self) -> AudioChunk | Exception:
        """Block until there is an item."""
        with self._changed:
            self._changed.wait_for(lambda: self._items)
            return self._items.popleft()

    async def get_async(self) -> AudioChunk | Exception:
        """Await an item without blocking the event loop."""
        event = asyncio.Event()
        while True:
            with self._changed:
                if self._items:
                    return self._items.popleft()
                event.clear()
                self._waiter = asyncio.get_running_loop(), event
            try:
                await event.wait()
            finally:
                self._waiter = None


@dataclass(slots=True, eq=False)
class StreamState:
    """One utterance, shared by its caller and the engine. Compared by identity."""

    request: SpeechRequest
    text: TextIntake
    wake: Callable[[], None]  # makes the engine's thread check the streams again
    interrupt: Callable[[], None]  # `wake`, and the running step ends after its current frame
    sample_rate: int  # of the codec, in Hz
    cancelled: bool = False
    started: float = field(default_factory=time.perf_counter)
    outbox: Outbox = field(default_factory=Outbox)
    codes: list[np.ndarray] = field(default_factory=list)  # delivered frames
    num_parts: int = 0
    spoken_parts: list[SpokenPart] = field(default_factory=list)  # the parts that have begun
    num_text_tokens: int = 0  # of the parts begun so far
    finish_reason: FinishReason | None = None
    timings: dict[str, float] = field(default_factory=dict)  # milliseconds
    heard: HeardChunks | None = None  # changes the samples; None: nothing changes them
    delivered_s: float = 0.0  # seconds of samples and pauses that were put into the outbox

    def deliver(
        self,
        samples: np.ndarray,
        frame_index: int,
        num_frames: int,
        reason: FinishReason | None = None,
        *,
        manner: Manner | None = None,
        pause_s: float = 0.0,
    ) -> None:
        """Put a chunk into the outbox: [num_samples] int16 of `num_frames` frames.

        Args:
            manner: manner of the part that the samples belong to.
            pause_s: length of a pause, which has no samples yet.
        """
        start_s = self.delivered_s
        self.delivered_s += pause_s + len(samples) / self.sample_rate
        self.outbox.put(
            AudioChunk(
                samples=samples,
                sample_rate=self.sample_rate,
                frame_index=frame_index,
                num_frames=num_frames,
                t_ms=self.elapsed_ms(),
                is_last=reason is not None,
                finish_reason=reason,
                start_s=start_s,
                manner=manner or Manner(),
                pause_s=pause_s,
            )
        )

    def deliver_pause(self, seconds: float) -> None:
        """Put a pause of the text into the outbox."""
        self.deliver(np.empty(0, dtype=np.int16), len(self.codes), 0, pause_s=seconds)

    def end(self, reason: FinishReason, error: Exception | None = None) -> None:
        """End the stream for its reader, with an empty last chunk or with an error; only once."""
        if self.finish_reason is not None:
            return
        self.finish_reason = reason
        self.timings["total"] = self.elapsed_ms()
        if error:
            self.outbox.put(error)
        else:
            self.deliver(np.empty(0, dtype=np.int16), len(self.codes), 0, reason)

    def buffered_s(self) -> float:
        """Return for how many seconds the reader can go on playing; -inf if it has nothing to play.

        If a sound chain changes the samples, the chain's output counts, without silence that the
        chain removes or holds back. Chunks that the reader has not taken yet count in full.
        """
        if self.heard is None:
            begun_ms = self.timings.get("first_chunk")
            if begun_ms is None:
                return -math.inf
            return self.delivered_s - (self.elapsed_ms() - begun_ms) / 1000
        progress = self.heard.progress
        untaken_s = (self.delivered_s - progress.made_s) / self.request.sound.speed
        if progress.begun is None:
            return untaken_s or -math.inf
        return progress.heard_s + untaken_s - (time.perf_counter() - progress.begun)

    def elapsed_ms(self) -> float:
        """Return the milliseconds since the request was made."""
        return (time.perf_counter() - self.started) * 1000

    def cancel(self) -> None:
        """Stop after the frame that is being drawn, without waiting, unless the stream is over."""
        self.cancelled = True
        if self.finish_reason is None:
            self.interrupt()
