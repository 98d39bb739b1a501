"""What a dialect is, and how its requests become those of the service."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import parse_qs

from fastapi import FastAPI, Request, Response, WebSocket
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.types import Scope

from qwen_megakernel.printable import get_logger, printable
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.encoders import AudioFormat
from qwen_megakernel.server.error_responses import ApiError
from qwen_megakernel.server.responses import KEEP, SpeechResponse, steer, whole
from qwen_megakernel.server.schemas import SpeechPlan, SpeechSettings, check_length
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.session import ContextSession
from qwen_megakernel.speech_options import OPTIONS

logger = get_logger(__name__)

# Of the routes: their audio has any media type, and their errors the vendor's form.
ROUTE: dict[str, Any] = {
    "response_class": Response,
    "responses": {key: {"description": "Error"} for key in ("4XX", "5XX")},
}
RATE: Any = Field(None, **dict[str, Any](OPTIONS["sample_rate"].limits))  # samples per second
_KEY_QUERIES = ("api_key", "access_token", "token", "xi-api-key", "authorization")
_MAX_NAMES = 200  # of one request's fields; to escape thousands would delay all streams
_MAX_WARNED = 1000  # fields and voices that a server remembers to have warned about


class Fields(BaseModel):
    """The fields of a vendor's request that mean something here; others are accepted."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    def unknown(self) -> set[str]:
        """Return the names of the client's fields that mean nothing here."""
        inner = (getattr(self, name) for name in type(self).model_fields)
        parts = [each.unknown() for each in inner if isinstance(each, Fields)]
        given = {name for name, value in (self.model_extra or {}).items() if value is not None}
        return given.union(*parts)

    @staticmethod
    def unsupported(what: str, value: object, supported: Iterable[str]) -> ApiError:
        """Return the error about audio that the server cannot make."""
        makes = f"which this server does not make. It makes: {', '.join(supported)}."
        message = f"{what} is {printable(str(value)) or 'empty'}, {makes}"
        return ApiError(400, message, "unsupported_output_format", what)


class Dialect:
    """How the clients of one vendor call, and read errors; a subclass translates.

    Attributes:
        title: the vendor's name.
        paths: matches the paths of its routes.
        harmless: fields without an effect here that need no warning.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paths: ClassVar[re.Pattern[str]]
    harmless: ClassVar[tuple[str, ...]]

    def __init__(self, service: Service):
        self.service, self.settings = service, service.settings
        self._warned = {*self.harmless, *_KEY_QUERIES}

    def add_routes(self, app: FastAPI) -> None:
        """Add the routes to the application."""
        raise NotImplementedError

    def error_body(self, error: ApiError, request_id: str) -> dict[str, Any]:
        """Return the body of an answer with an error."""
        raise NotImplementedError

    def models(self) -> Any:
        """Return the body of GET /v1/models, if the dialect `has` that path."""

    def has(self, path: str, headers: Headers) -> bool:
        """Return whether a request is of this dialect."""
        return bool(self.paths.fullmatch(path))

    def ignore(self, names: Iterable[str]) -> None:
        """Warn about fields that have no effect here, once in a server's life for each."""
        looked_at = sorted(names)[:_MAX_NAMES]
        fresh = sorted({printable(name, 40) for name in looked_at} - self._warned)[:20]
        if fresh:
            self._warn(f"ignored, from now on without a warning: {', '.join(fresh)}", fresh)

    def _warn(self, warning: str, about: Iterable[str] = ()) -> None:
        """Warn, once in a server's life, and note what it is about."""
        if warning not in self._warned and len(self._warned) < _MAX_WARNED:
            self._warned.update(about or [warning])
            logger.warning("%s: %s", self.name, warning)

    async def configure(self, voice: str, audio: AudioFormat, **fields: Any) -> SpeechPlan:
        """Return the plan of a speech, or raise as `plan_speech` does.

        Args:
            voice: the vendor's id of a voice.
            fields: those of `SpeechSettings`; None: not given.
        """
        fields |= {"voice": self._find_voice(voice), "response_format": audio.name}
        fields["sample_rate"] = audio.rate or None
        is_g711 = audio.encoding in ("ulaw", "alaw")
        fields["encoding"] = audio.encoding if is_g711 else None  # has a rate of its own
        given = {key: value for key, value in fields.items() if value is not None}
        plan = await self.service.configure(SpeechSettings.model_validate(given))
        for each in plan.warnings:
            self._warn(each)
        own = plan.audio
        own = replace(own, encoding=audio.encoding, kbits=audio.kbits or own.kbits)
        options = plan.options | {"find_voice": self._find_voice}
        return SpeechPlan(options, own, warnings=[])

    def _find_voice(self, voice_id: str) -> str | None:
        """Return the voice that a vendor's id means, of a request or in a text."""
        name, warning = self.service.voices.find_foreign(voice_id)
        if warning:
            self._warn(warning)
        return name

    async def speak(
        self, request: Request, text: str, voice: str, audio: AudioFormat, **fields: Any
    ) -> ActiveSpeech:
        """Start the speech of an HTTP request; see `configure`."""
        plan = await self.configure(voice, audio, **fields)
        check_length(len(text), self.settings)
        return await self.service.speak(text, plan, request.state.request_id)

    @staticmethod
    def audio(speaking: ActiveSpeech, *, is_whole: bool) -> Response:
        """Return a speech as audio: one complete file, which has all marks, or while it is made."""
        pieces = whole(speaking) if is_whole else speaking.audio()
        return SpeechResponse(speaking, pieces, speaking.plan.audio.media_type, is_whole=is_whole)


class DialectSession(ContextSession):
    """A WebSocket of a vendor's client; a subclass translates the messages."""

    def __init__(self, websocket: WebSocket, dialect: Dialect):
        super().__init__(websocket, dialect.service)
        steer(self.scope, KEEP)  # a client may be silent at first, and has no session to configure
        self.dialect = dialect
        # The vendors' messages have no field that says that speech is synthetic.
        self.headers = dialect.service.engine.mark.headers


def keys_of(scope: Scope, headers: Headers, dialect: Dialect | None) -> Iterator[str]:
    """Yield what a request has in the places of API keys: ours, and those of the vendors."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() in ("bearer", "api-key", *(["token"] if dialect else [])):
        yield token
    yield headers.get("x-api-key", "")
    if dialect:
        yield headers.get("xi-api-key", "")
    if dialect and scope["type"] == "websocket":  # browsers set no headers
        query = parse_qs(scope["query_string"].decode("latin-1"))
        for name in _KEY_QUERIES:
            yield from query.get(name, [])
        yield from scope.get("subprotocols", [])[1:]
