"""The bodies that clients send, and their translation to options of the engine."""

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from qwen_megakernel.choices import TELEPHONE_RATE
from qwen_megakernel.engine.conversation import Conversation
from qwen_megakernel.errors import TextTooLong, UsageError
from qwen_megakernel.server.error_responses import ApiError
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
    return Field(None, description=description, **limits | option.limits)


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

    model: str | None = Field(
        None, description="The name of the server's model, or one of OpenAI's names."
    )
    voice: Annotated[str | VoiceId | None, WrapValidator(_name_or_id)] = Field(
        None, description="The voice: an id from GET /v1/audio/voices."
    )
    instructions: str | None = _field(OPTIONS["instruct"], max_length=_MAX_SIDE_CHARS)
    response_format: Format | None = Field(None, description="Default: the server's format.")
    encoding: Literal["pcm", "ulaw", "alaw"] | None = Field(
        None, description="Encoding of the samples in a wav file. Default: pcm (16 bits)."
    )
    loudness: float | None = _field(LOUDNESS, "; only with stream false")
    max_new_tokens: int | None = Field(
        None, ge=MIN_NEW_TOKENS, description="The maximum number of frames, plus 1."
    )
    ref_audio: str | None = Field(None, description="A recording to clone, in base64.")
    ref_text: str | None = Field(
        None, max_length=_MAX_SIDE_CHARS, description="The exact transcript of ref_audio."
    )
    speaker_embedding: list[float] | None = Field(
        None, max_length=_MAX_X_VECTOR, description="The x-vector of a voice, in place of voice."
    )
    x_vector_only_mode: bool | None = Field(
        None, description="true: clone the voice alone, for which no transcript is needed."
    )
    non_streaming_mode: bool | None = Field(
        None, description="true: the model reads all text before it speaks."
    )
    timestamp_granularities: list[Literal["word", "segment"]] | None = Field(
        None,
        max_length=2,
        description="Report the times of words, of sentences (segment), or of both.",
    )

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Return those of the options `names` that the client has set."""
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

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
    session: str | None = Field(
        None,
        min_length=1,
        max_length=_MAX_NAME_CHARS,
        description="With continuity context: the client's name for a conversation, such as a "
        "UUID. Each request with it continues the one before.",
    )
    include_codes: bool = Field(False, description="Add the codec frames to events with audio.")

    @property
    def is_whole(self) -> bool:
        is_whole = self.stream is False or (self.timestamp_granularities and not self.stream)
        return bool(is_whole) and self.stream_format != "sse"

    def check_session(self) -> None:
        """Refuse a session in which nothing is continued.

        Raises:
            ApiError: 400; names the field.
        """
        if self.session is not None and self.given(["continuity"]).get("continuity") != "context":
            error = UsageError(
                "session is given, and continuity is off.", hint='Set continuity to "context".'
            )
            raise ApiError.about("session", error)

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
    given = body.given(SoundOptions.options())
    sound = settings.sound.values() | given
    if {response_format, body.encoding} & {"ulaw", "alaw"}:
        sound["sample_rate"] = given.get("sample_rate", TELEPHONE_RATE)
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
    if body.speaker_embedding is not None:
        voice, warning = _embedded(body, name), None
    elif body.ref_audio is not None:
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

    def find_voice(name: str) -> str | Voice | None:
        """Find a voice that the text names; its warning follows those of the request."""
        found, warning = voices.find(name, x_vector_only=bool(body.x_vector_only_mode))
        if warning and warning not in warnings:
            warnings.append(warning)
        return found

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
    try:
        options["lexicon"] = Lexicon.of(options.get("lexicon"))
    except UsageError as error:
        raise ApiError.about("lexicon", error) from error
    return options, warnings


def in_conversation(options: dict[str, Any], conversation: Conversation) -> dict[str, Any]:
    """Return keyword arguments for `TTSEngine.stream`, with a conversation if they continue one."""
    if options.get("continuity") != "context":
        return options
    return options | {"conversation": conversation}


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
        ApiError: 400.
    """
    if num_values > MAX_JSON_VALUES:
        raise ApiError(
            400,
            f"The JSON has more than {MAX_JSON_VALUES} commas and brackets, which is the limit.",
            code="too_many_values",
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


def _embedded(body: SpeechSettings, name: str | None) -> Voice:
    """Return the voice of a client's x-vector; raises an ApiError that names the field."""
    given = {"voice": name, "ref_audio": body.ref_audio}
    x_vector = np.array(body.speaker_embedding)
    if other := next((field for field, value in given.items() if value is not None), None):
        what = f"speaker_embedding and {other} are both given; a request has one voice."
        raise ApiError.about("speaker_embedding", UsageError(what))
    if (np.abs(x_vector) > np.finfo(np.float32).max).any():
        what = f"speaker_embedding has the number {np.abs(x_vector).max():g}, which is too large."
        raise ApiError.about("speaker_embedding", UsageError(what))
    return Voice("speaker_embedding", x_vector.astype(np.float32))


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
