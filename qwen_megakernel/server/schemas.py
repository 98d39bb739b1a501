"""The bodies that clients send, and their translation to options of the engine."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from qwen_megakernel.choices import TELEPHONE_RATE
from qwen_megakernel.engine.conversation import Conversation
from qwen_megakernel.errors import TextTooLong, UsageError, did_you_mean
from qwen_megakernel.server.encoders import AudioFormat
from qwen_megakernel.server.error_responses import CLOSE, ApiError, naming
from qwen_megakernel.server.settings import SAMPLE_RATES, ServerSettings
from qwen_megakernel.server.voices import VoiceStore
from qwen_megakernel.sound.loudness import check_loudness
from qwen_megakernel.speech_options import LOUDNESS, OPTIONS, Option, SoundOptions
from qwen_megakernel.text.cleaning import MAX_CHARS
from qwen_megakernel.text.reading.lexicon import Lexicon
from qwen_megakernel.voice import Voice

# OpenAI's names of models, which clients have built in; here they mean the loaded model.
MODEL_ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
# The same with the date of a release: gpt-4o-mini-tts-2025-12-15, tts-1-1106.
_DATED_ALIAS = re.compile(rf"(?:{'|'.join(MODEL_ALIASES)})-(?:\d{{4}}-\d\d-\d\d|\d{{4}})", re.ASCII)

MIN_NEW_TOKENS = 2  # the last token is not a frame, and the first two never end the speech
MAX_LEXICON_WORDS = 1000  # for each request
_MAX_SIDE_CHARS = 4096  # in instructions and transcripts
_MAX_X_VECTOR = 4096  # numbers; that of the 1.7B models has 2048
_MAX_NAME_CHARS = 256  # in the name of a voice; no model has a longer one
MAX_JSON_VALUES = 16_384  # in a body or message; a larger one would delay all streams
_JSON_MARKS = ",[{"

Format = Literal["wav", "pcm", "flac", "mp3", "opus", "aac", "ulaw", "alaw"]


class VoiceId(BaseModel):
    """A voice by its id, the newer of OpenAI's two forms."""

    id: str = Field(max_length=_MAX_NAME_CHARS)


def name_or_id(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
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


# Options of `SpeechOptions` that HTTP does not have, or has in fields of its own.
_NO_FIELDS = {
    *("voice", "instruct", "text_feed", "split", "max_frames", "chunk_frames"),
    *(option.name for option in OPTIONS.values() if option.is_subtalker),
}
OFFERED = tuple(name for name in OPTIONS if name not in _NO_FIELDS)

# What holds for requests of clients beside `SpeechOptions`.
_LIMITS: dict[str, dict[str, Any]] = {
    "style": {"max_length": _MAX_NAME_CHARS},
    "language": {"max_length": 64},
    "lexicon": {"max_length": MAX_LEXICON_WORDS},
    "first_chunk_frames": {"le": OPTIONS["chunk_frames"].default},  # chunks grow to this length
}
_DEFAULTS = dict.fromkeys(("normalize", *SoundOptions.options()), "the server's setting") | {
    "sample_rate": "the server's setting, else the model's rate; 8000 for ulaw and alaw"
}


def _field(option: Option, note: str = "", **limits: Any) -> Any:
    """Return the field of an option, with its limits and help text."""
    default = _DEFAULTS.get(option.name, option.default_words)
    description = f"{option.help[0].upper()}{option.help[1:]}{note}."
    if default:
        description += f" Default: {default}."
    return _about(description, **limits | option.limits)


def _about(description: str, **limits: Any) -> Any:
    """Return a field that may be left out."""
    return Field(None, description=description, **limits)


def _type_of(option: Option) -> Any:
    if option.name == "lexicon":
        return Annotated[dict[str, str] | None, BeforeValidator(_few_words)]
    return (Literal[option.choices] if option.choices else option.kind) | None


if TYPE_CHECKING:
    _OptionFields = BaseModel  # mypy knows no class that is made at run time
else:
    _OptionFields = create_model(
        "_OptionFields",
        **{
            name: (_type_of(OPTIONS[name]), _field(OPTIONS[name], **_LIMITS.get(name, {})))
            for name in OFFERED
        },
    )


class SpeechSettings(_OptionFields):
    """How to speak: the fields that the HTTP body and the WebSocket's session.config share."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    model: str | None = _about("The name of the server's model, or one of OpenAI's names.")
    voice: Annotated[str | VoiceId | None, WrapValidator(name_or_id)] = _about(
        "The voice: an id from GET /v1/audio/voices."
    )
    instructions: str | None = _field(OPTIONS["instruct"], max_length=_MAX_SIDE_CHARS)
    response_format: Format | None = _about("Default: the server's format.")
    encoding: Literal["pcm", "ulaw", "alaw"] | None = _about(
        "Encoding of the samples in a wav file. Default: pcm (16 bits)."
    )
    loudness: float | None = _field(LOUDNESS, "; only with stream false")
    max_new_tokens: int | None = _about("The maximum number of frames, plus 1.", ge=MIN_NEW_TOKENS)
    ref_audio: str | None = _about("A recording to clone, in base64.")
    ref_text: str | None = _about("The exact transcript of ref_audio.", max_length=_MAX_SIDE_CHARS)
    speaker_embedding: list[float] | None = _about(
        "The x-vector of a voice, in place of voice.", max_length=_MAX_X_VECTOR
    )
    x_vector_only_mode: bool | None = _about(
        "true: clone the voice alone, for which no transcript is needed."
    )
    non_streaming_mode: bool | None = _about("true: the model reads all text before it speaks.")
    timestamp_granularities: list[Literal["word", "segment"]] | None = _about(
        "Report the times of words, of sentences (segment), or of both.", min_length=1, max_length=2
    )

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Return those of the options `names` that the client has set."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def warnings(self) -> list[str]:
        """Return warnings about fields that have no effect."""
        if not (extras := sorted(self.model_extra or {})):
            return []
        names = ", ".join(json.dumps(name[:40])[:40] for name in extras[:10])
        hints = [did_you_mean(name[:40], type(self).model_fields) for name in extras[:10]]
        ignored = f"ignored: {names}" + (", ..." if len(extras) > 10 else "")
        hint = " ".join(dict.fromkeys(filter(None, hints)))
        return [f"{ignored}. {hint}" if hint else ignored]


class SpeechBody(SpeechSettings):
    """The body of POST /v1/audio/speech."""

    input: str = Field(description="The text to speak.")
    stream_format: Literal["audio", "sse"] | None = _about("Default: audio.")
    stream: bool | None = _about("true: events; false: one complete response with its length.")
    event_format: Literal["phases"] | None = _about(
        "With stream true: only the phases of a request, and the audio at the end."
    )
    session: str | None = _about(
        "With continuity context: the client's name for a conversation, such as a UUID. Each "
        "request with it continues the one before.",
        min_length=1,
        max_length=_MAX_NAME_CHARS,
    )
    include_codes: bool | None = _about("true: add the codec frames to events with audio.")

    @property
    def is_whole(self) -> bool:
        """Whether the server sends the speech only when it is complete."""
        is_whole = self.stream is False or (self.timestamp_granularities and not self.stream)
        return bool(is_whole) and self.stream_format != "sse"

    @property
    def has_events(self) -> bool:
        """Whether the server sends events."""
        return self.stream_format == "sse" or bool(self.stream and self.stream_format is None)

    @model_validator(mode="after")
    def check_together(self) -> Self:
        """Refuse fields that exclude each other, or for which the response has no room."""
        if self.session is not None and self.given(["continuity"]).get("continuity") != "context":
            what, hint = "session is given, and continuity is off.", 'Set continuity to "context".'
            raise ApiError.about("session", what, hint=hint)
        has_times = self.timestamp_granularities and not self.is_whole
        for name, is_asked in (
            ("include_codes", self.include_codes),
            ("timestamp_granularities", has_times),
        ):
            if is_asked and not self.has_events:
                what = f"{name} is given, and the response has no events, which would carry them."
                raise ApiError.about(name, what, hint='Set stream_format to "sse".')
        for name, allowed, hint in (
            ("stream", (True,), "These events need true."),
            ("stream_format", (None,), "Leave it out."),
            ("response_format", (None, "wav"), "The audio is WAV."),
            ("encoding", (None, "pcm"), "The audio is 16-bit WAV."),
            ("include_codes", (None, False), "These events carry no codes."),
            ("timestamp_granularities", (None,), "These events carry no times."),
        ):
            value = getattr(self, name)
            if self.event_format and value not in allowed:
                what = f'{name} is {json.dumps(value)} and event_format is "phases".'
                raise ApiError.about(name, what, hint)
        return self


class SessionConfig(SpeechSettings):
    """The fields of the WebSocket's session.config besides `type`."""

    stream_audio: bool | None = None  # false: one message with all audio of an utterance


@dataclass(frozen=True, slots=True)
class SpeechPlan:
    """How a client's texts are spoken.

    Attributes:
        options: keyword arguments for `TTSEngine.stream`.
        audio: the form of the audio, with its rate.
        warnings: what the client should know; the voices that a text names may add some.
        voice_field: the field that has chosen the voice.
    """

    options: dict[str, Any]
    audio: AudioFormat
    warnings: list[str]
    voice_field: str = "voice"

    def within(self, conversation: Conversation) -> "SpeechPlan":
        """Return the plan of a text that belongs to a conversation, if such texts continue."""
        if self.options.get("continuity") != "context":
            return self
        return replace(self, options=self.options | {"conversation": conversation})


async def plan_speech(
    body: SpeechSettings, engine: Any, voices: VoiceStore, settings: ServerSettings
) -> SpeechPlan:
    """Return how to speak as a client wants it.

    Raises:
        ApiError: 404, the model is not loaded; 400, values contradict each other.
        QwenTTSError: the voice or its recording is refused.
    """
    if body.model is not None:
        check_model(body.model, engine.files.name)
    sound, audio = _sound(body, settings, engine.sample_rate)
    warnings = body.warnings()

    def find_voice(name: str | None) -> str | Voice | None:
        """Find a voice of the request, or of its text, whose warnings come later."""
        found, warning = voices.find(name, x_vector_only=bool(body.x_vector_only_mode))
        if warning and warning not in warnings:
            warnings.append(warning)
        return found

    name = body.voice.id if isinstance(body.voice, VoiceId) else body.voice
    voice: str | Voice | None
    if body.speaker_embedding is not None:
        field, voice = "speaker_embedding", _embedded(body, name)
    elif body.ref_audio is not None:
        with naming("ref_audio", only=UsageError):
            field, voice = "ref_audio", await _clone(body, body.ref_audio, voices)
        warnings += ["voice is ignored: ref_audio is given"] if name else []
    elif body.ref_text is not None:
        what = "ref_text is the transcript of ref_audio, which is missing."
        raise ApiError.about("ref_text", what)
    else:
        with naming("voice"):
            field, voice = "voice", find_voice(name)
    feeds = {None: "auto", True: "full", False: "stepwise"}
    options = body.given(OFFERED) | sound
    options |= {
        "voice": voice,
        "find_voice": find_voice,
        "language": options.get("language") or None,
        "instruct": body.instructions,
        "max_frames": None if body.max_new_tokens is None else body.max_new_tokens - 1,
        "text_feed": feeds[body.non_streaming_mode],
        "subtalker_do_sample": options.get("do_sample"),
    }
    with naming("lexicon"):
        options["lexicon"] = Lexicon.of(options.get("lexicon"))
    if options.get("style") is not None:
        with naming("style"):
            engine.find_voice(voice, options["style"])
    if options.get("continuity") == "context":
        with naming("continuity"):
            engine.check_continuity()
    if body.instructions and engine.ignores_instruct:
        warnings.append("instructions are ignored: this model follows none")
    return SpeechPlan(options, audio, warnings, field)


def _sound(
    body: SpeechSettings, settings: ServerSettings, model_rate: int
) -> tuple[dict[str, Any], AudioFormat]:
    """Return the options that change the sound, and the form of the audio.

    Raises `ApiError` (400) if the format does not have the encoding or the sample rate.
    """
    kind, encoding = body.response_format or settings.default_format, body.encoding
    if body.loudness is not None:
        if not isinstance(body, SpeechBody) or not body.is_whole:
            or_whole = "Set stream to false, or use" if isinstance(body, SpeechBody) else "Use"
            raise ApiError.about(
                "loudness",
                f"loudness is {body.loudness:g}, and the speech is streamed.",
                "The loudness of a speech is known only when it is complete.",
                f"{or_whole} volume, in dB.",
            )
        check_loudness(body.loudness)
    if encoding is not None and kind != "wav":
        raise ApiError.about(
            "encoding",
            f"encoding is {encoding} and response_format {kind}.",
            "Only wav can hold samples of several kinds.",
            "For raw samples use response_format ulaw, alaw, or pcm (16 bits).",
        )
    given = body.given(SoundOptions.options())
    sound = settings.sound.values() | given
    if {kind, encoding} & {"ulaw", "alaw"}:
        sound["sample_rate"] = given.get("sample_rate", TELEPHONE_RATE)
    rate = sound["sample_rate"] or model_rate
    rates = SAMPLE_RATES.get(kind, (rate,))
    if rate not in rates:
        known = ", ".join(map(str, rates))
        what = f"sample_rate is {rate} and response_format {kind}, which has only {known}."
        hint = "wav, pcm, flac, ulaw and alaw have every rate."
        raise ApiError.about("sample_rate", what, hint=hint)
    kbits = settings.opus_kbits if kind == "opus" else None
    return sound, AudioFormat(kind, rate, encoding or "pcm", kbits)


def check_length(num_chars: int, settings: ServerSettings) -> None:
    """Raise `TextTooLong` for text with more than `max_chars` characters."""
    if num_chars > settings.max_chars:
        or_raise = ", or raise the server's --max-chars" if settings.max_chars < MAX_CHARS else ""
        what = f"The text has {num_chars} characters; the limit is {settings.max_chars}."
        raise TextTooLong(what, hint=f"Split the input{or_raise}.")


def check_json_values(part: bytes | str, num_before: int = 0) -> int:
    """Return at least the number of values in a JSON text up to a part of it, counted quickly.

    Args:
        num_before: the number in the parts before.
    Raises:
        ApiError: 400; the text would take long to parse.
    """
    marks: Any = _JSON_MARKS if isinstance(part, str) else _JSON_MARKS.encode()
    num_values = num_before + sum(map(part.count, marks))
    if num_values > MAX_JSON_VALUES:
        what = f"The JSON has more than {MAX_JSON_VALUES} commas and brackets, which is the limit."
        raise ApiError(400, what, "too_many_values", headers=CLOSE)
    return num_values


def check_model(name: str, loaded: str) -> None:
    """Raise an `ApiError` (404), which names the loaded model, for another one."""
    known = {loaded.lower(), loaded.rpartition("/")[2].lower(), *MODEL_ALIASES}
    lower = name[:_MAX_NAME_CHARS].lower()
    if lower not in known and not _DATED_ALIAS.fullmatch(lower):
        what = f'The model "{name[:80]}" does not exist. This server has: {loaded}.'
        raise ApiError(404, what, "model_not_found", "model")


def _embedded(body: SpeechSettings, name: str | None) -> Voice:
    """Return the voice of a client's x-vector; raises an ApiError that names the field."""
    x_vector = np.array(body.speaker_embedding)
    other = "voice" if name is not None else "ref_audio" if body.ref_audio is not None else ""
    what = ""
    if other:
        what = f"speaker_embedding and {other} are both given; a request has one voice."
    elif (largest := np.abs(x_vector).max(initial=0)) > np.finfo(np.float32).max:
        what = f"speaker_embedding has the number {largest:g}, which is too large."
    if what:
        raise ApiError.about("speaker_embedding", what)
    return Voice("speaker_embedding", x_vector.astype(np.float32))


async def _clone(body: SpeechSettings, recording: str, voices: VoiceStore) -> Voice:
    if body.x_vector_only_mode is False and body.ref_text is None:
        what = "x_vector_only_mode is false, but ref_text is missing."
        why = "In-context cloning needs the exact transcript of the recording."
        raise ApiError.about("ref_text", what, why)
    transcript = None if body.x_vector_only_mode else body.ref_text
    decoded = await voices.decode_reference(recording)
    return await voices.clone(decoded, transcript, "reference")
