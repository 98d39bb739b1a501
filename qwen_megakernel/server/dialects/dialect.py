"""What a dialect is, and how its requests become those of the service."""

import re
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import Headers
from starlette.types import Scope

from qwen_megakernel.printable import get_logger, printable
from qwen_megakernel.server.active_speech import ActiveSpeech, encoded_whole
from qwen_megakernel.server.encoders import Encoder, new_encoder
from qwen_megakernel.server.error_responses import ApiError
from qwen_megakernel.server.responses import (
    SpeechResponse,
    audio_bytes,
    speech_headers,
    whole_samples,
)
from qwen_megakernel.server.schemas import SpeechSettings, check_length
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.settings import MEDIA_TYPES

logger = get_logger(__name__)

# Of the routes: their audio has any media type, and their errors the vendor's form.
ROUTE: dict[str, Any] = {
    "response_class": Response,
    "responses": {key: {"description": "Error"} for key in ("4XX", "5XX")},
}
_KEY_HEADERS = ("xi-api-key", "x-api-key")
_KEY_QUERIES = ("api_key", "access_token", "token", "xi-api-key", "authorization")
_MAX_WARNED = 1000  # fields and voices that a server remembers to have warned about


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the clients of one vendor call and read errors.

    Attributes:
        title: the vendor's name.
        paths: matches the paths of its routes; the group `json` those that take a body of JSON.
        error_body: makes an error's body of the status, the facts of `error_facts` and the id of
            the request.
        add_routes: adds the routes to the application.
        models: makes the body of GET /v1/models, for clients that send the header xi-api-key.
    """

    name: str
    title: str
    paths: re.Pattern[str]
    error_body: Callable[[int, dict[str, Any], str], dict[str, Any]]
    add_routes: Callable[[FastAPI, Service], None]
    models: Callable[[Service], Any] | None = None

    def has(self, path: str, headers: Headers) -> bool:
        """Return whether a request is of this dialect."""
        if self.models and path == "/v1/models":
            return "xi-api-key" in headers
        return bool(self.paths.fullmatch(path))

    def takes_json(self, path: str) -> bool:
        """Return whether a POST to one of its paths has a body of JSON."""
        match = self.paths.fullmatch(path)
        return bool(match and match["json"])


def foreign_key(scope: Scope, headers: Headers) -> str:
    """Return the API key that a request has in one of the vendors' places; empty: it has none."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    found = [headers.get(name) for name in _KEY_HEADERS]
    found.append(token if kind.lower() == "token" else None)
    if scope["type"] == "websocket":  # browsers set no headers
        query = parse_qs(scope["query_string"].decode("latin-1"))
        found += [query.get(name, [None])[0] for name in _KEY_QUERIES]
    return next((each for each in found if each), "")


@dataclass(frozen=True, slots=True)
class Sound:
    """The audio that a client wants."""

    response_format: str  # a key of `MEDIA_TYPES`
    sample_rate: int | None = None  # None: the server's
    encoding: str = "pcm"  # of the samples in wav; of pcm, "float" is possible, too
    kbits: int | None = None  # of mp3 and opus; None: the server's


class Fields(BaseModel):
    """The fields of a vendor's request that mean something here; others are accepted."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    def unknown(self) -> set[str]:
        """Return the names of the client's fields that mean nothing here."""
        inner = (getattr(self, name) for name in type(self).model_fields)
        parts = [each.unknown() for each in inner if isinstance(each, Fields)]
        given = {name for name, value in (self.model_extra or {}).items() if value is not None}
        return given.union(*parts)


class Desk:
    """Translates the requests of one dialect to those of the service.

    Args:
        harmless: fields without an effect here that need no warning.
    """

    def __init__(self, name: str, service: Service, harmless: Iterable[str]):
        self.service, self.settings = service, service.settings
        self._name, self._warned = name, {*harmless, *_KEY_QUERIES}

    def ignore(self, names: Iterable[str]) -> None:
        """Warn about fields that have no effect here, once in a server's life for each."""
        fresh = sorted({printable(name, 40) for name in names} - self._warned)[:20]
        if fresh:
            self._warn(fresh, f"ignored, from now on without a warning: {', '.join(fresh)}")

    def _warn(self, about: Iterable[str], warning: str) -> None:
        if len(self._warned) < _MAX_WARNED:
            self._warned.update(about)
            logger.warning("%s: %s", self._name, warning)

    async def configure(self, voice: str, sound: Sound, **fields: Any) -> dict[str, Any]:
        """Return the options of `Service.speak`, or raise as `engine_options` does.

        Args:
            voice: the vendor's id of a voice.
            fields: those of `SpeechSettings`; None: not given.
        """
        fields |= {"voice": self._find_voice(voice), "response_format": sound.response_format}
        fields["sample_rate"] = sound.sample_rate
        is_g711 = sound.encoding in ("ulaw", "alaw")
        fields["encoding"] = sound.encoding if is_g711 else None  # has a rate of its own
        given = {key: value for key, value in fields.items() if value is not None}
        options, warnings = await self.service.configure(SpeechSettings.model_validate(given))
        for each in set(warnings) - self._warned:
            self._warn([each], each)
        return options | {"find_voice": self._find_voice}

    def _find_voice(self, voice_id: str) -> str | None:
        """Return the voice that a vendor's id means, of a request or in a text."""
        name, warning = self.service.voices.find_foreign(voice_id)
        if warning and warning not in self._warned:
            self._warn([warning], warning)
        return name

    def encoder(self, speaking: ActiveSpeech, sound: Sound) -> Encoder:
        """Return an encoder for a speech."""
        comment, rate = speaking.mark.comment, speaking.record.sample_rate
        return new_encoder(sound.response_format, rate, **self._how(sound), comment=comment)

    def _how(self, sound: Sound) -> dict[str, Any]:
        kbits = {"opus_kbits": self.settings.opus_kbits}
        if sound.kbits is not None:
            kbits[f"{sound.response_format}_kbits"] = sound.kbits
        return {"encoding": sound.encoding, **kbits}

    async def speak(self, request: Request, text: str, options: dict[str, Any]) -> ActiveSpeech:
        """Start the speech of an HTTP request."""
        check_length(len(text), self.settings)
        return await self.service.speak(text, options, request_id=request.state.request_id)

    async def audio(
        self, request: Request, speaking: ActiveSpeech, sound: Sound, *, is_whole: bool
    ) -> Response:
        """Return a speech as audio: one complete file, or a stream while it is made."""
        media_type = MEDIA_TYPES[sound.response_format]
        if not is_whole:
            pieces = audio_bytes(speaking, self.encoder(speaking, sound))
            return self.stream(speaking, pieces, media_type)
        data = await self.file(request, speaking, sound)
        return Response(data, media_type=media_type, headers=speech_headers(speaking, []))

    async def file(self, request: Request, speaking: ActiveSpeech, sound: Sound) -> bytes:
        """Return a speech as one complete file, which has all marks."""
        samples = await whole_samples(speaking, request.receive, self.settings)
        return await encoded_whole(speaking, samples, sound.response_format, **self._how(sound))

    def stream(
        self,
        speaking: ActiveSpeech,
        body: AsyncIterator[bytes],
        media_type: str,
        on_error: Callable[[Exception], bytes] | None = None,
    ) -> Response:
        """Return a response that sends a speech while it is made; see `SpeechResponse`."""
        how: dict[str, Any] = {"media_type": media_type, "headers": speech_headers(speaking, [])}
        return SpeechResponse(speaking, body, **how, settings=self.settings, on_error=on_error)


def unsupported(what: str, value: object, supported: Iterable[str]) -> ApiError:
    """Return the error about audio that the server cannot make."""
    message = (
        f"{what} is {printable(str(value))}, which this server does not make. It makes: "
        f"{', '.join(supported)}."
    )
    return ApiError(400, message, code="unsupported_output_format", param=what)
