"""The bodies that clients send, and their translation to options of the engine."""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from qwen_megakernel.choices import TELEPHONE_RATE
from qwen_megakernel.errors import TextTooLong, UsageError
from qwen_megakernel.records import (
    MAX_FACTOR,
    MAX_LOUDNESS,
    MAX_SAMPLE_RATE,
    MAX_SILENCE,
    MAX_SPEED,
    MAX_TOP_K,
    MAX_VOLUME,
    MIN_FACTOR,
    MIN_LOUDNESS,
    MIN_SAMPLE_RATE,
    MIN_SPEED,
    MIN_VOLUME,
    SoundOptions,
)
from qwen_megakernel.server.error_responses import ApiError
from qwen_megakernel.server.settings import SAMPLE_RATES, ServerSettings
from qwen_megakernel.server.voices import VoiceStore
from qwen_megakernel.sound.loudness import check_loudness
from qwen_megakernel.text.cleaning import MAX_CHARS
from qwen_megakernel.text.reading.lexicon import Lexicon
from qwen_megakernel.voice import Voice

# OpenAI's names of models, which clients have built in; here they mean the loaded model.
MODEL_ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
# The same with the date of a release: gpt-4o-mini-tts-2025-12-15, tts-1-1106.
_DATED_ALIAS = re.compile(rf"(?:{'|'.join(MODEL_ALIASES)})-(?:\d{{4}}-\d\d-\d\d|\d{{4}})", re.ASCII)

MIN_NEW_TOKENS = 2  # the last token is not a frame, and the first two never end the speech
MAX_FIRST_CHUNK_FRAMES = 10  # the engine's chunk_frames: chunks grow to this length
MAX_LEXICON_WORDS = 1000  # for each request
_MAX_SIDE_CHARS = 4096  # in instructions and transcripts
_MAX_NAME_CHARS = 256  # in the name of a voice; no model has a longer one
MAX_JSON_VALUES = 16_384  # in a body or message; a larger one would delay all streams
_JSON_MARKS = ",[{"

Format = Literal["wav", "pcm", "flac", "mp3", "opus", "aac", "ulaw", "alaw"]


class VoiceId(BaseModel):
    """A voice by its id, the newer of OpenAI's two forms."""

    id: str = Field(max_length=_MAX_NAME_CHARS)


def _name_or_id(value: Any, validate: ValidatorFunctionWrapHandler) -> str | VoiceId:
    """Validate a voice; raise one error instead of pydantic's, whose names no client knows."""
    if isinstance(value, str) and len(value) > _MAX_NAME_CHARS:
        raise PydanticKnownError("string_too_long", {"max_length": _MAX_NAME_CHARS})
    try:
        return validate(value)
    except ValidationError as error:
        raise PydanticCustomError("voice_type", "no voice") from error


def _few_words(lexicon: Any) -> Any:
    """Refuse a lexicon that is too long, before pydantic reports every wrong word of it."""
    if isinstance(lexicon, dict) and len(lexicon) > MAX_LEXICON_WORDS:
        facts = {"field_type": "Dictionary", "max_length": MAX_LEXICON_WORDS}
        raise PydanticKnownError("too_long", facts | {"actual_length": len(lexicon)})
    return lexicon


class SpeechSettings(BaseModel):
    """How to speak: the fields that the HTTP body and the WebSocket's session.config share."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str | None = Field(
        None, description="The name of the server's model, or one of OpenAI's names."
    )
    voice: Annotated[str | VoiceId | None, WrapValidator(_name_or_id)] = Field(
        None, description="The voice: an id from GET /v1/audio/voices."
    )
    instructions: str | None = Field(None, max_length=_MAX_SIDE_CHARS)
    response_format: Format | None = Field(None, description="Default: the server's format.")
    encoding: Literal["pcm", "ulaw", "alaw"] | None = Field(
        None, description="Encoding of the samples in a wav file. Default: pcm (16 bits)."
    )
    speed: float | None = Field(
        None,
        ge=MIN_SPEED,
        le=MAX_SPEED,
        description="Speed at the same pitch: 2 takes half the time.",
    )
    volume: float | None = Field(
        None, ge=MIN_VOLUME, le=MAX_VOLUME, description="Change of volume in dB."
    )
    loudness: float | None = Field(
        None,
        ge=MIN_LOUDNESS,
        le=MAX_LOUDNESS,
        description="Loudness of the whole speech in LUFS; only with stream false.",
    )
    sample_rate: int | None = Field(
        None,
        ge=MIN_SAMPLE_RATE,
        le=MAX_SAMPLE_RATE,
        description="Samples per second. Default: the model's rate; 8000 for ulaw and alaw.",
    )
    leading_silence: float | None = Field(
        None, ge=0, le=MAX_SILENCE, description="The longest silence before the first sound, in ms."
    )
    trailing_silence: float | None = Field(
        None, ge=0, le=MAX_SILENCE, description="The longest silence after the last sound, in ms."
    )
    language: str | None = Field(
        None, max_length=64, description='A language\'s name, its code, or "auto".'
    )
    seed: int | None = Field(None, ge=0, lt=2**64)
    do_sample: bool | None = Field(
        None, description="false: greedy decoding, which takes the likeliest codes."
    )
    temperature: float | None = Field(None, ge=MIN_FACTOR, le=MAX_FACTOR)
    top_k: int | None = Field(None, ge=0, le=MAX_TOP_K)
    top_p: float | None = Field(None, gt=0, le=1)
    repetition_penalty: float | None = Field(None, ge=MIN_FACTOR, le=MAX_FACTOR)
    max_new_tokens: int | None = Field(
        None, ge=MIN_NEW_TOKENS, description="The maximum number of frames, plus 1."
    )
    ref_audio: str | None = Field(None, description="A recording to clone, in base64.")
    ref_text: str | None = Field(None, max_length=_MAX_SIDE_CHARS)
    x_vector_only_mode: bool | None = None
    non_streaming_mode: bool | None = Field(
        None, description="true: the model reads all text before it speaks."
    )
    first_chunk_frames: int | None = Field(None, ge=1, le=MAX_FIRST_CHUNK_FRAMES)
    text_format: Literal["plain", "pauses", "ssml"] | None = Field(
        None,
        description='ssml is markup, pauses is plain text with "[pause 1.5s]". Default: plain.',
    )
    normalize: Literal["auto", "on", "off"] | None = Field(
        None,
        description="Read numbers, dates and Markdown as words. Default: the server's setting.",
    )
    lexicon: Annotated[dict[str, str] | None, BeforeValidator(_few_words)] = Field(
        None,
        max_length=MAX_LEXICON_WORDS,
        description="Words, and respellings that the model pronounces right.",
    )
    timestamp_granularities: list[Literal["word", "segment"]] | None = Field(
        None,
        max_length=2,
        description="Report the times of words, of sentences (segment), or of both.",
    )

    def warnings(self) -> list[str]:
        """Return warnings about fields that have no effect."""
        extras = sorted(self.model_extra or {})
        if not extras:
            return []
        names = ", ".join(json.dumps(name[:40])[:40] for name in extras[:10])
        return [f"ignored: {names}" + (", ..." if len(extras) > 10 else "")]

    @property
    def is_whole(self) -> bool:
        """Whether the server sends the speech only when it is complete."""
        return False

    def check_timestamps(self) -> None:
        """Refuse an empty list of granularities.

        Raises:
            ApiError: 400; names the field.
        """
        if self.timestamp_granularities == []:
            error = UsageError(
                "timestamp_granularities is an empty list.",
                hint='Give it "word", "segment" or both, or leave it out.',
            )
            raise ApiError.about("timestamp_granularities", error)

    def format_or(self, settings: ServerSettings) -> str:
        """Return the response format, or the server's default."""
        return self.response_format or settings.default_format


class SpeechBody(SpeechSettings):
    """The body of POST /v1/audio/speech."""

    input: str = Field(description="The text to speak.")
    stream_format: Literal["audio", "sse"] | None = Field(None, description="Default: audio.")
    stream: bool | None = Field(
        None, description="true: events; false: one complete response with its length."
    )
    event_format: Literal["phases"] | None = Field(
        None,
        description="With stream true: only the phases of a request, and the audio at the end.",
    )
    include_codes: bool = Field(False, description="Add the codec frames to events with audio.")

    @property
    def is_whole(self) -> bool:
        """See `SpeechSettings`."""
        is_whole = self.stream is False or (self.timestamp_granularities and not self.stream)
        return bool(is_whole) and self.stream_format != "sse"

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
            ("encoding", self.encoding not in (None, "pcm"), "The audio is 16-bit WAV."),
            ("include_codes", self.include_codes, "These events carry no codes."),
            (
                "timestamp_granularities",
                self.timestamp_granularities is not None,
                "These events carry no times.",
            ),
        ):
            if is_bad:
                value = json.dumps(getattr(self, name))
                error = UsageError(f'{name} is {value} and event_format is "phases".', hint)
                raise ApiError.about(name, error)


class SessionConfig(SpeechSettings):
    """The fields of the WebSocket's session.config besides `type`."""

    stream_audio: bool = True  # false: one message with all audio of an utterance


def sound_options(
    body: SpeechSettings, settings: ServerSettings, sample_rate: int
) -> dict[str, Any]:
    """Return the keyword arguments for `TTSEngine.stream` that change the sound.

    Args:
        sample_rate: the loaded model's.
    Raises:
        ApiError: 400; the format does not have the encoding or the sample rate.
    """
    response_format = body.format_or(settings)
    if body.loudness is not None:
        if not body.is_whole:
            error = UsageError(
                f"loudness is {body.loudness:g}, and the speech is streamed.",
                "The loudness of a speech is known only when it is complete.",
                ("Set stream to false, or use " if isinstance(body, SpeechBody) else "Use ")
                + "volume, in dB.",
            )
            raise ApiError.about("loudness", error)
        check_loudness(body.loudness)
    if body.encoding is not None and response_format != "wav":
        error = UsageError(
            f"encoding is {body.encoding} and response_format {response_format}.",
            "Only wav can hold samples of several kinds.",
            "For raw samples use response_format ulaw, alaw, or pcm (16 bits).",
        )
        raise ApiError.about("encoding", error)
    sound = {
        name: getattr(settings.sound, name) if getattr(body, name) is None else getattr(body, name)
        for name in SoundOptions.__dataclass_fields__
    }
    if {response_format, body.encoding} & {"ulaw", "alaw"}:
        sound["sample_rate"] = body.sample_rate or TELEPHONE_RATE
    rate = sound["sample_rate"] or sample_rate
    rates = SAMPLE_RATES.get(response_format, (rate,))
    if rate not in rates:
        error = UsageError(
            f"sample_rate is {rate} and response_format {response_format}, which has only "
            f"{', '.join(map(str, rates))}.",
            hint="wav, pcm, flac, ulaw and alaw have every rate.",
        )
        raise ApiError.about("sample_rate", error)
    return sound


async def engine_options(
    body: SpeechSettings,
    voices: VoiceStore,
    settings: ServerSettings,
    *,
    model_name: str,
    sample_rate: int,
) -> tuple[dict[str, Any], list[str]]:
    """Return keyword arguments for `TTSEngine.stream`, and warnings.

    Args:
        body: the client's request.
        voices: the engine's voices.
        model_name, sample_rate: the loaded model's.
    Raises:
        ApiError: 404, the model is not loaded; 400, values contradict each other.
        QwenTTSError: the voice or its recording is refused.
    """
    if body.model is not None:
        check_model(body.model, model_name)
    sound = sound_options(body, settings, sample_rate)
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
    try:
        lexicon = Lexicon.of(body.lexicon)
    except UsageError as error:
        raise ApiError.about("lexicon", error) from error
    options = {
        "text_format": body.text_format or "plain",
        "normalize": body.normalize or "auto",
        "lexicon": lexicon,
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
    return options | sound, warnings


def check_length(num_chars: int, settings: ServerSettings) -> None:
    """Refuse text that is too long.

    Raises:
        TextTooLong: the text has more than `max_chars` characters.
    """
    if num_chars > settings.max_chars:
        or_raise = ", or raise the server's --max-chars" if settings.max_chars < MAX_CHARS else ""
        raise TextTooLong(
            f"The text has {num_chars} characters; the limit is {settings.max_chars}.",
            hint=f"Split the input{or_raise}.",
        )


def num_json_values(part: bytes | str) -> int:
    """Return at least the number of values that begin in a part of a JSON text, quickly."""
    if isinstance(part, str):
        return sum(map(part.count, _JSON_MARKS))
    return sum(map(part.count, _JSON_MARKS.encode()))


def check_json_values(num_values: int) -> None:
    """Refuse a JSON text that would take long to parse.

    Args:
        num_values: the sum of `num_json_values` over the parts of the text.
    Raises:
        ApiError: 413.
    """
    if num_values > MAX_JSON_VALUES:
        raise ApiError(
            413,
            f"The JSON has more than {MAX_JSON_VALUES} commas and brackets, which is the limit.",
            code="too_large",
            headers={"Connection": "close"},
        )


def check_model(name: str, loaded: str) -> None:
    """Refuse a model that is not the loaded one.

    Raises:
        ApiError: 404; names the loaded model.
    """
    known = {loaded.lower(), loaded.rpartition("/")[2].lower(), *MODEL_ALIASES}
    lower = name[:_MAX_NAME_CHARS].lower()
    if lower not in known and not _DATED_ALIAS.fullmatch(lower):
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
    decoded = await voices.decode_reference(recording)
    return await voices.clone(decoded, transcript, "reference")
