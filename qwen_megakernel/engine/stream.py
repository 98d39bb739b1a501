"""A stream: the handle of its caller, and the state that the engine's thread shares.

`StreamState` is shared; `SpeechStream` is the caller's handle on it. Dropping the handle cancels
the stream, so an abandoned loop never keeps a slot.
"""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from qwen_megakernel import audio
from qwen_megakernel.errors import QwenTTSError, UsageError
from qwen_megakernel.records import (
    AudioChunk,
    FinishReason,
    Manner,
    SpeechRequest,
    TextIds,
    check_text,
)
from qwen_megakernel.sound.chunks import HeardChunks
from qwen_megakernel.text.parts import PartCutter, TextPart
from qwen_megakernel.text.reading.spoken import Piece
from qwen_megakernel.text.request_text import Cut, RequestText
from qwen_megakernel.timing import subtitles
from qwen_megakernel.timing.speech_timer import SpeechTimer, SpokenPart
from qwen_megakernel.timing.words import Segment, TimedWord

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
    prompt_ids: TextIds  # each part replaces the body
    wake: Callable[[], None]  # makes the engine's thread check the streams again
    interrupt: Callable[[], None]  # `wake`, and the running step ends after its current frame
    sample_rate: int  # of the codec, in Hz
    parts: deque[TextPart] = field(default_factory=deque)
    text_closed: bool = False
    text_error: QwenTTSError | None = None  # raised when the text before it is spoken
    cancelled: bool = False
    started: float = field(default_factory=time.perf_counter)
    outbox: Outbox = field(default_factory=Outbox)
    codes: list[np.ndarray] = field(default_factory=list)  # delivered frames
    num_parts: int = 0
    spoken_parts: list[SpokenPart] = field(default_factory=list)  # those begun
    planned_parts: int | None = None  # None: the text is open
    num_text_tokens: int = 0  # of the parts begun so far
    finish_reason: FinishReason | None = None
    timings: dict[str, float] = field(default_factory=dict)  # milliseconds
    heard: HeardChunks | None = None  # None: the samples are heard as the engine makes them
    delivered_s: float = 0.0  # seconds of the samples and pauses that the reader was given

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
        """Give a chunk to the reader: [num_samples] int16 of `num_frames` frames.

        Args:
            manner: of the part that they belong to.
            pause_s: of a pause, which has no samples yet.
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
        """Give the reader a pause of the text."""
        self.deliver(np.empty(0, dtype=np.int16), len(self.codes), 0, pause_s=seconds)

    def lead_s(self) -> float:
        """Return the seconds until a reader, playing from its first sample on, runs dry.

        Minus infinity while the reader has nothing to play. Of a sound that is changed, the chain
        knows what has been heard, which silence that it cuts or holds back is not; of chunks that
        the reader has not taken yet, all is expected to be heard.
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
        """Milliseconds since the request was made."""
        return (time.perf_counter() - self.started) * 1000

    def cancel(self) -> None:
        """Stop after the frame that is being drawn, without waiting; a finished stream stays."""
        self.cancelled = True
        if self.finish_reason is None:
            self.interrupt()


class SpeechStream:
    """Iterate (or `async for`) to receive `AudioChunk`s; `close()` to stop early.

    A stream opened with `text_open=True` takes text through `feed` and `end_text` while its audio
    is already read.
    """

    def __init__(
        self,
        state: StreamState,
        engine: object,
        text: RequestText,
        cutter: PartCutter | None = None,
        workers: Executor | None = None,
        warnings: Iterable[str] = (),
    ) -> None:
        self._state = state
        self._engine = engine  # kept, because a dropped engine closes
        self._text = text
        self._cutter = cutter  # None: the text is complete
        self._warnings: list[str] = []
        self._warn(warnings)
        self._heard = state.heard
        self._timer = SpeechTimer(
            state.spoken_parts, are_heard_apart=bool(self._heard and self._heard.has_parts)
        )
        self._workers = workers  # make what a coroutine hears; None: those of its event loop
        self._working: asyncio.Future[list[AudioChunk]] | None = None  # on what is heard
        self._ready: deque[AudioChunk] = deque()  # received, and not handed out yet
        self._over = False

    @property
    def sample_rate(self) -> int:
        """Samples per second of what is heard."""
        return self._heard.sample_rate if self._heard else self._state.sample_rate

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
        """Milliseconds from the request to `first_frame`, `first_chunk` and the end (`total`), and
        those spent on the first `prefill` and on all of `decode` and `vocoder`."""
        return dict(self._state.timings)

    @property
    def codes(self) -> np.ndarray:
        """The frames delivered so far, [num_frames, num_code_groups] int32."""
        return np.array(self._state.codes, dtype=np.int32)

    @property
    def num_parts(self) -> int:
        """Number of parts begun so far."""
        return self._state.num_parts

    @property
    def planned_parts(self) -> int | None:
        """Number of parts of the text; None for a text that comes through `feed`."""
        return self._state.planned_parts

    @property
    def warnings(self) -> list[str]:
        """Warnings about text that the model cannot read (scripts of other languages, markup), and
        about options with which it may speak badly."""
        return list(self._warnings)

    @property
    def num_text_tokens(self) -> int:
        """Number of text tokens that the model has received so far."""
        return self._state.num_text_tokens

    @property
    def is_normalized(self) -> bool:
        """Whether the text is read in words, or by a lexicon, before it is spoken."""
        return self._text.is_read

    @property
    def spoken_text(self) -> str:
        """The text so far as the model is given it: numbers in words, words as a lexicon spells
        them. It grows while text comes through `feed`, and what is there never changes."""
        return self._text.spoken.text

    @property
    def spoken_pieces(self) -> tuple[Piece, ...]:
        """The pieces of `spoken_text`, each with the characters of the written text that it stands
        for, counted over everything that was given or fed."""
        return self._text.spoken.pieces

    @property
    def words(self) -> list[TimedWord]:
        """The words of the user's text that the chunks received so far speak, with their times.
        While a part of the text is being spoken, the times of its words are an estimate."""
        return self._timer.words(self.written_text, self.spoken_pieces)

    async def find_words(self) -> list[TimedWord]:
        """Return `words`; the event loop is free while a thread looks at the samples."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, lambda: self.words)

    @property
    def segments(self) -> list[Segment]:
        """The sentences of the user's text that the chunks received so far speak."""
        return self._timer.segments(self.written_text, self.spoken_pieces)

    def take_timestamps(self) -> tuple[list[TimedWord], list[Segment]]:
        """Return the words and sentences whose times have settled since the last call. What was
        returned never changes, in `words` and `segments` neither."""
        return self._timer.take(self.written_text, self.spoken_pieces)

    @property
    def written_text(self) -> str:
        """The user's text so far, without its markup. `words` count their places in it."""
        return self._text.written

    def codes_of(self, chunk: AudioChunk) -> np.ndarray:
        """Return the frames of a chunk, [chunk.num_frames, num_code_groups] int32."""
        end = chunk.frame_index + chunk.num_frames
        return np.array(self._state.codes[chunk.frame_index : end], dtype=np.int32)

    def feed(self, text: str) -> None:
        """Give the next piece of text; pieces need not be words.

        Raises:
            UsageError: the stream was not opened with `text_open=True`, its text has ended, or
                `text` is no string.
        """
        if text is None:
            raise UsageError("text is None; it must be a text.", hint="end_text() ends it.")
        check_text(text=text)
        if self._text.error:
            return  # the reader gets the error, behind what is spoken
        if self._cutter is None:
            raise UsageError(
                "feed() on a stream whose text is complete.",
                hint="Open it with tts.stream(text_open=True) and feed before end_text().",
            )
        self._take(self._cutter, self._text.feed(text))

    def end_text(self) -> None:
        """Declare the text complete; the stream ends when all of it is spoken."""
        if self._cutter:
            self._take(self._cutter, self._text.end(), is_last=True)

    def _take(
        self, cutter: PartCutter, steps: Iterable[str | Cut], *, is_last: bool = False
    ) -> None:
        """Take words and cuts of the text; it ends after the last ones, or at an error in them."""
        for step in steps:
            if isinstance(step, Cut):
                cutter.cut(step.manner, step.pause_s)
            else:
                cutter.feed(step)
        self._warn(self._text.take_warnings())
        if is_last or self._text.error:
            cutter.end()
            self._cutter, self._state.text_error = None, self._text.error
            self._state.text_closed = True  # last, because the engine looks at it first
        self._state.wake()

    def _warn(self, warnings: Iterable[str]) -> None:
        """Log warnings, and keep them for the caller."""
        for warning in warnings:
            logger.warning("%s", warning[0].upper() + warning[1:] + ".")
            self._warnings.append(warning)

    def _receive(self, item: AudioChunk | Exception) -> list[AudioChunk]:
        """Return the chunks that the reader hears; none if nothing is heard before the next."""
        self._state.wake()  # a slot that waits for the reader may go on
        if isinstance(item, Exception):
            if self._heard and (rest := self._heard.rest()):
                self._state.outbox.put(item)  # comes after it
                self._timer.hear(rest)
                return [rest]
            self._over = True
            raise item
        self._over = item.is_last
        chunks = self._heard.hear(item) if self._heard else [item]
        for chunk in chunks:
            self._timer.hear(chunk)
        return chunks

    async def _receive_async(self) -> list[AudioChunk]:
        """Await the next item of `_receive`; a thread works on the sound, not the event loop."""
        if not self._heard:
            return self._receive(await self._state.outbox.get_async())
        if self._working is None:
            item = await self._state.outbox.get_async()
            loop = asyncio.get_running_loop()
            self._working = loop.run_in_executor(self._workers, self._receive, item)
        try:
            chunks = await asyncio.shield(self._working)
        except Exception:  # not where the reader is cancelled: it may come again for the chunks
            self._working = None
            raise
        self._working = None
        return chunks

    def __iter__(self) -> Iterator[AudioChunk]:
        return self

    def __next__(self) -> AudioChunk:
        while not self._ready:
            if self._over:
                raise StopIteration
            self._ready.extend(self._receive(self._state.outbox.get()))
        return self._ready.popleft()

    def __aiter__(self) -> AsyncIterator[AudioChunk]:
        return self

    async def __anext__(self) -> AudioChunk:
        while not self._ready:
            if self._over and not self._working:
                raise StopAsyncIteration
            self._ready.extend(await self._receive_async())
        return self._ready.popleft()

    def close(self) -> None:
        """Cancel after the current frame, without waiting; chunks made before can still be read."""
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
    spoken_text: str = ""  # what the model was given: numbers in words
    _words: Callable[[], list[TimedWord]] = field(default=list, repr=False, compare=False)
    _segments: Callable[[], list[Segment]] = field(default=list, repr=False, compare=False)

    @property
    def words(self) -> list[TimedWord]:
        """The words of the user's text, with their times."""
        return self._words()

    @property
    def segments(self) -> list[Segment]:
        """The sentences of the user's text, with their times."""
        return self._segments()

    def save(self, path: str | Path, encoding: str = "pcm") -> None:
        """Write the audio; the extension picks the format (wav, flac, ogg, mp3).

        Args:
            encoding: of a wav file: "pcm" (16-bit), "ulaw" or "alaw".
        Raises:
            UsageError: there is no such format or encoding, or it has not the sample rate.
            OutputError: the path cannot be written.
        """
        audio.write_wav(path, self.audio, self.sample_rate, encoding)

    def save_subtitles(self, path: str | Path) -> None:
        """Write the times of words and sentences; the extension picks the format (srt, vtt, json).

        Raises:
            UsageError, OutputError: the extension is unknown, or the path cannot be written.
        """
        subtitles.write(Path(path), self.words, self.segments)

    @staticmethod
    def collect(stream: SpeechStream) -> "Speech":
        """Read `stream` to its end."""
        chunks = list(stream)
        assert stream.finish_reason
        samples = np.concatenate([chunk.samples for chunk in chunks])
        return Speech(
            audio=samples.astype(np.float32) / 32768,
            sample_rate=chunks[-1].sample_rate,
            codes=stream.codes,
            finish_reason=stream.finish_reason,
            seed=stream.seed,
            parts=stream.num_parts,
            timings=stream.timings,
            spoken_text=stream.spoken_text,
            # Found when they are asked for. The stream itself would keep the engine.
            _words=partial(stream._timer.words, stream.written_text, stream.spoken_pieces),
            _segments=partial(stream._timer.segments, stream.written_text, stream.spoken_pieces),
        )
