"""The bodies that clients send, and the engine's options that they ask for."""

import json
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from qwen_megakernel.errors import TextTooLong, UsageError
from qwen_megakernel.records import MAX_FACTOR, MAX_TOP_K, MIN_FACTOR
from qwen_megakernel.server.error_responses import ApiError
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.server.voices import VoiceStore
from qwen_megakernel.text.cleaning import MAX_CHARS
from qwen_megakernel.voice import Voice

# OpenAI's names of models, which clients have built in; here they mean the loaded model.
MODEL_ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")

MIN_NEW_TOKENS = 2  # the last token is not a frame, and the first two never end the speech
MAX_FIRST_CHUNK_FRAMES = 10  # the engine's chunk_frames, to which chunks grow
_MAX_SIDE_CHARS = 4096  # in instructions and transcripts

Format = Literal["wav", "pcm", "flac", "mp3", "opus", "aac"]


class VoiceId(BaseModel):
    """A voice by its id, the newer of OpenAI's two forms."""

    id: str


def _name_or_id(value: Any, validate: ValidatorFunctionWrapHandler) -> str | VoiceId:
    """Raise one error instead of pydantic's one for each form, whose names no client knows."""
    try:
        return validate(value)
    except ValidationError as error:
        raise PydanticCustomError("voice_type", "no voice") from error


class SpeechSettings(BaseModel):
    """How to speak: the fields that the HTTP body and the WebSocket's session.config share."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str | None = Field(None, description="The model's name, or one of OpenAI's.")
    voice: Annotated[str | VoiceId | None, WrapValidator(_name_or_id)] = Field(
        None, description="An id from GET /v1/audio/voices."
    )
    instructions: str | None = Field(None, max_length=_MAX_SIDE_CHARS)
    response_format: Format | None = Field(None, description="Absent: the server's default.")
    speed: float = Field(1.0, description="Only 1: the model speaks at its own pace.")
    sample_rate: int | None = Field(None, description="Only the model's own samples per second.")
    language: str | None = Field(None, max_length=64, description='A name, a code, or "auto".')
    seed: int | None = Field(None, ge=0, lt=2**64)
    do_sample: bool | None = Field(None, description="false: take the likeliest codes (greedy).")
    temperature: float | None = Field(None, ge=MIN_FACTOR, le=MAX_FACTOR)
    top_k: int | None = Field(None, ge=0, le=MAX_TOP_K)
    top_p: float | None = Field(None, gt=0, le=1)
    repetition_penalty: float | None = Field(None, ge=MIN_FACTOR, le=MAX_FACTOR)
    max_new_tokens: int | None = Field(None, ge=MIN_NEW_TOKENS, description="Most frames + 1.")
    ref_audio: str | None = Field(None, description="A recording to clone, in base64.")
    ref_text: str | None = Field(None, max_length=_MAX_SIDE_CHARS)
    x_vector_only_mode: bool | None = None
    non_streaming_mode: bool | None = Field(None, description="true: read all text first.")
    first_chunk_frames: int | None = Field(None, ge=1, le=MAX_FIRST_CHUNK_FRAMES)

    def warnings(self) -> list[str]:
        """Return warnings about fields that have no effect."""
        extras = sorted(self.model_extra or {})
        if not extras:
            return []
        names = ", ".join(json.dumps(name)[:40] for name in extras[:10])
        return [f"ignored: {names}" + (", ..." if len(extras) > 10 else "")]

    def format_or(self, settings: ServerSettings) -> str:
        """Return the response format, or the server's default."""
        return self.response_format or settings.default_format


class SpeechBody(SpeechSettings):
    """The body of POST /v1/audio/speech."""

    input: str = Field(description="The text to speak.")
    stream_format: Literal["audio", "sse"] | None = Field(None, description="Absent: audio.")
    stream: bool | None = Field(
        None, description="true: all events; false: one answer with its length."
    )
    event_format: Literal["phases"] | None = Field(
        None, description="With stream true: events of phases alone, and the audio at the end."
    )
    include_codes: bool = Field(False, description="Add the codec frames to events with audio.")

    def check_events(self) -> None:
        """Refuse fields that exclude events of phases.

        Raises:
            ApiError: 400; names the field.
        """
        if self.event_format is None:
            return
        for name, is_bad, hint in (
            ("stream", self.stream is not True, "These events need true."),
            ("stream_format", self.stream_format is not None, "Leave it out."),
            ("response_format", self.response_format not in (None, "wav"), "The audio is WAV."),
            ("include_codes", self.include_codes, "These events carry no codes."),
        ):
            if is_bad:
                value = json.dumps(getattr(self, name))
                error = UsageError(f'{name} is {value} and event_format is "phases".', hint)
                raise ApiError.about(name, error)


class SessionConfig(SpeechSettings):
    """The fields of the WebSocket's session.config besides `type`."""

    stream_audio: bool = True  # false: one message with all audio of an utterance


async def engine_options(
    body: SpeechSettings, voices: VoiceStore, model_name: str, sample_rate: int
) -> tuple[dict[str, Any], list[str]]:
    """Return keyword arguments for `TTSEngine.stream`, and warnings.

    Args:
        body: what the client asks for.
        voices: the engine's voices.
        model_name, sample_rate: the loaded model's.
    Raises:
        ApiError: 404, the model is not loaded; 400, values exclude each other.
        QwenTTSError: the voice or its recording is refused.
    """
    if body.model is not None:
        check_model(body.model, model_name)
    if body.speed != 1:
        error = UsageError(
            f"speed is {body.speed:g}; only 1 is supported.",
            "The model speaks at its own pace.",
            "Leave speed out, and change the speed in the player.",
        )
        raise ApiError.about("speed", error)
    if body.sample_rate not in (None, sample_rate):
        error = UsageError(
            f"sample_rate is {body.sample_rate}; only {sample_rate} is supported.",
            "The model makes audio at that rate.",
            "Leave sample_rate out, and resample what you receive.",
        )
        raise ApiError.about("sample_rate", error)
    warnings = body.warnings()
    name = body.voice.id if isinstance(body.voice, VoiceId) else body.voice
    voice: str | Voice | None
    if body.ref_audio is not None:
        voice, warning = (
            await _clone(body, body.ref_audio, voices),
            "voice is ignored: ref_audio is given" if name else None,
        )
    elif body.ref_text is not None:
        error = UsageError("ref_text is the transcript of ref_audio, which is missing.")
        raise ApiError.about("ref_text", error)
    else:
        voice, warning = voices.find(name, x_vector_only=bool(body.x_vector_only_mode))
    warnings += [warning] if warning else []
    feeds = {None: "auto", True: "full", False: "stepwise"}
    options = {
        "voice": voice,
        "language": body.language or "auto",
        "instruct": body.instructions,
        "seed": body.seed,
        "max_frames": None if body.max_new_tokens is None else body.max_new_tokens - 1,
        "text_feed": feeds[body.non_streaming_mode],
        "first_chunk_frames": body.first_chunk_frames or 1,
        "chunk_frames": MAX_FIRST_CHUNK_FRAMES,
    }
    for knob in ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty"):
        options[knob] = getattr(body, knob)
    options["subtalker_do_sample"] = body.do_sample
    return options, warnings


def check_length(num_chars: int, settings: ServerSettings) -> None:
    """Refuse text that is too long.

    Raises:
        TextTooLong: the text has more than `max_chars` characters.
    """
    if num_chars > settings.max_chars:
        or_raise = ", or raise the server's --max-chars" if settings.max_chars < MAX_CHARS else ""
        raise TextTooLong(
            f"{num_chars} characters; limit {settings.max_chars}.",
            hint=f"Split the input{or_raise}.",
        )


def check_model(name: str, loaded: str) -> None:
    """Refuse a model that is not the loaded one.

    Raises:
        ApiError: 404; names the loaded model.
    """
    known = {loaded.lower(), loaded.rpartition("/")[2].lower(), *MODEL_ALIASES}
    if name.lower() not in known:
        raise ApiError(
            404,
            f'The model "{name[:80]}" does not exist. This server has: {loaded}.',
            code="model_not_found",
            param="model",
        )


async def _clone(body: SpeechSettings, recording: str, voices: VoiceStore) -> Voice:
    if body.x_vector_only_mode is False and body.ref_text is None:
        error = UsageError(
            "x_vector_only_mode is false, but ref_text is missing.",
            "In-context cloning needs the exact transcript of the recording.",
        )
        raise ApiError.about("ref_text", error)
    transcript = None if body.x_vector_only_mode else body.ref_text
    return await voices.clone(voices.decode_reference(recording), transcript, "reference")
