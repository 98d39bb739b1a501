"""What a Pipecat service makes for one audio context, and how long it waits for the engine."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipecat.utils.text.simple_text_aggregator import SimpleTextAggregator

from qwen_megakernel.errors import GenerationError
from qwen_megakernel.pipecat.word_timestamps import WordTimer
from qwen_megakernel.records import AudioChunk

if TYPE_CHECKING:
    from qwen_megakernel.engine.stream import SpeechStream


@dataclass(slots=True)
class ContextSpeech:
    """The speech of a turn, or of a `TTSSpeakFrame`: one request to the engine, or several.

    Args:
        timeout_s: how long the engine may leave a request without audio.
    """

    timeout_s: float
    audio_s: float = 0.0  # audio made so far
    stream: SpeechStream | None = None  # the latest request
    is_cancelled: bool = False
    # Of a turn whose text is still arriving (TOKEN mode):
    task: asyncio.Task | None = None  # brings its audio to the context, from the first word on
    unspoken: str = ""  # text before the first word
    timer: WordTimer | None = None
    sentences: SimpleTextAggregator | None = None  # set where a turn takes several requests
    requests: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)  # their texts
    text_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _deadline: asyncio.Timeout | None = None  # for the next chunk

    async def next_chunk(self) -> AudioChunk | None:
        """The next audio of the latest request; None at its end.

        Raises:
            GenerationError: there was neither audio nor text for `timeout_s`.
            QwenTTSError: the request failed.
        """
        try:
            async with asyncio.timeout(self.timeout_s) as self._deadline:
                return await anext(self.stream, None)
        except TimeoutError as error:
            raise GenerationError(
                f"No audio from the engine for {self.timeout_s:g} s.",
                "It hangs, other requests keep it busy, or the LLM does not go on with its turn.",
            ) from error
        finally:
            self._deadline = None

    async def feed(self, words: str) -> None:
        """Whole words of a turn whose text is still arriving."""
        if self.sentences:
            async for sentence in self.sentences.aggregate(words):
                self.requests.put_nowait(sentence.text)
            return
        self.stream.feed(words)
        self.timer.add(words)
        self._extend_deadline()

    async def end_text(self) -> None:
        """No more words come: the engine finishes with what it has."""
        self.text_ended.set()
        if self.sentences and (rest := await self.sentences.flush()):
            self.requests.put_nowait(rest.text)
        self.requests.put_nowait(None)
        if self.stream:
            self.stream.end_text()
        self._extend_deadline()

    def cancel(self) -> None:
        """Stop the engine after its current frame. Does not wait; harmless when over."""
        self.is_cancelled = True
        if self.stream:
            self.stream.close()
        if self.task:
            self.task.cancel()

    def _extend_deadline(self) -> None:
        """Text has come: until now the engine may have waited for it."""
        if self._deadline:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self.timeout_s)
