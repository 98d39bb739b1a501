"""Cartesia's HTTP routes and WebSocket.

A message of the WebSocket is a whole request: {"context_id", "transcript", "continue", "flush",
"voice", "output_format", "add_timestamps"}, or {"context_id", "cancel": true}. The server answers
with messages of the types chunk, timestamps, flush_done, done and error.
"""

import json
import math
import re
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response, WebSocket
from pydantic import Field

from qwen_megakernel.errors import UsageError
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.dialects.dialect import ROUTE, Desk, Dialect, Fields, Sound, unsupported
from qwen_megakernel.server.dialects.session import Context, ContextSession, wrong
from qwen_megakernel.server.error_responses import error_facts
from qwen_megakernel.server.responses import EVENT_STREAM, audio_bytes, base64_of
from qwen_megakernel.server.service import Service

_ENCODINGS = {"pcm_s16le": "pcm", "pcm_f32le": "float", "pcm_mulaw": "ulaw", "pcm_alaw": "alaw"}
# What clients send by default, or what concerns only the vendor's own machines.
_HARMLESS = (
    *("mode", "max_buffer_delay_ms", "use_normalized_timestamps", "add_phoneme_timestamps"),
    *("context_id", "continue", "flush", "duration", "cancel"),
)


class OutputFormat(Fields):
    """The audio that a client wants."""

    container: str
    encoding: str = "pcm_s16le"
    sample_rate: int | None = None
    bit_rate: int | None = None

    def sound(self, *containers: str) -> Sound:
        """Return the audio, in one of the containers; raises `ApiError` if it cannot be made."""
        if self.container not in containers:
            raise unsupported("output_format.container", self.container, containers)
        if self.container == "mp3":
            return Sound("mp3", self.sample_rate, kbits=self.bit_rate and self.bit_rate // 1000)
        if self.encoding not in _ENCODINGS:
            raise unsupported("output_format.encoding", self.encoding, _ENCODINGS)
        encoding = _ENCODINGS[self.encoding]
        if self.container == "wav" or encoding == "float":
            kind = "wav" if self.container == "wav" else "pcm"
            return Sound(kind, self.sample_rate, encoding)
        return Sound(encoding, self.sample_rate)


class GenerationConfig(Fields):
    """How to speak; an emotion has no meaning here."""

    speed: float | None = Field(None, ge=0.25, le=4)
    volume: float | None = Field(None, ge=0.001, le=10, description="A factor.")


class CartesiaVoice(Fields):
    """A voice by its id."""

    id: str = Field(max_length=256)


class CartesiaBody(Fields):
    """The body of a request, and a message of the WebSocket."""

    transcript: str = Field("", description="The text to speak.")
    voice: CartesiaVoice | str
    output_format: OutputFormat
    model_id: str | None = Field(None, description="Any; it means the loaded model.")
    language: str | None = Field(None, max_length=64)
    locale: str | None = Field(None, max_length=64)
    normalization: str | None = None
    generation_config: GenerationConfig | None = None
    add_timestamps: bool | None = None
    seed: int | None = Field(None, ge=0, lt=2**64, description="Not of the vendor's.")
    continuity: str | None = Field(None, description="Not of the vendor's.")

    def fields(self) -> dict[str, Any]:
        """Return the fields of `SpeechSettings` that these mean, and the voice."""
        how = self.generation_config
        return {
            "voice": self.voice if isinstance(self.voice, str) else self.voice.id,
            "language": self.language or self.locale,
            "normalize": "off" if self.normalization == "off" else None,
            "speed": how and how.speed,
            "volume": 20 * math.log10(how.volume) if how and how.volume else None,
            "seed": self.seed,
            "continuity": self.continuity,
        }


async def _messages(
    speaking: ActiveSpeech, pieces: AsyncIterator[bytes], body: CartesiaBody, begin_s: float
) -> AsyncIterator[dict[str, Any]]:
    """Yield a speech, which begins `begin_s` after its context, as chunk and timestamps."""
    common = {"done": False, "status_code": 206}
    async for audio in pieces:
        if audio:
            step_time = round(speaking.record.elapsed_ms, 3)
            yield {"type": "chunk", "data": base64_of(audio), "step_time": step_time, **common}
        if body.add_timestamps and (words := await speaking.words()):
            times = {
                "words": [each.word for each in words],
                "start": [round(begin_s + each.start, 3) for each in words],
                "end": [round(begin_s + each.end, 3) for each in words],
            }
            yield {"type": "timestamps", "word_timestamps": times, **common}


def _event(**facts: Any) -> bytes:
    return f"event: {facts['type']}\ndata: {json.dumps(facts)}\n\n".encode()


def _error_body(status: int, facts: dict[str, Any], request_id: str) -> dict[str, Any]:
    code = facts["code"]
    shown = {"title": code.replace("_", " ").capitalize(), "message": facts["message"]}
    return {**shown, "error_code": code, "status_code": status, "request_id": request_id}


def _add_routes(app: FastAPI, service: Service) -> None:
    desk = Desk("cartesia", service, _HARMLESS)

    async def begin(body: CartesiaBody, request: Request, sound: Sound) -> ActiveSpeech:
        desk.ignore(body.unknown())
        options = await desk.configure(sound=sound, **body.fields())
        return await desk.speak(request, body.transcript, options)

    @app.post("/tts/bytes", **ROUTE)
    async def speak(body: CartesiaBody, request: Request) -> Response:
        """Speak a text: audio while it is made."""
        sound = body.output_format.sound("raw", "wav", "mp3")
        speaking = await begin(body, request, sound)
        return await desk.audio(request, speaking, sound, is_whole=sound.response_format == "wav")

    @app.post("/tts/sse", **ROUTE)
    async def events(body: CartesiaBody, request: Request) -> Response:
        """Speak a text: events with audio and times of words."""
        sound = body.output_format.sound("raw")
        speaking = await begin(body, request, sound)
        name = (body.model_extra or {}).get("context_id")

        async def lines() -> AsyncIterator[bytes]:
            pieces = audio_bytes(speaking, desk.encoder(speaking, sound))
            async for message in _messages(speaking, pieces, body, 0.0):
                yield _event(**message, context_id=name)
            yield _event(type="done", done=True, status_code=200, context_id=name)

        def failed(error: Exception) -> bytes:
            status, facts, _ = error_facts(error)
            facts = _error_body(status, facts, request.state.request_id)
            return _event(type="error", done=True, **facts)

        return desk.stream(speaking, lines(), EVENT_STREAM, failed)

    @app.websocket("/tts/websocket")
    async def websocket(websocket: WebSocket) -> None:
        await _CartesiaSession(websocket, desk).run()


class _CartesiaSession(ContextSession):
    """A connection of a Cartesia client."""

    async def obey(self, facts: dict[str, Any]) -> bool:
        name = facts.get("context_id")
        if not isinstance(name, str) or not name:
            raise wrong("context_id", name, "a string that is not empty")
        context = self.contexts.get(name)
        if facts.get("cancel"):
            if context:
                self.close(context)
            if name in self.leaving:
                self.leaving[name].cancel()
            return False
        body = CartesiaBody.model_validate(facts)
        sound = body.output_format.sound("raw")
        if context is None and name in self.leaving:
            context = self.reopen(name)
        fields = body.fields()
        if context and (context.settings["voice"], context.sound) != (fields["voice"], sound):
            raise UsageError(
                "The voice or the output_format is not that of the context's first message.",
                hint="Open another context for it.",
            )
        if context is None or context.settings != fields:
            self.desk.ignore(body.unknown())
            options = await self.desk.configure(sound=sound, **fields)
            if context is None:
                context = self.open(name, options, sound)
            context.flush()  # the text so far keeps its settings
            context.options, context.settings = options, fields
        context.request = body
        is_sentence = facts.get("max_buffer_delay_ms") == 0
        await self.feed(context, body.transcript, is_sentence=is_sentence)
        if facts.get("flush"):
            self.mark(context, "flush_done")
        if not facts.get("continue"):
            self.close(context)
        return False

    async def relay(
        self, context: Context, speaking: ActiveSpeech, pieces: AsyncIterator[bytes]
    ) -> None:
        async for message in _messages(speaking, pieces, context.request, context.heard_s):
            await self.socket.send(**message, context_id=context.name)

    async def answer(self, context: Context, mark: str) -> None:
        context.num_answers += 1
        facts = {"flush_id": context.num_answers, "flush_done": True, "context_id": context.name}
        await self.socket.send(type=mark, done=False, status_code=206, **facts)

    async def closed(self, context: Context) -> None:
        await self.socket.send(type="done", done=True, status_code=200, context_id=context.name)

    async def refuse(self, status: int, facts: dict[str, Any], name: str | None) -> None:
        body = _error_body(status, facts, self.socket.request_id)
        await self.socket.send(type="error", done=True, context_id=name, **body)


DIALECT = Dialect(
    name="cartesia",
    title="Cartesia",
    paths=re.compile(r"(?P<json>/tts/(bytes|sse))|/tts/websocket"),
    error_body=_error_body,
    add_routes=_add_routes,
)
