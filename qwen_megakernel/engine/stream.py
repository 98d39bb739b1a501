"""A stream from its caller's side: text goes in, and chunks of audio come out.

The stream shares its `StreamState` with the engine's thread. A stream that is garbage-collected is
cancelled, so an abandoned loop never keeps a slot.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from qwen_megakernel.engine.stream_state import OutboxItem, StreamState
from qwen_megakernel.errors import UsageError
from qwen_megakernel.marking import UNMARKED, Marking
from qwen_megakernel.printable import get_logger
from qwen_megakernel.records import AudioChunk, Drift, FinishReason
from qwen_megakernel.speech_options import check_text
from qwen_megakernel.text.reading.spoken import Piece, SpokenText
from qwen_megakernel.timing.speech_timer import KEPT_S, SpeechTimer

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StreamText:
    """The text of a stream so far; while text comes through `feed`, it grows and never changes."""

    written: str  # the user's text without its markup; the times of words refer to it
    # Whether numbers become words, or a lexicon respells words, before the text is spoken.
    is_normalized: bool
    # About text that the model cannot read (scripts of other languages, markup), and about options
    # with which it may speak badly.
    warnings: list[str]
    num_tokens: int  # that the model has received
    num_parts: int  # that have begun
    planned_parts: int | None  # of a whole text; None: it comes through `feed`
    drifts: list[Drift]  # parts so far that differ from the first, if they continue each other
    _spoken: SpokenText

    @property
    def spoken(self) -> str:
        """The text as the model receives it: numbers as words, and words as a lexicon respells
        them."""
        return self._spoken.text

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces of `spoken`. Each has the positions of the characters for which it stands,
        counted in all text that the stream was given."""
        return self._spoken.pieces


class SpeechStream(
    Iterator[AudioChunk],
    AsyncIterator[AudioChunk],
    AbstractContextManager["SpeechStream"],
    AbstractAsyncContextManager["SpeechStream"],
):
    """Iterate (or `async for`) to receive `AudioChunk`s; `close()` to stop early.

    Threads that read one stream share its chunks, and so do coroutines of one event loop.

    A stream opened with `text_open=True` takes text through `feed` and `end_text` while its audio
    is already read. `text` is what is spoken, and `times` has the times of its words.
    """

    def __init__(
        self,
        state: StreamState,
        engine: object,
        workers: Executor | None = None,
        warnings: Iterable[str] = (),
        mark: Marking = UNMARKED,
    ) -> None:
        self._mark = mark  # its watermark is in the samples already; a file needs the rest
        self._state = state
        self._engine = engine  # kept, because a dropped engine closes
        self._text = state.text.text
        self._warnings: list[str] = []
        self._warn([*warnings, *self._text.take_warnings()])
        self._heard = state.heard
        # Chunks that the reader has received, for the times of words; None: the end.
        self._received: deque[AudioChunk | None] = deque()
        self._received_s = 0.0
        self._times: SpeechTimer | None = None
        self._making_times = threading.Lock()
        self._workers = workers  # they change the sound for coroutines
        self._working: Future[None] | None = None  # a `_receive` in a thread
        self._ready: deque[AudioChunk] = deque()  # received, but not yet returned
        self._over = False
        # Readers take turns: one that waited while another received the end finds it, too.
        self._reading, self._awaiting = threading.Lock(), asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None  # that of `_awaiting`

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "A SpeechStream cannot be pickled or copied.",
            "It belongs to an engine, and its chunks are read once.",
            "Collect it with Speech.collect(stream); a Speech can be copied.",
        )

    @property
    def sample_rate(self) -> int:
        """Samples per second in the chunks."""
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
        """The frames delivered so far, [num_frames, num_code_groups] int32; those of a chunk begin
        at its `frame_index`."""
        return np.array(self._state.codes, dtype=np.int32)

    @property
    def text(self) -> StreamText:
        """The text so far, as it was written and as it is spoken."""
        state = self._state
        return StreamText(
            written=self._text.written,
            is_normalized=self._text.is_read,
            warnings=list(self._warnings),
            num_tokens=state.num_text_tokens,
            num_parts=state.num_parts,
            planned_parts=state.text.num_parts,
            drifts=list(state.drifts),
            _spoken=self._text.spoken,
        )

    @property
    def times(self) -> SpeechTimer:
        """The times of the words; a stream that nothing asks for them only keeps some chunks."""
        with self._making_times:
            if self._times is None:
                self._times = SpeechTimer(
                    *(self._state.spoken_parts, self._text, self._received, self._workers),
                    are_heard_apart=bool(self._heard and self._heard.has_parts),
                )
            return self._times

    def feed(self, text: str) -> None:
        """Give the next piece of text; pieces need not be words.

        Raises:
            UsageError: the stream was not opened with `text_open=True`, its text has ended, or
                `text` is no string.
        """
        if text is None:
            raise UsageError("text is None; it must be a string.", hint="end_text() ends it.")
        check_text(text=text)
        intake = self._state.text
        if intake.is_whole or (intake.is_closed and not intake.error):
            raise UsageError(
                "feed() was called on a stream whose text is complete.",
                hint="Open it with tts.stream(text_open=True) and feed before end_text().",
            )
        intake.feed(text)
        self._text_changed()

    def end_text(self) -> None:
        """Declare the text complete; the stream ends when all of it is spoken."""
        self._state.text.end()
        self._text_changed()

    def _text_changed(self) -> None:
        self._warn(self._text.take_warnings())
        self._state.wake()

    def _warn(self, warnings: Iterable[str]) -> None:
        for warning in warnings:
            logger.warning("%s", warning[0].upper() + warning[1:] + ".")
            self._warnings.append(warning)

    def _receive(self, item: OutboxItem) -> None:
        """Make an item's chunks ready; none if the sound chain holds all of it back."""
        self._state.wake()  # a slot that waited for the reader can continue
        if isinstance(item, AudioChunk):
            chunks = self._heard.hear(item) if self._heard else [item]
        elif self._heard and (rest := self._heard.rest()):
            self._state.outbox.put(item)  # the stream ends after `rest` is read
            chunks = [rest]
        else:
            self._over, chunks = True, []
            if isinstance(item, Exception):
                raise item
            self._received.append(None)
        for chunk in chunks:
            self._received.append(chunk)
            self._received_s += len(chunk.samples) / chunk.sample_rate
        if self._received_s > KEPT_S:
            self._received_s = 0.0
            self.times.catch_up()
        self._ready.extend(chunks)

    def __next__(self) -> AudioChunk:
        with self._reading:
            while not self._ready:
                if working := self._working:  # of a coroutine that was cancelled
                    self._working = None
                    working.result()
                elif self._over:
                    raise StopIteration
                else:
                    self._receive(self._state.outbox.get())
            return self._ready.popleft()

    async def __anext__(self) -> AudioChunk:
        async with self._turn():
            while not self._ready:
                if self._working:
                    await self._end_work(self._working)
                elif self._over:
                    raise StopAsyncIteration
                else:
                    item = await self._state.outbox.get_async()
                    if self._heard and self._workers:
                        self._working = self._workers.submit(self._receive, item)
                    else:
                        self._receive(item)
            return self._ready.popleft()

    def _turn(self) -> asyncio.Lock:
        """Return the lock for the turns of coroutines; an asyncio.Lock works in one event loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop and self._awaiting.locked() and not self._loop.is_closed():
                raise UsageError("Two event loops read one stream.", hint="Read it in one of them.")
            self._loop, self._awaiting = loop, asyncio.Lock()
        return self._awaiting

    async def _end_work(self, working: Future[None]) -> None:
        """Await a `_receive` in a thread; if this is cancelled, the next call awaits it, perhaps
        in another event loop."""
        try:
            await asyncio.shield(asyncio.wrap_future(working))
        except Exception:
            self._working = None
            raise
        self._working = None

    def close(self) -> None:
        """Cancel after the current frame, without waiting. Earlier chunks can still be read."""
        self._state.cancel(is_heard=self._over)

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
