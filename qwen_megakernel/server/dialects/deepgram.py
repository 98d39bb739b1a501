"""Deepgram's POST and WebSocket /v1/speak.

A message of the WebSocket is {"type": "Speak", "text"}, or has the type Flush, Clear or Close. The
server answers with binary audio, and with messages of the types Metadata, Flushed, Cleared, Warning
(about a message, or a text that was not spoken) and Error (the connection is closed).
"""

import re
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response, WebSocket
from pydantic import Field

from qwen_megakernel.errors import UsageError
from qwen_megakernel.printable import printable
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.dialects.dialect import ROUTE, Desk, Dialect, Fields, Sound, unsupported
from qwen_megakernel.server.dialects.session import Context, ContextSession, wrong
from qwen_megakernel.server.service import Service

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
# What concerns only the vendor's own machines.
_HARMLESS = ("mip_opt_out", "tag", "callback", "callback_method", "version")


class DeepgramBody(Fields):
    """The body of a POST to /v1/speak."""

    text: str = Field(description="The text to speak.")


class DeepgramQuery(Fields):
    """The parameters of the URL."""

    model: str = Field("aura-asteria-en", max_length=256)
    encoding: str | None = None
    container: str | None = None
    sample_rate: int | None = None
    bit_rate: int | None = None
    speed: float | None = Field(None, ge=0.25, le=4)
    # Not of the vendor's:
    seed: int | None = Field(None, ge=0, lt=2**64)
    continuity: str | None = None

    def sound(self, encoding: str, *, is_raw: bool) -> Sound:
        """Return the audio; raises `ApiError` if it cannot be made.

        Args:
            encoding: the default.
            is_raw: over the WebSocket, which has no containers.
        """
        encoding = self.encoding or encoding
        if encoding not in _ENCODINGS:
            raise unsupported("encoding", encoding, _ENCODINGS)
        kind, rate, containers = _ENCODINGS[encoding]
        container = "none" if is_raw else self.container or containers[0]
        if container not in containers and not is_raw:
            raise unsupported("container", container, containers)
        rate = self.sample_rate or rate
        if container == "wav":
            return Sound("wav", rate, kind)
        return Sound(kind, rate, kbits=self.bit_rate and self.bit_rate // 1000)


def _add_routes(app: FastAPI, service: Service) -> None:
    desk = Desk("deepgram", service, _HARMLESS)

    async def begin(
        connection: Request | WebSocket, encoding: str, *, is_raw: bool
    ) -> tuple[dict[str, Any], Sound]:
        query = DeepgramQuery.model_validate(dict(connection.query_params), strict=False)
        sound = query.sound(encoding, is_raw=is_raw)
        desk.ignore(query.unknown())
        own = {name: getattr(query, name) for name in ("speed", "seed", "continuity")}
        return await desk.configure(query.model, sound, **own), sound

    @app.post("/v1/speak", **ROUTE)
    async def speak(body: DeepgramBody, request: Request) -> Response:
        """Speak a text: audio while it is made."""
        options, sound = await begin(request, "mp3", is_raw=False)
        desk.ignore(body.unknown())
        speaking = await desk.speak(request, body.text, options)
        return await desk.audio(request, speaking, sound, is_whole=False)

    @app.websocket("/v1/speak")
    async def websocket(websocket: WebSocket) -> None:
        how = await begin(websocket, "linear16", is_raw=True)
        await _DeepgramSession(websocket, desk, *how).run()


def _error_body(status: int, facts: dict[str, Any], request_id: str) -> dict[str, Any]:
    code = facts["code"].upper()
    return {"err_code": code, "err_msg": facts["message"], "request_id": request_id}


class _DeepgramSession(ContextSession):
    """A connection of a Deepgram client: one context, whose texts end with each Flush."""

    def __init__(self, websocket: WebSocket, desk: Desk, options: dict[str, Any], sound: Sound):
        super().__init__(websocket, desk)
        self._options, self._sound = options, sound

    async def greet(self) -> None:
        name = self.desk.service.engine.files.name
        model = {"model_name": name, "model_version": "1", "model_uuid": name}
        await self.socket.send(type="Metadata", request_id=self.socket.request_id, **model)

    async def obey(self, facts: dict[str, Any]) -> bool:
        kind, text = facts.get("type"), facts.get("text")
        context = self.contexts.get("") or self.open("", self._options, self._sound)
        if kind == "Speak":
            if not isinstance(text, str):
                raise wrong("text", text, "a string")
            await self.feed(context, text)
        elif kind == "Flush":
            self.mark(context, "Flushed")
        elif kind == "Clear":
            context.cancel()
            self.mark(context, "Cleared")
        elif kind != "Close":
            shown = printable(repr(kind), 80)
            raise UsageError(f"Unknown message type {shown}.", "Known: Speak, Flush, Clear, Close.")
        return kind == "Close"

    async def relay(
        self, context: Context, speaking: ActiveSpeech, pieces: AsyncIterator[bytes]
    ) -> None:
        async for audio in pieces:
            if audio:
                await self.socket.send_bytes(audio)

    async def answer(self, context: Context, mark: str) -> None:
        await self.socket.send(type=mark, sequence_id=context.num_answers)
        context.num_answers += 1

    async def refuse(self, status: int, facts: dict[str, Any], name: str | None) -> None:
        kind, code = "Error" if status == 408 else "Warning", facts["code"].upper()
        what = facts["message"]
        await self.socket.send(type=kind, description=what, message=what, code=code)


DIALECT = Dialect(
    name="deepgram",
    title="Deepgram",
    paths=re.compile(r"(?P<json>/v1/speak)"),
    error_body=_error_body,
    add_routes=_add_routes,
)
