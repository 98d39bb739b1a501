"""The TTS service for Pipecat: a `TTSEngine` in a voice agent's pipeline.

Needs pipecat-ai 1.14, which the extra `pipecat` brings. This module has the service that callers
make and configure; `contexts` makes the speech, `base` corrects Pipecat's base class.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from loguru import logger
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TextAggregationMode
from pipecat.transcriptions.language import Language
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.types import is_given

from qwen_megakernel.choices import DEFAULT_MODEL
from qwen_megakernel.cloning.mixing import mix_of
from qwen_megakernel.errors import (
    EmptyText,
    EngineBusy,
    MarkupError,
    QwenTTSError,
    TextTooLong,
    UnknownLanguage,
    UnknownVoice,
    UsageError,
    check_choice,
    check_seconds,
    check_type,
    did_you_mean,
    listed,
)
from qwen_megakernel.pipecat.base import base_arguments
from qwen_megakernel.pipecat.contexts import ContextTTSService
from qwen_megakernel.pipecat.settings import (
    MegakernelTTSSettings,
    SentenceAggregator,
    WordAggregator,
    as_language,
)
from qwen_megakernel.speech_options import SoundOptions, SpeechOptions, check_text
from qwen_megakernel.text.languages import AUTO, resolve_language
from qwen_megakernel.text.reading.lexicon import Lexicon
from qwen_megakernel.voice import Voice

# Hints for arguments of other services and of the base class that this service refuses.
HINTS = {
    "model": "Name it with model_path=.",
    "voice_id": "Give settings=MegakernelTTSService.Settings(voice=...).",
    **dict.fromkeys(
        ("push_text_frames", "push_start_frame", "push_stop_frames"),
        "Leave it out: the service itself pushes words, starts and stops.",
    ),
    "reuse_context_id_within_turn": "Leave it out: the sentences of a turn share a context.",
}

if TYPE_CHECKING:
    from qwen_megakernel.engine.conversation import Conversation
    from qwen_megakernel.engine.speech_engine import SpeechEngine
    from qwen_megakernel.engine.stream import SpeechStream


class MegakernelTTSService(ContextTTSService):
    """Speaks the text of a pipeline with Qwen3-TTS, in this process.

    It sends audio while the engine generates the rest. Frames are 16-bit mono at the model's
    24 kHz, or at `sample_rate`; transports resample them, and flush their resampler at the end of
    speech.

    Event handlers:
        on_speech_ended: Called with the context id and the `SpeechStream` of a request that was
            not cancelled; the stream has `finish_reason`, `seed`, `codes` and `timings`.

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
        adapter: str | None = None,
        engine: SpeechEngine | None = None,
        voices: Mapping[str, Voice] | None = None,
        first_chunk_frames: int = 1,
        chunk_frames: int = 10,
        sample_rate: int | None = None,
        engine_timeout_s: float = 30.0,
        stop_frame_timeout_s: float = 35.0,
        settings: MegakernelTTSSettings | None = None,
        **kwargs: Any,
    ):
        """Initialize the service; without `engine` this loads a model, which takes seconds.

        Make the service before the pipeline runs: Pipecat allows 20 s to set up a pipeline.

        Args:
            model_path: Hub id, folder or built-in name of the model to load. The service closes
                an engine that it made. Default: the 0.6B Base model.
            adapter: Folder of a voice of `train run`, merged with its base model, `model_path`.
            engine: The engine to use instead. It may be shared and is left open.
            voices: Voices by name for `settings.voice`, besides the engine's own.
            first_chunk_frames: Frames of 80 ms in the first chunk of a request.
            chunk_frames: Frames in the longest chunks; each chunk doubles the one before.
            sample_rate: Samples per second of the frames, 8000 to 48000. Default: the model's.
            engine_timeout_s: Seconds without audio after which a request has failed.
            stop_frame_timeout_s: Seconds without text and audio after which a turn is over. Must
                be longer than `engine_timeout_s`, or audio could follow the end of its turn.
            settings: Voice, language and the other settings that may change later.
            **kwargs: For `TTSService`. `text_aggregation_mode` makes each sentence a request
                (SENTENCE, the default) or each turn, spoken while its text still arrives (TOKEN;
                an in-context voice speaks each sentence by itself in both modes).

        Raises:
            UsageError: An argument or a setting is wrong.
            ModelFilesError: The model cannot be loaded.
        """
        if adapter is not None and engine is not None:
            raise UsageError("Give adapter or engine, not both.")
        self._check_arguments(model_path, engine, settings, kwargs)
        loaded = f"engine=TTSEngine.from_pretrained(..., voices={voices!r})"
        hint = f"A folder of voices belongs to the engine: {loaded}"
        check_type("voices", voices, Mapping | None, "a dict of voices by name", hint)
        hint = "Give Voice.load(FILE). Files and the engine's own names go into settings.voice."
        for name, voice in (voices or {}).items():
            check_type(f"voices[{name!r}]", voice, Voice, "a Voice", hint)
        SoundOptions(sample_rate=sample_rate)
        check_seconds(engine_timeout_s=engine_timeout_s, stop_frame_timeout_s=stop_frame_timeout_s)
        if stop_frame_timeout_s <= engine_timeout_s:
            raise UsageError(
                f"stop_frame_timeout_s is {stop_frame_timeout_s} and engine_timeout_s "
                f"{engine_timeout_s}; the first must be longer."
            )
        self._owned_engine: SpeechEngine | None = None
        self._chunking: dict[str, Any] = {
            "first_chunk_frames": first_chunk_frames,
            "chunk_frames": chunk_frames,
        }
        # Before a model is loaded:
        self._check_values(self.Settings.stored(settings, model_path or DEFAULT_MODEL))
        if engine is None:
            from qwen_megakernel import families  # brings torch

            engine = self._owned_engine = families.load_engine(model_path, adapter=adapter)
        self._voices = dict(voices or {})
        self._unspoken: set[Language] = set()  # languages that a warning has named

        store = self.Settings.stored(settings, engine.files.name)
        store.language = as_language(store.language)
        super().__init__(
            engine=engine,
            sample_rate=sample_rate or engine.sample_rate,
            engine_timeout_s=engine_timeout_s,
            stop_frame_timeout_s=stop_frame_timeout_s,
            settings=store,
            **kwargs,
        )
        holder = WordAggregator if self._is_streaming_tokens else SentenceAggregator
        # Pipecat calls only the methods of BaseTextAggregator.
        self._text_aggregator = holder(  # type: ignore[assignment]
            language=self.text_aggregation_language
        )
        try:
            self._voice = self._check(self._settings)
        except QwenTTSError:
            if self._owned_engine:
                self._owned_engine.close()
            raise

    def _check_arguments(
        self,
        model_path: str | None,
        engine: SpeechEngine | None,
        settings: MegakernelTTSSettings | None,
        others: dict[str, Any],
    ) -> None:
        """Refuse arguments that this service does not take, before a model is loaded."""
        if model_path is not None and engine is not None:
            raise UsageError("Give model_path or engine, not both.")
        if engine is not None and not hasattr(engine, "stream"):
            raise UsageError(
                f"engine is {engine!r}; it must be an engine, such as a TTSEngine.",
                hint="Name a model with model_path=.",
            )
        made = "MegakernelTTSService.Settings(...)"
        check_type("settings", settings, TTSSettings | None, made)
        refused = (others.keys() - base_arguments()) | (others.keys() & HINTS.keys())
        if refused:
            name = min(refused)
            known = {field.name for field in fields(self.Settings)}
            in_settings = f"Give settings=MegakernelTTSService.Settings({name}=...)."
            hint = HINTS.get(name, in_settings if name in known else "")
            raise UsageError(f"MegakernelTTSService takes no {name}.", hint=hint)
        if (mode := others.get("text_aggregation_mode")) is not None:
            check_choice("text_aggregation_mode", mode, [*TextAggregationMode])

    def can_generate_metrics(self) -> bool:
        return True

    # ---- settings --------------------------------------------------------------------------------

    def language_to_service_language(self, language: Language) -> str:
        """Return the model's name of a language; "auto" for a language that it does not speak."""
        try:
            return resolve_language(language.value, self._engine.languages)
        except UnknownLanguage:
            if language not in self._unspoken:  # this method runs for every change of settings
                self._unspoken.add(language)
                logger.warning(f"{self}: the model does not speak {language.value}, using {AUTO!r}")
            return AUTO

    # TTSService changes the type of its base's argument, too.
    async def _update_settings(self, delta: TTSSettings) -> dict[str, Any]:  # type: ignore[override]
        """Apply new settings, all of them or none; returns the old values of those that changed.

        In TOKEN mode a turn is one request, so the rest of the turn is spoken in a new context.
        """
        for name in delta.extra:  # of a frame whose settings are a dict
            hint = did_you_mean(name, self._settings.given_fields())
            logger.warning(f"{self}: setting ignored: {name}. {hint}")
        wanted = self._settings.copy()
        try:
            if is_given(delta.language):
                check_text(language=delta.language)
                delta.language = as_language(delta.language)
            TTSSettings.apply_update(wanted, delta)
            wanted.language = self._service_language(as_language(wanted.language))
            voice = await asyncio.to_thread(self._check, wanted)  # may read a voice file
        except QwenTTSError as error:
            # The service goes on with its old settings, so the error must not count against it.
            await self.push_error(
                f"Settings not changed: {error}", error, category=ErrorCategory.APPLICATION
            )
            return {}
        had_markup = self._has_markup
        changed = await super()._update_settings(delta)
        self._warn_unhandled_updated_settings(changed.keys() & {"model"})
        if changed.keys() - {"model"}:
            self._voice = voice
            # The rest of a turn with markup may close what its beginning has opened.
            ends_turn = (self._is_streaming_tokens or had_markup) and not (
                had_markup and self._has_markup
            )
            if ends_turn and self._turn_context_id:  # the rest goes to a new context
                await self._end_text(self._turn_context_id)
                self._turn_context_id = None
                self._turn_context_id = self.create_context_id()
        return changed

    def _check(self, settings: MegakernelTTSSettings) -> str | Voice | None:
        """Return the voice of these settings; raise an error if a request with them would fail."""
        lexicon, options = self._check_values(settings), settings.stream_options
        try:
            voice = self._engine.find_voice(self._named(options["voice"]), options["style"])
        except UnknownVoice as error:
            own = f"The service's own voices: {listed(self._voices, str(options['voice']))}."
            raise UnknownVoice(error.what, own, error.hint) from error
        resolve_language(options["language"], self._engine.languages)
        if options["continuity"] == "context":
            self._engine.check_continuity()
        self._lexicon = lexicon
        return voice

    def _check_values(self, settings: MegakernelTTSSettings) -> Lexicon | None:
        """Return the lexicon of these settings; raise UsageError for a value that cannot work."""
        options = settings.stream_options | self._chunking
        SpeechOptions().override(**options)
        return Lexicon.of(options["lexicon"])

    # ---- requests --------------------------------------------------------------------------------

    def _open_stream(self, text: str | None, conversation: Conversation) -> SpeechStream:
        options = self._settings.stream_options | self._chunking
        if options["continuity"] == "context":
            options["conversation"] = conversation
        options |= {"voice": self._voice, "lexicon": self._lexicon}
        options |= {"find_voice": self._named, "sample_rate": self._sound_rate}
        return self._engine.stream(text, text_open=text is None, **options)

    def _named(self, name: Any) -> str | Voice:
        """Return the service's own voice of a name, or a mix with one; others as they are."""
        name, own = os.fspath(name) if isinstance(name, os.PathLike) else name, self._voices
        if not isinstance(name, str):
            return name
        if "+" in name and name not in own and any(each in name for each in own):
            return mix_of(name, lambda each: self._engine.find_voice(self._named(each))) or name
        return own.get(name, name)

    @property
    def _has_markup(self) -> bool:
        return self._settings.stream_options["text_format"] not in (None, "plain")

    def _classify_error(self, exception: Exception) -> ErrorCategory | None:
        """Return the category of an error; INVALID_REQUEST is permanent."""
        if isinstance(exception, (EmptyText, TextTooLong, MarkupError)):
            return ErrorCategory.APPLICATION  # other texts work
        if isinstance(exception, UsageError):
            return ErrorCategory.INVALID_REQUEST  # fails until the settings change
        if isinstance(exception, EngineBusy):
            return ErrorCategory.RATE_LIMIT
        if isinstance(exception, QwenTTSError):
            return ErrorCategory.SERVER
        return None

    # ---- ends ------------------------------------------------------------------------------------

    async def cleanup(self) -> None:
        """Release all resources; closes an engine that the service made."""
        await super().cleanup()
        if self._owned_engine:
            await asyncio.to_thread(self._owned_engine.close)  # waits for its thread
