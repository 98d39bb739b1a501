"""Pipecat's TTS service: a `TTSEngine` at the end of a voice agent's pipeline.

Needs pipecat-ai 1.14 (`pip install "qwen_megakernel[pipecat]"`). Some of its base class's behaviour
has to be worked around, with private members of it; where that happens the comment says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from loguru import logger
from pipecat.frames.frames import CancelFrame, ErrorFrame, Frame, TTSAudioRawFrame
from pipecat.services.settings import TTSSettings
from pipecat.transcriptions.language import Language
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.text.simple_text_aggregator import SimpleTextAggregator
from pipecat.utils.tracing.service_decorators import traced_tts
from pipecat.utils.types import is_given

from qwen_megakernel.audio import leading_silence_ms
from qwen_megakernel.errors import (
    EmptyText,
    EngineBusy,
    EngineClosed,
    QwenTTSError,
    TextTooLong,
    UnknownLanguage,
    UsageError,
)
from qwen_megakernel.languages import AUTO, resolve_language
from qwen_megakernel.pipecat_base import InProcessTTSService
from qwen_megakernel.pipecat_settings import (
    MegakernelTTSSettings,
    WordAggregator,
    as_language,
)
from qwen_megakernel.pipecat_speech import ContextSpeech
from qwen_megakernel.sentences import unspeakable
from qwen_megakernel.utterance import Sampling, SpeechRequest
from qwen_megakernel.voice import Voice
from qwen_megakernel.word_times import DEFAULT_PACE, WordTime, WordTimer

if TYPE_CHECKING:
    from qwen_megakernel.speech_engine import SpeechEngine
    from qwen_megakernel.speech_stream import SpeechStream

# What stands for text without sound, and for speech that failed before its first sample. The base
# class writes a service off after three contexts without any audio.
SILENCE_S = 0.08


class MegakernelTTSService(InProcessTTSService):
    """Speaks the text of a pipeline with Qwen3-TTS, in this process.

    Audio leaves while the rest is still being generated. Frames are 16-bit mono at the model's
    24 kHz, whatever the transport plays: transports resample, and flush their resampler at the end
    of speech.

    Event handlers:
        on_speech_ended: Called with the context id and the `SpeechStream` of a request that has
            ended by itself; the stream tells `finish_reason`, `seed`, `codes` and `timings`.

    Example::

        engine = TTSEngine.from_pretrained("Qwen/Qwen3-TTS-12Hz-0.6B-Base", num_slots=4)
        tts = MegakernelTTSService(
            engine=engine,  # shared by all pipelines of the process
            settings=MegakernelTTSService.Settings(language=Language.EN, seed=7),
        )
    """

    Settings = MegakernelTTSSettings
    _settings: MegakernelTTSSettings

    def __init__(
        self,
        *,
        model_path: str | None = None,
        engine: SpeechEngine | None = None,
        voices: Mapping[str, Voice] | None = None,
        first_chunk_frames: int = 1,
        chunk_frames: int = 10,
        engine_timeout_s: float = 30.0,
        stop_frame_timeout_s: float = 35.0,
        settings: MegakernelTTSSettings | None = None,
        **kwargs: Any,
    ):
        """Initialize the service; without `engine` this loads a model, which takes seconds.

        Make the service before the pipeline runs: setting up a pipeline is limited to 20 s.

        Args:
            model_path: Hub id, folder or built-in name of the model to load. The service closes
                an engine that it made. Default: the 0.6B Base model.
            engine: The engine to use instead. It may be shared and is left open.
            voices: Voices by names that `settings.voice` may have, besides those of the engine.
            first_chunk_frames: Frames of 80 ms in the first chunk of a request.
            chunk_frames: Frames in later chunks; chunks double from the first to this.
            engine_timeout_s: A request that the engine leaves without audio for so long has failed.
            stop_frame_timeout_s: A turn left without text and audio for so long is over. Longer
                than `engine_timeout_s`, or audio could follow the end of its turn.
            settings: Voice, language and whatever else may change later.
            **kwargs: For `TTSService`. `text_aggregation_mode` makes each sentence a request
                (SENTENCE, the default) or each turn one that speaks while its text still arrives
                (TOKEN; turns of an in-context voice are spoken by the sentence all the same).

        Raises:
            UsageError: An argument or a setting can never work.
            ModelFilesError: The model cannot be loaded.
        """
        if model_path is not None and engine is not None:
            raise UsageError("Give model_path or engine, not both.")
        if stop_frame_timeout_s <= engine_timeout_s:
            raise UsageError(
                f"stop_frame_timeout_s is {stop_frame_timeout_s} and engine_timeout_s "
                f"{engine_timeout_s}; the first must be longer."
            )
        self._owned_engine: SpeechEngine | None = None
        if engine is None:
            from qwen_megakernel import families  # brings torch

            engine = self._owned_engine = families.load_engine(model_path)
        self._engine = engine
        self._voices = dict(voices or {})
        self._chunking = {"first_chunk_frames": first_chunk_frames, "chunk_frames": chunk_frames}
        self._engine_timeout_s = engine_timeout_s
        self._speeches: dict[str, ContextSpeech] = {}  # by context id
        self._pace = DEFAULT_PACE

        store = self.Settings.defaults(engine.files.name)
        if settings is not None:
            store.apply_update(settings)
        store.language = as_language(store.language)
        super().__init__(
            push_text_frames=False,  # words are pushed as they are heard
            push_start_frame=True,
            push_stop_frames=True,
            stop_frame_timeout_s=stop_frame_timeout_s,
            sample_rate=engine.sample_rate,
            settings=store,
            **kwargs,
        )
        self._register_event_handler("on_speech_ended")
        if self._is_streaming_tokens:
            self._text_aggregator = WordAggregator(language=self.text_aggregation_language)
        try:
            self._voice = self._check(self._settings)
        except QwenTTSError:
            if self._owned_engine:
                self._owned_engine.close()
            raise

    def can_generate_metrics(self) -> bool:
        """Whether the service reports metrics: it does."""
        return True

    # ---- settings --------------------------------------------------------------------------------

    def language_to_service_language(self, language: Language) -> str:
        """The model's name of a language; "auto" for one that it does not speak."""
        try:
            return resolve_language(language.value, self._engine.languages)
        except UnknownLanguage:
            logger.warning(f"{self}: the model does not speak {language.value}, using {AUTO!r}")
            return AUTO

    async def _update_settings(self, delta: TTSSettings) -> dict[str, Any]:
        """Apply new settings, all of them or none; returns what they were before.

        In TOKEN mode a turn is one request, so what follows in the turn is spoken in a context of
        its own.
        """
        if is_given(delta.language):
            delta.language = as_language(delta.language)
        wanted = self._settings.copy()
        wanted.apply_update(delta)
        wanted.language = self._service_language(wanted.language)
        try:
            voice = await asyncio.to_thread(self._check, wanted)  # may read a voice file
        except QwenTTSError as error:
            # The service works on with its old settings, so this costs it nothing.
            await self.push_error(
                f"Settings not changed: {error}", error, category=ErrorCategory.APPLICATION
            )
            return {}
        changed = await super()._update_settings(delta)
        self._warn_unhandled_updated_settings(changed.keys() & {"model"})
        if changed.keys() - {"model"}:
            self._voice = voice
            self._pace = DEFAULT_PACE
            if self._is_streaming_tokens:
                await self._rotate_turn()
        return changed

    def _check(self, settings: MegakernelTTSSettings) -> str | Voice | None:
        """Make sure that requests can be made of these settings; finds their voice."""
        voice = self._engine.find_voice(self._voices.get(settings.voice, settings.voice))
        resolve_language(settings.language, self._engine.languages)
        SpeechRequest(
            text=None,
            sampling=Sampling().override(**settings.sampling_knobs),
            seed=settings.seed or 0,
            max_frames=settings.max_frames,
            text_feed=settings.text_feed or "auto",
            **self._chunking,
        )
        if self._is_streaming_tokens and isinstance(voice, Voice) and voice.in_context:
            logger.warning(
                f"{self}: {voice.name!r} is an in-context voice, whose prompt holds the text to "
                "speak. TOKEN mode speaks it sentence by sentence."
            )
        return voice

    async def _rotate_turn(self) -> None:
        """End the current turn's request; more text of the turn goes to a new context."""
        context_id = self._turn_context_id
        if context_id is None or not self.audio_context_available(context_id):
            return
        # Without this the words of an unfinished sentence would never reach the conversation.
        await self._push_sequencer_frames(
            await self._aggregated_frame_sequencer.finalize(context_id), context_id
        )
        await self.flush_audio(context_id)
        self._turn_context_id = None
        self._turn_context_id = self.create_context_id()

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
            return  # leftover text that comes behind the EndFrame: nobody would hear it
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
        timer = WordTimer(self._pace, speech.audio_s)
        timer.add(text)
        if unspeakable(text):
            yield self._silence(context_id, speech)
            await self._tell_words(context_id, timer.finish(speech.audio_s))
            return
        try:
            speech.stream = self._open_stream(text)
        except Exception as error:  # run_tts must not raise: that would leave the context open
            for frame in await self._failure(context_id, speech, error):
                yield frame
            return
        async for frame in self._say_stream(context_id, speech, timer):
            yield frame

    async def _take_words(
        self, context_id: str, speech: ContextSpeech, text: str
    ) -> AsyncGenerator[Frame | None, None]:
        """Give words to the request of their turn; the first one opens it."""
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
        except Exception as error:  # run_tts must not raise, see above
            await speech.end_text()
            for frame in await self._failure(context_id, speech, error):
                yield frame
        yield None  # the audio comes through the context

    def _begin_turn(self, context_id: str, speech: ContextSpeech) -> None:
        if isinstance(self._voice, Voice) and self._voice.in_context:
            speech.sentences = SimpleTextAggregator(language=self.text_aggregation_language)
            frames = self._say_requests(context_id, speech)
        else:
            speech.timer = WordTimer(self._pace)
            speech.stream = self._open_stream(None)
            frames = self._say_stream(context_id, speech, speech.timer)
        speech.task = self.create_task(self._speak_turn(context_id, speech, frames))

    async def _speak_turn(
        self, context_id: str, speech: ContextSpeech, frames: AsyncIterator[Frame]
    ) -> None:
        async for frame in frames:
            await self.append_to_audio_context(context_id, frame)
        # Speech may end before its text does (a limit, an error). Text in a closed context would
        # open it again.
        await speech.text_ended.wait()
        await self.remove_audio_context(context_id)

    async def _say_requests(
        self, context_id: str, speech: ContextSpeech
    ) -> AsyncGenerator[Frame, None]:
        while (text := await speech.requests.get()) is not None:
            async for frame in self._say_sentence(context_id, speech, text):
                yield frame

    def _open_stream(self, text: str | None) -> SpeechStream:
        settings = self._settings
        return self._engine.stream(
            text,
            text_open=text is None,
            voice=self._voice,
            language=settings.language,
            instruct=settings.instruct,
            seed=settings.seed,
            max_frames=settings.max_frames,
            text_feed=settings.text_feed or "auto",
            **self._chunking,
            **settings.sampling_knobs,
        )

    async def _say_stream(
        self, context_id: str, speech: ContextSpeech, timer: WordTimer
    ) -> AsyncGenerator[Frame, None]:
        """Frames of the speech's request, while it runs; tells the context its words."""
        stream, is_silent = speech.stream, True
        try:
            while (chunk := await speech.next_chunk()) is not None:
                if not len(chunk.samples):
                    continue  # a last chunk may carry only the reason
                await self.stop_ttfb_metrics()
                duration_s = len(chunk.samples) / chunk.sample_rate
                if is_silent:  # the first word begins where something can be heard
                    silence_s = leading_silence_ms(chunk.samples, chunk.sample_rate) / 1000
                    timer.start_s = speech.audio_s + silence_s
                    is_silent = silence_s >= duration_s
                speech.audio_s += duration_s
                yield TTSAudioRawFrame(chunk.pcm16, chunk.sample_rate, 1, context_id=context_id)
                due = timer.due(speech.audio_s, self._heard_s(context_id))
                await self._tell_words(context_id, due)
            if stream.finish_reason == "cancelled" and not speech.is_cancelled:
                raise EngineClosed("The engine was closed while it spoke.")
        except Exception as error:  # run_tts must not raise, see above
            for frame in await self._failure(context_id, speech, error):
                yield frame
            return
        finally:
            stream.close()
        await self._tell_words(context_id, timer.finish(speech.audio_s))
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
        """What a context holds instead of audio that could not be made."""
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
        rate = self._engine.sample_rate
        speech.audio_s += SILENCE_S
        return TTSAudioRawFrame(bytes(2 * int(rate * SILENCE_S)), rate, 1, context_id=context_id)

    def _classify_error(self, exception: Exception) -> ErrorCategory | None:
        """What an error says about the next request; INVALID_REQUEST is permanent."""
        if isinstance(exception, (EmptyText, TextTooLong)):
            return ErrorCategory.APPLICATION  # other texts work
        if isinstance(exception, UsageError):
            return ErrorCategory.INVALID_REQUEST  # only other settings help
        if isinstance(exception, EngineBusy):
            return ErrorCategory.RATE_LIMIT
        if isinstance(exception, QwenTTSError):
            return ErrorCategory.SERVER
        return None

    # ---- ends ------------------------------------------------------------------------------------

    async def flush_audio(self, context_id: str | None = None) -> None:
        """No more text comes in this context: let it end.

        The base class ends a context itself only where the last sentence had audio of its own.

        Args:
            context_id: The context; default: the one that plays, or the turn's.
        """
        context_id = context_id or self.get_active_audio_context_id()
        speech = self._speeches.get(context_id)
        if speech and speech.task:
            await speech.end_text()
        elif context_id and self.audio_context_available(context_id):
            if speech and speech.unspoken and not speech.audio_s:
                await self.append_to_audio_context(context_id, self._silence(context_id, speech))
            await self.remove_audio_context(context_id)

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Stop the engine's work for an interrupted context.

        A cancelled `run_tts` has done so already; but there is none where it has returned (TOKEN
        mode), or while a frame is processed that cannot be interrupted.
        """
        await self._drop_speech(context_id)
        await super().on_audio_context_interrupted(context_id)

    async def on_audio_context_completed(self, context_id: str) -> None:
        """Forget a context that has played out, or was given up after `stop_frame_timeout_s`."""
        await self._drop_speech(context_id)
        await super().on_audio_context_completed(context_id)

    async def _drop_speech(self, context_id: str) -> None:
        speech = self._speeches.pop(context_id, None)
        if speech:
            speech.cancel()
            if speech.task:
                await self.cancel_task(speech.task)

    async def cancel(self, frame: CancelFrame) -> None:
        """Stop at once.

        Args:
            frame: The cancel frame.
        """
        for speech in self._speeches.values():
            speech.cancel()
        await super().cancel(frame)

    async def cleanup(self) -> None:
        """Release everything; an engine that the service made is closed."""
        for context_id in list(self._speeches):
            await self._drop_speech(context_id)
        await super().cleanup()
        if self._owned_engine:
            await asyncio.to_thread(self._owned_engine.close)  # waits for its thread

    async def _tell_words(self, context_id: str, words: Sequence[WordTime]) -> None:
        for word in words:
            await self.add_word_timestamps(
                [(word.word, word.seconds)],
                context_id,
                includes_inter_frame_spaces=word.unspaced,
            )
