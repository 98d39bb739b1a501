"""The speech of Pipecat's audio contexts: requests to the engine, their words, their ends.

`service` chooses voice and settings. Needs pipecat-ai 1.14.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from loguru import logger
from pipecat.frames.frames import CancelFrame, ErrorFrame, Frame, TTSAudioRawFrame
from pipecat.utils.text.simple_text_aggregator import SimpleTextAggregator
from pipecat.utils.tracing.service_decorators import traced_tts

from qwen_megakernel.audio import leading_silence_ms
from qwen_megakernel.errors import EngineClosed, GenerationError
from qwen_megakernel.pipecat.base import InProcessTTSService
from qwen_megakernel.pipecat.word_timestamps import DEFAULT_PACE, WordTime, WordTimer
from qwen_megakernel.records import AudioChunk
from qwen_megakernel.text.sentences import unspeakable

if TYPE_CHECKING:
    from qwen_megakernel.engine.speech_engine import SpeechEngine
    from qwen_megakernel.engine.stream import SpeechStream

# Silence in place of text without sound, and of speech that failed before its first sample. The
# base class gives a service up after three contexts without audio.
SILENCE_S = 0.08


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
    # For a turn whose text is still arriving (TOKEN mode):
    task: asyncio.Task | None = None  # moves its audio to the context, from the first word on
    unspoken: str = ""  # text before the first word
    timer: WordTimer | None = None
    sentences: SimpleTextAggregator | None = None  # set if a turn takes several requests
    requests: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)  # their texts
    text_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _deadline: asyncio.Timeout | None = None  # for the next chunk

    async def next_chunk(self, stream: SpeechStream) -> AudioChunk | None:
        """Return the next audio of the latest request; None at its end.

        Raises:
            GenerationError: neither audio nor text came for `timeout_s`.
            QwenTTSError: the request failed.
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

    async def feed(self, words: str) -> None:
        """Take whole words of a turn whose text is still arriving."""
        if self.sentences:
            async for sentence in self.sentences.aggregate(words):
                self.requests.put_nowait(sentence.text)
            return
        assert self.stream is not None and self.timer is not None  # the first word opens them
        self.stream.feed(words)
        self.timer.add(words)
        self._extend_deadline()

    async def end_text(self) -> None:
        """End the text; the engine speaks the rest."""
        self.text_ended.set()
        if self.sentences and (rest := await self.sentences.flush()):
            self.requests.put_nowait(rest.text)
        self.requests.put_nowait(None)
        if self.stream:
            self.stream.end_text()
        self._extend_deadline()

    def cancel(self) -> None:
        """Stop the engine after its current frame, without waiting; may be called at any time."""
        self.is_cancelled = True
        if self.stream:
            self.stream.close()
        if self.task:
            self.task.cancel()

    def _extend_deadline(self) -> None:
        """Restart the time limit: text has arrived, for which the engine may have waited."""
        if self._deadline:
            self._deadline.reschedule(asyncio.get_running_loop().time() + self.timeout_s)


class ContextTTSService(InProcessTTSService):
    """Speaks contexts with an engine: a sentence is a request, or in TOKEN mode a whole turn is.

    Args:
        engine: The engine.
        engine_timeout_s: Seconds without audio after which a request has failed.
        **kwargs: For the base class.
    """

    def __init__(
        self, *, engine: SpeechEngine, sample_rate: int, engine_timeout_s: float, **kwargs: Any
    ):
        self._engine = engine
        self._sound_rate = sample_rate
        self._engine_timeout_s = engine_timeout_s
        self._speeches: dict[str, ContextSpeech] = {}  # by context id
        self._pace = DEFAULT_PACE
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
    def _open_stream(self, text: str | None) -> SpeechStream:
        """Start a request with the current settings; text None: `feed` brings it."""

    @property
    @abstractmethod
    def _needs_whole_sentences(self) -> bool:
        """Whether the voice cannot speak a text that is still arriving."""

    # ---- speech ----------------------------------------------------------------------------------

    @traced_tts
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Speak text in an audio context.

        Args:
            text: A sentence; in TOKEN mode some words.
            context_id: The context; sentences of a turn share one.

        Yields:
            Audio and error frames. In TOKEN mode audio comes through the context instead.
        """
        if self._stopping:
            return  # text after the EndFrame, which no listener would hear
        speech = self._speeches.setdefault(context_id, ContextSpeech(self._engine_timeout_s))
        await self.start_tts_usage_metrics(text)
        if self._is_streaming_tokens:
            frames = self._take_words(context_id, speech, text)
        else:
            frames = self._say_sentence(context_id, speech, text)
        async for frame in frames:
            yield frame

    async def _say_sentence(
        self, context_id: str, speech: ContextSpeech, text: str
    ) -> AsyncGenerator[Frame, None]:
        if unspeakable(text):
            timer = WordTimer(self._pace, speech.audio_s)
            timer.add(text)
            yield self._silence(context_id, speech)
            await self._push_words(context_id, timer.finish(speech.audio_s))
            return
        try:
            speech.stream = self._open_stream(text)
        except Exception as error:  # run_tts must not raise: that would leave the context open
            for frame in await self._failure(context_id, speech, error):
                yield frame
            return
        timer = self._timer(speech.stream, speech.audio_s)
        timer.add(text)
        async for frame in self._say_stream(context_id, speech, speech.stream, timer):
            yield frame

    async def _take_words(
        self, context_id: str, speech: ContextSpeech, text: str
    ) -> AsyncGenerator[Frame | None, None]:
        """Feed words to the request of their turn; the first word opens it."""
        if speech.text_ended.is_set():
            return  # the turn has failed
        try:
            if speech.task is None:
                speech.unspoken += text
                if unspeakable(speech.unspoken):
                    return
                text = speech.unspoken
                self._begin_turn(context_id, speech)
            await speech.feed(text)
        except Exception as error:  # run_tts must not raise: that would leave the context open
            await speech.end_text()
            for frame in await self._failure(context_id, speech, error):
                yield frame
        yield None  # the audio comes through the context

    def _timer(self, stream: SpeechStream, start_s: float = 0.0) -> WordTimer:
        """Return what times the words of a request, by what is spoken for them."""
        spoken = (lambda: stream.spoken_pieces) if stream.is_normalized else None
        return WordTimer(self._pace, start_s, spoken)

    def _begin_turn(self, context_id: str, speech: ContextSpeech) -> None:
        if self._needs_whole_sentences:
            speech.sentences = SimpleTextAggregator(language=self.text_aggregation_language)
            frames = self._say_requests(context_id, speech)
        else:
            speech.stream = self._open_stream(None)
            speech.timer = self._timer(speech.stream)
            frames = self._say_stream(context_id, speech, speech.stream, speech.timer)
        speech.task = self.create_task(self._speak_turn(context_id, speech, frames))

    async def _speak_turn(
        self, context_id: str, speech: ContextSpeech, frames: AsyncIterator[Frame]
    ) -> None:
        async for frame in frames:
            await self.append_to_audio_context(context_id, frame)
        # Speech may end before its text does (a limit, an error), and text would open a closed
        # context again.
        await speech.text_ended.wait()
        await self.remove_audio_context(context_id)

    async def _say_requests(
        self, context_id: str, speech: ContextSpeech
    ) -> AsyncGenerator[Frame, None]:
        while (text := await speech.requests.get()) is not None:
            async for frame in self._say_sentence(context_id, speech, text):
                yield frame

    async def _say_stream(
        self, context_id: str, speech: ContextSpeech, stream: SpeechStream, timer: WordTimer
    ) -> AsyncGenerator[Frame, None]:
        """Yield the frames of a request while it runs, and add its words to the context."""
        is_silent = True
        try:
            while (chunk := await speech.next_chunk(stream)) is not None:
                if not len(chunk.samples):
                    continue  # a last chunk may have only the finish reason
                await self.stop_ttfb_metrics()
                duration_s = len(chunk.samples) / chunk.sample_rate
                if is_silent:  # the first word begins with the first audible sample
                    silence_s = leading_silence_ms(chunk.samples, chunk.sample_rate) / 1000
                    timer.start_s = speech.audio_s + silence_s
                    is_silent = silence_s >= duration_s
                speech.audio_s += duration_s
                yield TTSAudioRawFrame(chunk.pcm16, chunk.sample_rate, 1, context_id=context_id)
                due = timer.due(speech.audio_s, self._heard_s(context_id))
                await self._push_words(context_id, due)
            if stream.finish_reason == "cancelled" and not speech.is_cancelled:
                raise EngineClosed("The engine was closed while it spoke.")
        except Exception as error:  # run_tts must not raise: that would leave the context open
            for frame in await self._failure(context_id, speech, error):
                yield frame
            return
        finally:
            stream.close()
        await self._push_words(context_id, timer.finish(speech.audio_s))
        self._pace = timer.learned_pace(speech.audio_s)
        if stream.finish_reason != "eos":
            logger.warning(
                f"{self}: speech ended without an end token ({stream.finish_reason}), "
                f"seed {stream.seed}"
            )
        await self._call_event_handler("on_speech_ended", context_id, stream)

    async def _failure(
        self, context_id: str, speech: ContextSpeech, error: Exception
    ) -> Sequence[Frame]:
        """Return the frames that replace audio which could not be made."""
        frames: list[Frame] = []
        if isinstance(error, EngineClosed):
            await self.push_error(str(error), error, force_treat_as_permanent=True)
        else:
            frames.append(ErrorFrame(error=str(error), exception=error, processor=self))
        if not speech.audio_s:
            await self.cancel_ttfb_metrics()
            frames.append(self._silence(context_id, speech))
        return frames

    def _silence(self, context_id: str, speech: ContextSpeech) -> TTSAudioRawFrame:
        rate = self._sound_rate
        speech.audio_s += SILENCE_S
        return TTSAudioRawFrame(bytes(2 * int(rate * SILENCE_S)), rate, 1, context_id=context_id)

    async def _push_words(self, context_id: str, words: Sequence[WordTime]) -> None:
        for word in words:
            await self.add_word_timestamps(
                [(word.word, word.seconds)], context_id, includes_inter_frame_spaces=word.unspaced
            )

    # ---- ends ------------------------------------------------------------------------------------

    async def flush_audio(self, context_id: str | None = None) -> None:
        """End the text of a context, so that the context can end.

        The base class ends a context itself only if its last sentence had audio.

        Args:
            context_id: The context; default: the one that plays, or the turn's.
        """
        context_id = context_id or self.get_active_audio_context_id()
        speech = self._speeches.get(context_id) if context_id else None
        if speech and speech.task:
            await speech.end_text()
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
        speech = self._speeches.pop(context_id, None)
        if speech:
            speech.cancel()
            if speech.task:
                await self.cancel_task(speech.task)

    async def cancel(self, frame: CancelFrame) -> None:
        """Stop all speech at once."""
        for speech in self._speeches.values():
            speech.cancel()
        await super().cancel(frame)

    async def cleanup(self) -> None:
        """Release all speech."""
        for context_id in list(self._speeches):
            await self._drop_speech(context_id)
        await super().cleanup()
