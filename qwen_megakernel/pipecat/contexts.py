"""The speech of Pipecat's audio contexts: requests to the engine, their words and their ends.

`service` chooses voice and settings. Needs pipecat-ai 1.14.
"""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loguru import logger
from pipecat.frames.frames import CancelFrame, ErrorFrame, Frame, TTSAudioRawFrame, TTSTextFrame
from pipecat.utils.tracing.service_decorators import traced_tts

from qwen_megakernel.engine.conversation import Conversation
from qwen_megakernel.errors import EngineClosed, GenerationError, MarkupError
from qwen_megakernel.pipecat.base import InProcessTTSService
from qwen_megakernel.pipecat.word_timestamps import WordTime, WordTimer
from qwen_megakernel.records import AudioChunk
from qwen_megakernel.text.sentences import unspeakable
from qwen_megakernel.timing.words import is_unspaced, word_spans

if TYPE_CHECKING:
    from qwen_megakernel.engine.speech_engine import SpeechEngine
    from qwen_megakernel.engine.stream import SpeechStream

# Silence that replaces text without sound, and speech that failed before its first sample. The base
# class gives a service up after three contexts without audio.
SILENCE_S = 0.08

_TAG = re.compile(r"<[^<>]*>")


@dataclass(slots=True)
class ContextSpeech:
    """The speech of a turn, or of a `TTSSpeakFrame`: one request to the engine, or several.

    Args:
        timeout_s: seconds without audio after which a request has failed.
    """

    timeout_s: float
    audio_s: float = 0.0  # audio made so far
    stream: SpeechStream | None = None  # the latest request
    is_cancelled: bool = False
    conversation: Conversation = field(default_factory=Conversation)  # of its requests
    # For a turn whose text is still arriving (TOKEN mode, or text with markup):
    task: asyncio.Task | None = None  # moves audio to the context, from the first word on
    unspoken: str = ""  # text before the first word
    text_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _deadline: asyncio.Timeout | None = None  # for the next chunk

    async def next_chunk(self, stream: SpeechStream) -> AudioChunk | None:
        """Return the next audio of the latest request; None at its end.

        Raises:
            GenerationError: neither audio nor text came for `timeout_s`.
        """
        try:
            async with asyncio.timeout(self.timeout_s) as self._deadline:
                return await anext(stream, None)
        except TimeoutError as error:
            raise GenerationError(
                f"No audio from the engine for {self.timeout_s:g} s.",
                "It hangs, other requests keep it busy, or the LLM has stopped within its turn.",
            ) from error
        finally:
            self._deadline = None

    def feed(self, words: str) -> None:
        """Add whole words to a turn while its text is still arriving."""
        assert self.stream is not None  # the first word opens it
        self.stream.feed(words)
        self.extend_deadline()

    def end_text(self) -> None:
        """End the text; the engine speaks the rest."""
        self.text_ended.set()
        if self.stream:
            self.stream.end_text()
        self.extend_deadline()

    def cancel(self) -> None:
        """Stop the engine after its current frame, without waiting; may be called at any time."""
        self.is_cancelled = True
        if self.stream:
            self.stream.close()
        if self.task:
            self.task.cancel()

    def extend_deadline(self) -> None:
        """Restart the time limit, because what the engine may have waited for has come."""
        if self._deadline and not self._deadline.expired():
            self._deadline.reschedule(asyncio.get_running_loop().time() + self.timeout_s)


class ContextTTSService(InProcessTTSService):
    """Speaks contexts with an engine. A sentence is one request; in TOKEN mode, a whole turn is.

    Args:
        engine_timeout_s: Seconds without audio after which a request has failed.
    """

    def __init__(
        self, *, engine: SpeechEngine, sample_rate: int, engine_timeout_s: float, **kwargs: Any
    ):
        self._engine = engine
        self._sound_rate = sample_rate
        self._engine_timeout_s = engine_timeout_s
        self._speeches: dict[str, ContextSpeech] = {}  # context id -> its speech
        super().__init__(
            push_text_frames=False,  # words are pushed as they are heard
            push_start_frame=True,
            push_stop_frames=True,
            sample_rate=sample_rate,
            **kwargs,
        )
        self._register_event_handler("on_speech_ended")

    # ---- what a service defines ------------------------------------------------------------------

    @abstractmethod
    def _open_stream(self, text: str | None, conversation: Conversation) -> SpeechStream:
        """Start a request with the current settings; text None: it comes through `feed`."""

    @property
    @abstractmethod
    def _has_markup(self) -> bool:
        """Whether texts have markup, which may continue from one sentence of a turn to the next."""

    # ---- speech ----------------------------------------------------------------------------------

    @traced_tts
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Speak text in an audio context.

        Args:
            text: A sentence; in TOKEN mode some words.
            context_id: The context; sentences of a turn share one.

        Yields:
            Audio and error frames. In TOKEN mode, and for text with markup, audio comes through the
            context instead.
        """
        speech = self._speeches.setdefault(context_id, ContextSpeech(self._engine_timeout_s))
        await self.start_tts_usage_metrics(text)
        is_open = self._is_streaming_tokens or self._has_markup
        frames = (self._take_words if is_open else self._say_sentence)(context_id, speech, text)
        async for frame in self._replacing_lost(context_id, speech, frames):
            yield frame

    async def _say_sentence(
        self, context_id: str, speech: ContextSpeech, text: str
    ) -> AsyncGenerator[Frame, None]:
        if unspeakable(text):
            begin_s, unspaced = speech.audio_s, is_unspaced(text)
            yield self._silence(context_id, speech)
            words = [WordTime(text[b:e], begin_s, unspaced) for b, e in word_spans(text)]
            await self._push_words(context_id, words)
            return
        speech.stream = self._open_stream(text, speech.conversation)
        async for frame in self._say_stream(context_id, speech, speech.stream):
            yield frame

    async def _take_words(
        self, context_id: str, speech: ContextSpeech, text: str
    ) -> AsyncGenerator[Frame | None, None]:
        """Feed words to the request of their turn; the first word opens it."""
        if speech.text_ended.is_set():
            return  # the turn has failed
        if not self._is_streaming_tokens:
            text += " "  # Pipecat has removed the space between the sentences
        try:
            if speech.task is None:
                speech.unspoken += text
                if unspeakable(speech.unspoken):
                    return
                text = speech.unspoken
                speech.stream = self._open_stream(None, speech.conversation)
                speech.task = self.create_task(self._speak_turn(context_id, speech, speech.stream))
            speech.feed(text)
        except Exception:
            speech.end_text()
            raise
        yield None  # the audio comes through the context

    async def _speak_turn(
        self, context_id: str, speech: ContextSpeech, stream: SpeechStream
    ) -> None:
        frames = self._say_stream(context_id, speech, stream)
        async for frame in self._replacing_lost(context_id, speech, frames):
            await self.append_to_audio_context(context_id, frame)
        # Speech may end before its text does (a limit, an error), and text would open a closed
        # context again.
        await speech.text_ended.wait()
        await self.remove_audio_context(context_id)

    async def _say_stream(
        self, context_id: str, speech: ContextSpeech, stream: SpeechStream
    ) -> AsyncGenerator[Frame, None]:
        """Yield the frames of a request while it runs, and add its words to the context."""
        timer = WordTimer(stream, speech.audio_s)
        try:
            while (chunk := await speech.next_chunk(stream)) is not None:
                await self.stop_ttfb_metrics()
                speech.audio_s += len(chunk.samples) / chunk.sample_rate
                for each in self._speeches.values():  # they may have waited for this one's slot
                    each.extend_deadline()
                yield self._audio(chunk.pcm16, chunk.sample_rate, context_id)
                due = await timer.due(speech.audio_s, self._heard_s(context_id))
                await self._push_words(context_id, due)
            if stream.finish_reason == "cancelled" and not speech.is_cancelled:
                raise EngineClosed("The engine was closed while it spoke.")
        except MarkupError:  # the text before the error has been spoken
            await self._push_words(context_id, await timer.finish())
            raise
        finally:
            stream.close()
        await self._push_words(context_id, await timer.finish())
        if stream.finish_reason != "eos":
            logger.warning(
                f"{self}: speech ended without an end token ({stream.finish_reason}), "
                f"seed {stream.seed}"
            )
        await self._call_event_handler("on_speech_ended", context_id, stream)

    async def _replacing_lost(
        self, context_id: str, speech: ContextSpeech, frames: AsyncIterator[Frame | None]
    ) -> AsyncGenerator[Frame | None, None]:
        """Yield frames; after an error, those that replace audio which was lost.

        If `run_tts` raised it, the context would stay open.
        """
        try:
            async for frame in frames:
                yield frame
            return
        except Exception as error:
            is_over = isinstance(error, EngineClosed) or self._engine.failure is not None
            if is_over:
                await self.push_error(str(error), error, force_treat_as_permanent=True)
            else:
                yield ErrorFrame(error=str(error), exception=error, processor=self)
        if not speech.audio_s:
            await self.cancel_ttfb_metrics()
            yield self._silence(context_id, speech)
        if is_over:  # a ServiceSwitcher may give the rest of the turn to another service
            await self.flush_audio(context_id)

    def _silence(self, context_id: str, speech: ContextSpeech) -> TTSAudioRawFrame:
        rate = self._sound_rate
        speech.audio_s += SILENCE_S
        return self._audio(bytes(2 * int(rate * SILENCE_S)), rate, context_id)

    def _audio(self, pcm: bytes, rate: int, context_id: str) -> TTSAudioRawFrame:
        """Return a frame of 16-bit mono samples, whose metadata says if they are synthetic."""
        frame = TTSAudioRawFrame(pcm, rate, 1, context_id=context_id)
        frame.metadata |= self._engine.mark.fields
        return frame

    async def _push_words(self, context_id: str, words: Sequence[WordTime]) -> None:
        for word in words:
            await self.add_word_timestamps(
                [(word.word, word.seconds)], context_id, includes_inter_frame_spaces=word.unspaced
            )

    async def _push_word_frames(self, frames: list[Frame]) -> None:
        """Push the frames of words, but not those of tags that are left at the end of a turn."""
        if self._has_markup:
            frames = [
                frame
                for frame in frames
                if not isinstance(frame, TTSTextFrame) or _TAG.sub("", frame.text).strip()
            ]
        await super()._push_word_frames(frames)

    # ---- ends ------------------------------------------------------------------------------------

    async def flush_audio(self, context_id: str | None = None) -> None:
        """End the text of a context, so that the context can end.

        The base class ends a context itself only if its last sentence had audio.

        Args:
            context_id: The context; default: the playing one, or else the turn's.
        """
        context_id = context_id or self.get_active_audio_context_id()
        speech = self._speeches.get(context_id) if context_id else None
        if speech and speech.task:
            speech.end_text()
        elif context_id and self.audio_context_available(context_id):
            if speech and speech.unspoken and not speech.audio_s:
                await self.append_to_audio_context(context_id, self._silence(context_id, speech))
            await self.remove_audio_context(context_id)

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Stop the engine's work for an interrupted context.

        A cancelled `run_tts` has done so already, but `run_tts` may have returned (TOKEN mode), or
        a frame that cannot be interrupted is being processed.
        """
        await self._drop_speech(context_id)
        await super().on_audio_context_interrupted(context_id)

    async def on_audio_context_completed(self, context_id: str) -> None:
        """Forget a context that has played out, or timed out after `stop_frame_timeout_s`."""
        await self._drop_speech(context_id)
        await super().on_audio_context_completed(context_id)

    async def _drop_speech(self, context_id: str) -> None:
        if speech := self._speeches.pop(context_id, None):
            speech.cancel()
            if speech.task:
                await self.cancel_task(speech.task)

    async def cancel(self, frame: CancelFrame) -> None:
        for speech in self._speeches.values():
            speech.cancel()
        await super().cancel(frame)

    async def cleanup(self) -> None:
        for context_id in list(self._speeches):
            await self._drop_speech(context_id)
        await super().cleanup()
