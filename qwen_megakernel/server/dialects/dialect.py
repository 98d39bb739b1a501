"""What a dialect is, and how its requests become those of the service."""

import re
from collections.abc import Callable, Iterable
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

MAX_WARNED = 1000  # fields and voices that a server remembers to have warned about


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the clients of one vendor call, send keys and read errors.

    Attributes:
        paths: matches the paths of its routes, whatever the method.
        posts: matches the paths whose POST has a body of JSON.
        key_headers: headers that hold the key, besides those of OpenAI's clients.
        key_queries: parameters of a WebSocket's URL that may hold the key.
        how_to_send: shows the key's header, for an error.
        error_body: makes an error's body of the status, the facts of `error_facts` and the id of
            the request.
        add_routes: adds the routes to the application.
        models: makes the body of GET /v1/models, for clients that send the vendor's own header of
            a key; None: the vendor has no such path.
    """

    name: str
    paths: re.Pattern[str]
    posts: re.Pattern[str]
    key_headers: tuple[str, ...]
    key_queries: tuple[str, ...]
    how_to_send: str
    error_body: Callable[[int, dict[str, Any], str], dict[str, Any]]
    add_routes: Callable[[FastAPI, Service], None]
    models: Callable[[Service], Any] | None = None

    def has(self, path: str, headers: Headers) -> bool:
        """Return whether a request is of this dialect."""
        is_listing = self.models and path == "/v1/models" and self.key_headers[0] in headers
        return bool(is_listing or self.paths.fullmatch(path))

    def key(self, scope: Scope, headers: Headers) -> str | None:
        """Return the key that a request has in one of the vendor's own places."""
        kind, _, token = headers.get("authorization", "").partition(" ")
        found = [headers.get(name) for name in self.key_headers]
        found += [token] if kind.lower() == "token" else []
        if scope["type"] == "websocket":
            query = parse_qs(scope["query_string"].decode("latin-1"))
            found += [query[name][0] for name in self.key_queries if name in query]
        return next((each for each in found if each), None)


@dataclass(frozen=True, slots=True)
class Sound:
    """The audio that a client wants: a format of `MEDIA_TYPES`, and how it is encoded."""

    response_format: str
    sample_rate: int | None = None  # None: the server's
    encoding: str = "pcm"  # of the samples in wav
    kbits: int | None = None  # of mp3 and opus; None: the server's

    @property
    def media_type(self) -> str:
        """The media type of a response."""
        return MEDIA_TYPES[self.response_format]


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
        name: the dialect's name, for the log.
        service: the engine, its admission and its limits.
        known: fields without an effect here that need no warning, since nobody would miss it.
    """

    def __init__(self, name: str, service: Service, known: Iterable[str] = ()):
        self.service, self.settings = service, service.settings
        self._name, self._warned = name, set(known)

    def ignore(self, names: Iterable[str]) -> None:
        """Warn about fields that have no effect here, once for each in a server's life."""
        fresh = sorted({printable(name, 40) for name in names} - self._warned)[:20]
        if fresh and len(self._warned) < MAX_WARNED:
            self._warned.update(fresh)
            logger.warning("%s: ignored, as always: %s", self._name, ", ".join(fresh))

    async def configure(self, voice: str, sound: Sound, **fields: Any) -> dict[str, Any]:
        """Return the options of `Service.speak`.

        Args:
            voice: the vendor's id of a voice.
            sound: the audio wanted.
            fields: those of `SpeechSettings`; None: not given.
        Raises:
            UnknownVoice, UnknownLanguage, ApiError, ValidationError: see `engine_options`.
        """
        name, warning = self.service.voices.find_foreign(voice)
        given = {key: value for key, value in fields.items() if value is not None}
        given |= {"voice": name, "response_format": sound.response_format}
        if sound.sample_rate is not None:
            given["sample_rate"] = sound.sample_rate
        if sound.response_format == "wav":
            given["encoding"] = sound.encoding
        options, warnings = await self.service.configure(SpeechSettings.model_validate(given))
        for each in [warning, *warnings] if warning else warnings:
            if each not in self._warned and len(self._warned) < MAX_WARNED:
                self._warned.add(each)
                logger.warning("%s: %s", self._name, each)
        return options

    def encoder(self, sound: Sound, rate: int) -> Encoder:
        """Return an encoder for a speech of `rate` samples per second."""
        comment = self.service.engine.mark.comment
        return new_encoder(
            sound.response_format,
            rate,
            encoding=sound.encoding,
            comment=comment,
            **self._kbits(sound),
        )

    def _kbits(self, sound: Sound) -> dict[str, int]:
        kbits = {"opus_kbits": self.settings.opus_kbits}
        if sound.kbits is not None:
            kbits[f"{sound.response_format}_kbits"] = sound.kbits
        return kbits

    async def speak(self, request: Request, text: str, options: dict[str, Any]) -> ActiveSpeech:
        """Start the speech of an HTTP request."""
        check_length(len(text), self.settings)
        return await self.service.speak(text, options, request_id=request.state.request_id)

    async def audio(
        self, request: Request, speaking: ActiveSpeech, sound: Sound, *, is_whole: bool
    ) -> Response:
        """Return a speech as audio: one complete file, or a stream while it is made."""
        rate, headers = speaking.record.sample_rate, speech_headers(speaking, [])
        if not is_whole:
            pieces = audio_bytes(speaking, self.encoder(sound, rate))
            return self.stream(speaking, pieces, sound.media_type)
        samples = await whole_samples(speaking, request.receive, self.settings)
        kind, mark = sound.response_format, speaking.stream.mark
        data = await encoded_whole(
            kind, samples, rate, encoding=sound.encoding, mark=mark, **self._kbits(sound)
        )
        return Response(data, media_type=sound.media_type, headers=headers)

    def stream(
        self,
        speaking: ActiveSpeech,
        body: Any,
        media_type: str,
        on_error: Callable[[Exception], bytes] | None = None,
    ) -> Response:
        """Return a response of pieces of bytes; see `SpeechResponse`."""
        headers = speech_headers(speaking, [])
        return SpeechResponse(
            speaking,
            body,
            media_type=media_type,
            headers=headers,
            settings=self.settings,
            on_error=on_error,
        )


def unsupported(what: str, value: object, supported: Iterable[object]) -> ApiError:
    """Return the error about a format that the server cannot make."""
    names = ", ".join(map(str, supported))
    return ApiError(
        400,
        f"{what} is {printable(str(value))}, which this server does not make. It makes: {names}.",
        code="unsupported_output_format",
        param=what,
    )
