"""A stream from its caller's side: text goes in, and chunks of audio come out.

The stream shares its `StreamState` with the engine's thread. A stream that is garbage-collected is
cancelled, so an abandoned loop never keeps a slot.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import Executor

import numpy as np

from qwen_megakernel.engine.stream_state import OutboxItem, StreamState
from qwen_megakernel.errors import UsageError
from qwen_megakernel.marking import UNMARKED, Marking
from qwen_megakernel.printable import get_logger
from qwen_megakernel.records import AudioChunk, FinishReason
from qwen_megakernel.speech_options import check_text
from qwen_megakernel.text.reading.spoken import Piece
from qwen_megakernel.timing.speech_timer import SpeechTimer
from qwen_megakernel.timing.words import Segment, TimedWord

logger = get_logger(__name__)


class SpeechStream:
    """Iterate (or `async for`) to receive `AudioChunk`s; `close()` to stop early.

    A stream opened with `text_open=True` takes text through `feed` and `end_text` while its audio
    is already read.
    """

    def __init__(
        self,
        state: StreamState,
        engine: object,
        workers: Executor | None = None,
        warnings: Iterable[str] = (),
        mark: Marking = UNMARKED,
    ) -> None:
        self.mark = mark  # what marks the speech; its watermark is in the samples already
        self._state = state
        self._engine = engine  # kept, because a dropped engine closes
        self._text = state.text.text
        self._warnings: list[str] = []
        self._warn([*warnings, *self._text.take_warnings()])
        self._heard = state.heard
        self._timer = SpeechTimer(
            state.spoken_parts, are_heard_apart=bool(self._heard and self._heard.has_parts)
        )
        self._workers = workers  # they change the sound for coroutines; None: the event loop's
        self._working: asyncio.Future[list[AudioChunk]] | None = None  # a `_receive` in a thread
        self._ready: deque[AudioChunk] = deque()  # received, but not yet returned
        self._over = False

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
        """The frames delivered so far, [num_frames, num_code_groups] int32."""
        return np.array(self._state.codes, dtype=np.int32)

    @property
    def num_parts(self) -> int:
        """Number of parts begun so far."""
        return self._state.num_parts

    @property
    def planned_parts(self) -> int | None:
        """Number of parts of the text; None for a text that comes through `feed`."""
        return self._state.text.num_parts

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
        """Whether numbers become words, or a lexicon respells words, before the text is spoken."""
        return self._text.is_read

    @property
    def spoken_text(self) -> str:
        """The text so far as the model receives it: numbers as words, and words as a lexicon
        respells them. It grows while text comes through `feed`; no part of it ever changes."""
        return self._text.spoken.text

    @property
    def spoken_pieces(self) -> tuple[Piece, ...]:
        """The pieces of `spoken_text`. Each has the positions of the characters for which it
        stands, counted in all text that the stream was given."""
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
        """Return the words and sentences whose times have become final since the last call. They
        have the same times in `words` and `segments` from then on. The last of them become final
        after the last chunk, when the stream has ended."""
        is_over = self._timer.catch_up()  # before the text is read, which may grow until then
        return self._timer.take(self.written_text, self.spoken_pieces, is_over=is_over)

    @property
    def written_text(self) -> str:
        """The user's text so far, without its markup. The positions of `words` refer to it."""
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
        """Log warnings, and keep them for the caller."""
        for warning in warnings:
            logger.warning("%s", warning[0].upper() + warning[1:] + ".")
            self._warnings.append(warning)

    def _receive(self, item: OutboxItem) -> list[AudioChunk]:
        """Return the chunks for the reader; none if the sound chain holds all of the item back."""
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
            self._timer.end()
        for chunk in chunks:
            self._timer.hear(chunk)
        return chunks

    async def _receive_async(self) -> list[AudioChunk]:
        """Await the next item and `_receive` it, in a thread if the sound must be changed."""
        if not self._heard:
            return self._receive(await self._state.outbox.get_async())
        if self._working is None:
            item = await self._state.outbox.get_async()
            loop = asyncio.get_running_loop()
            self._working = loop.run_in_executor(self._workers, self._receive, item)
        try:
            chunks = await asyncio.shield(self._working)
        except Exception:  # not CancelledError: the next call awaits the same work
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
        """Cancel after the current frame, without waiting. Earlier chunks can still be read."""
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
