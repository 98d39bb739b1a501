"""Deepgram's POST and WebSocket /v1/speak.

A message of the WebSocket is {"type": "Speak", "text"}, or has the type Flush, Clear or Close. The
server answers with binary audio, and with messages of the types Metadata, Flushed, Cleared, Warning
(about a message, or a text that was not spoken) and Error (the connection is closed).
"""

import re
from typing import Any

from fastapi import FastAPI, Request, Response, WebSocket
from pydantic import Field

from qwen_megakernel.errors import UsageError
from qwen_megakernel.server.dialects.dialect import RATE, ROUTE, Dialect, DialectSession, Fields
from qwen_megakernel.server.encoders import AudioFormat
from qwen_megakernel.server.error_responses import ApiError, shown
from qwen_megakernel.server.schemas import SpeechPlan
from qwen_megakernel.server.session import Context, wrong

# `encoding` -> response format, the rate if none is given, and the containers, the default first.
_ENCODINGS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "linear16": ("pcm", 24000, ("wav", "none")),
    "mulaw": ("ulaw", 8000, ("wav", "none")),
    "alaw": ("alaw", 8000, ("wav", "none")),
    "mp3": ("mp3", 22050, ("none",)),
    "opus": ("opus", 48000, ("ogg",)),
    "flac": ("flac", 48000, ("none",)),
    "aac": ("aac", 22050, ("none",)),
}


class DeepgramBody(Fields):
    """The body of a POST to /v1/speak."""

    text: str = Field(description="The text to speak.")


class DeepgramQuery(Fields):
    """The parameters of the URL."""

    model: str = Field("aura-asteria-en", max_length=256)
    encoding: str | None = None
    container: str | None = None
    sample_rate: int | None = RATE
    bit_rate: int | None = Field(None, ge=1000)  # bit/s
    speed: float | None = Field(None, ge=0.25, le=4)
    # Not of the vendor's:
    seed: int | None = Field(None, ge=0, lt=2**64)
    continuity: str | None = None

    def fields(self, encoding: str, *, is_raw: bool) -> dict[str, Any]:
        """Return what these mean for `Dialect.configure`.

        Args:
            encoding: the default.
            is_raw: over the WebSocket, which has no containers.
        Raises:
            ApiError: the audio cannot be made.
        """
        encoding = self.encoding or encoding
        if encoding not in _ENCODINGS:
            raise self.unsupported("encoding", encoding, _ENCODINGS)
        kind, rate, containers = _ENCODINGS[encoding]
        container = "none" if is_raw else self.container or containers[0]
        if container not in containers and not is_raw:
            raise self.unsupported("container", container, containers)
        rate, kbits = self.sample_rate or rate, self.bit_rate and self.bit_rate // 1000
        is_wav = container == "wav"
        audio = AudioFormat("wav", rate, kind) if is_wav else AudioFormat(kind, rate, kbits=kbits)
        own = {name: getattr(self, name) for name in ("speed", "seed", "continuity")}
        return {"voice": self.model, "audio": audio, **own}


class Deepgram(Dialect):
    """Deepgram's routes."""

    name, title = "deepgram", "Deepgram"
    paths = re.compile("/v1/speak")
    # What concerns only the vendor's own machines.
    harmless = ("mip_opt_out", "tag", "callback", "callback_method", "version")

    def add_routes(self, app: FastAPI) -> None:
        asked = DeepgramQuery.model_json_schema()["properties"]
        query = [{"in": "query", "name": name, "schema": asked[name]} for name in asked]

        @app.post("/v1/speak", openapi_extra={"parameters": query}, **ROUTE)
        async def speak(body: DeepgramBody, request: Request) -> Response:
            """Speak a text: audio while it is made."""
            fields = self._fields(request, "mp3", is_raw=False)
            self.ignore(body.unknown())
            return self.audio(await self.speak(request, body.text, **fields), is_whole=False)

        @app.websocket("/v1/speak")
        async def websocket(websocket: WebSocket) -> None:
            session = _DeepgramSession(websocket, self)
            session.plan = await self.configure(**self._fields(websocket, "linear16", is_raw=True))
            await session.run()

    def _fields(self, asked: Request | WebSocket, encoding: str, *, is_raw: bool) -> dict[str, Any]:
        query = DeepgramQuery.model_validate(dict(asked.query_params), strict=False)
        fields = query.fields(encoding, is_raw=is_raw)
        self.ignore(query.unknown())
        if is_raw and query.container not in (None, "none"):
            self.ignore(["container"])
        return fields

    def error_body(self, error: ApiError, request_id: str) -> dict[str, Any]:
        code = error.code.upper()
        return {"err_code": code, "err_msg": error.message, "request_id": request_id}


class _DeepgramSession(DialectSession):
    """A connection of a Deepgram client: one context, whose texts end with each Flush."""

    plan: SpeechPlan  # of all texts, known before `run`
    subprotocols = ("token", "bearer")  # a browser's, with the API key after it

    async def accept(self) -> None:
        await super().accept()
        name = self.service.engine.files.name
        model = {"model_name": name, "model_version": "1", "model_uuid": name}
        await self.send(type="Metadata", request_id=self.request_id, **model)

    async def obey(self, facts: dict[str, Any]) -> bool:
        kind, text = facts.get("type"), facts.get("text")
        context = self.contexts.get("") or self.open("", self.plan)
        if kind == "Speak":
            if not isinstance(text, str):
                raise wrong("text", text, "a string")
            await context.feed(text)
        elif kind == "Flush":
            context.mark("Flushed")
        elif kind == "Clear":
            context.cancel()
            context.mark("Cleared")
        elif kind != "Close":
            known = "Known: Speak, Flush, Clear, Close."
            raise UsageError(f"Unknown message type {shown(kind, 80)}.", known)
        return kind == "Close"

    async def answer(self, context: Context, mark: str) -> None:
        await self.send(type=mark, sequence_id=context.num_answers)
        context.num_answers += 1

    async def report(self, error: ApiError, name: str | None) -> None:
        kind, what = "Error" if error.status == 408 else "Warning", error.message
        await self.send(type=kind, description=what, message=what, code=error.code.upper())
