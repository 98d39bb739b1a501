"""What a caller holds while speech is made, and what it shares with the engine's thread.

`StreamState` is shared; `SpeechStream` is the caller's handle on it. Dropping the handle cancels
the stream, so an abandoned loop never keeps a slot.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qwen_megakernel import audio
from qwen_megakernel.errors import UsageError
from qwen_megakernel.records import AudioChunk, FinishReason, SpeechRequest, TextIds, check_text
from qwen_megakernel.text.parts import PartCutter, TextPart
from qwen_megakernel.text.unreadable import TextWatch

logger = logging.getLogger(__name__)


class Outbox:
    """Chunks on their way to one reader, which may be a thread or a coroutine."""

    def __init__(self) -> None:
        self._items: deque[AudioChunk | Exception] = deque()
        self._changed = threading.Condition()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: AudioChunk | Exception) -> None:
        """Never blocks: the engine looks at `len` before it decodes further."""
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()
            waiter = self._waiter
        if waiter:
            with contextlib.suppress(RuntimeError):  # its event loop is closed: nobody waits
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
    """One utterance, seen from both sides. Equal to none but itself."""

    request: SpeechRequest
    prompt_ids: TextIds  # of which each part replaces the body
    wake: Callable[[], None]  # tells the engine's thread to look again
    interrupt: Callable[[], None]  # the same, and its running step ends after the current frame
    sample_rate: int  # of the codec, in Hz
    parts: deque[TextPart] = field(default_factory=deque)
    text_closed: bool = False
    cancelled: bool = False
    started: float = field(default_factory=time.perf_counter)
    outbox: Outbox = field(default_factory=Outbox)
    codes: list[np.ndarray] = field(default_factory=list)  # delivered frames
    num_parts: int = 0
    planned_parts: int | None = None  # None: the text is open
    num_text_tokens: int = 0  # of the parts begun so far
    finish_reason: FinishReason | None = None
    timings: dict[str, float] = field(default_factory=dict)  # milliseconds
    delivered_s: float = 0.0  # seconds of audio that the reader has been given
    watch: TextWatch = field(default_factory=lambda: TextWatch(None))
    warnings: list[str] = field(default_factory=list)  # of the text and of its options

    def look(self, text: str) -> None:
        """Warn of what the model cannot read in the next piece of the text."""
        self.warn(self.watch.look(text))

    def warn(self, warnings: Iterable[str]) -> None:
        """Log these, and keep them for the caller."""
        for warning in warnings:
            logger.warning("%s", warning[0].upper() + warning[1:] + ".")
            self.warnings.append(warning)

    def deliver(
        self,
        samples: np.ndarray,
        frame_index: int,
        num_frames: int,
        reason: FinishReason | None = None,
    ) -> None:
        """Hand a chunk to the reader: [num_samples] int16 of `num_frames` frames."""
        self.delivered_s += len(samples) / self.sample_rate
        self.outbox.put(
            AudioChunk(
                samples=samples,
                sample_rate=self.sample_rate,
                frame_index=frame_index,
                num_frames=num_frames,
                t_ms=self.elapsed_ms(),
                is_last=reason is not None,
                finish_reason=reason,
            )
        )

    def elapsed_ms(self) -> float:
        """Milliseconds since the request was made."""
        return (time.perf_counter() - self.started) * 1000

    def cancel(self) -> None:
        """Stop after the frame that is being drawn; does not wait. Harmless when over."""
        self.cancelled = True
        if self.finish_reason is None:
            self.interrupt()


class SpeechStream:
    """Iterate (or `async for`) to receive `AudioChunk`s; `close()` to stop early.

    A stream opened with `text_open=True` takes its text through `feed` and `end_text` while audio
    already flows out.
    """

    def __init__(
        self, state: StreamState, engine: object, cutter: PartCutter | None = None
    ) -> None:
        self._state = state
        self._engine = engine  # a dropped engine closes; ours must not while we are read
        self._cutter = cutter  # of a text that arrives in pieces
        self._over = False

    @property
    def seed(self) -> int:
        """The seed in use; the same seed and request give the same codes."""
        return self._state.request.seed

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the stream ended; None while it runs."""
        return self._state.finish_reason

    @property
    def timings(self) -> dict[str, float]:
        """Milliseconds from the request: `prefill`, `first_frame`, `first_chunk`, `total`; and
        spent in all: `decode`, `vocoder`."""
        return dict(self._state.timings)

    @property
    def codes(self) -> np.ndarray:
        """[num_frames, num_code_groups] int32, the frames delivered so far."""
        return np.array(self._state.codes, dtype=np.int32)

    @property
    def num_parts(self) -> int:
        """Parts begun so far."""
        return self._state.num_parts

    @property
    def planned_parts(self) -> int | None:
        """Parts the text was cut into; None for a text that comes through `feed`."""
        return self._state.planned_parts

    @property
    def warnings(self) -> list[str]:
        """What of the text so far the model cannot read (scripts of other languages, markup), and
        options that it may not speak well with."""
        return list(self._state.warnings)

    @property
    def num_text_tokens(self) -> int:
        """Text tokens the model has been given so far."""
        return self._state.num_text_tokens

    def codes_of(self, chunk: AudioChunk) -> np.ndarray:
        """[chunk.num_frames, num_code_groups] int32, the frames a chunk of this stream plays."""
        end = chunk.frame_index + chunk.num_frames
        return np.array(self._state.codes[chunk.frame_index : end], dtype=np.int32)

    def feed(self, text: str) -> None:
        """Give the next piece of text; pieces need not be words.

        Raises:
            UsageError: the stream was not opened with `text_open=True`, or its text has ended; or
                this is no text.
        """
        if text is None:
            raise UsageError("text is None; it must be a text.", hint="end_text() ends it.")
        check_text(text=text)
        if self._cutter is None or self._state.text_closed:
            raise UsageError(
                "feed() on a stream whose text is complete.",
                hint="Open it with tts.stream(text_open=True) and feed before end_text().",
            )
        self._state.look(text)
        self._cutter.feed(text)
        self._state.wake()

    def end_text(self) -> None:
        """No more text will come: what is left is spoken, then the stream ends."""
        if self._cutter is None or self._state.text_closed:
            return
        self._cutter.end()
        self._state.text_closed = True
        self._state.wake()

    def _receive(self, item: AudioChunk | Exception) -> AudioChunk:
        self._state.wake()  # a paused slot may go on
        if isinstance(item, Exception):
            self._over = True
            raise item
        self._over = item.is_last
        return item

    def __iter__(self) -> Iterator[AudioChunk]:
        return self

    def __next__(self) -> AudioChunk:
        if self._over:
            raise StopIteration
        return self._receive(self._state.outbox.get())

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return self

    async def __anext__(self) -> AudioChunk:
        if self._over:
            raise StopAsyncIteration
        return self._receive(await self._state.outbox.get_async())

    def close(self) -> None:
        """Cancel after the current frame. Does not wait; chunks made before can still be read."""
        self._state.cancel()

    def __enter__(self) -> "SpeechStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> "SpeechStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._state.cancel()


@dataclass(frozen=True, slots=True)
class Speech:
    """A whole utterance."""

    audio: np.ndarray  # [num_samples] float32 in [-1, 1]
    sample_rate: int
    codes: np.ndarray  # [num_frames, num_code_groups] int32
    finish_reason: FinishReason
    seed: int
    parts: int
    timings: dict[str, float]

    def save(self, path: str | Path) -> None:
        """Write the audio; the extension picks the format (wav, flac, ogg, mp3).

        Raises:
            OutputError: the path cannot be written.
        """
        audio.write_wav(path, self.audio, self.sample_rate)

    @staticmethod
    def collect(stream: SpeechStream) -> "Speech":
        """Read `stream` to its end."""
        chunks = list(stream)
        samples = np.concatenate([chunk.samples for chunk in chunks])
        return Speech(
            audio=samples.astype(np.float32) / 32768,
            sample_rate=chunks[-1].sample_rate,
            codes=stream.codes,
            finish_reason=stream.finish_reason,
            seed=stream.seed,
            parts=stream.num_parts,
            timings=stream.timings,
        )
