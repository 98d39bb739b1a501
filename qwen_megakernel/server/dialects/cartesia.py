"""Cartesia's HTTP routes and WebSocket.

A message of the WebSocket is a whole request: {"context_id", "transcript", "continue", "flush",
"voice", "output_format", "add_timestamps"}, or {"context_id", "cancel": true}. The server answers
with messages of the types chunk, timestamps, flush_done, done and error.
"""

import json
import math
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response, WebSocket
from pydantic import Field, WrapValidator

from qwen_megakernel.errors import UsageError
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.dialects.dialect import RATE, ROUTE, Dialect, DialectSession, Fields
from qwen_megakernel.server.encoders import AudioFormat
from qwen_megakernel.server.error_responses import ApiError
from qwen_megakernel.server.responses import EVENT_STREAM, SpeechResponse, base64_of
from qwen_megakernel.server.schemas import name_or_id
from qwen_megakernel.server.session import MAX_NAME_CHARS, Context, wrong
from qwen_megakernel.server.utterance import Utterance

_BUFFER_DELAY_MS = 3000  # the vendor's, if none is given
_ENCODINGS = {"pcm_s16le": "pcm", "pcm_f32le": "float", "pcm_mulaw": "ulaw", "pcm_alaw": "alaw"}


class OutputFormat(Fields):
    """The audio that a client wants."""

    container: str
    encoding: str = "pcm_s16le"
    sample_rate: int | None = RATE
    bit_rate: int | None = Field(None, ge=1000)  # bit/s

    def audio(self, *containers: str) -> AudioFormat:
        """Return the audio, in one of the containers; raises `ApiError` if it cannot be made."""
        rate, encoding = self.sample_rate or 0, _ENCODINGS.get(self.encoding)
        if self.container not in containers:
            raise self.unsupported("output_format.container", self.container, containers)
        if self.container == "mp3":
            return AudioFormat("mp3", rate, kbits=self.bit_rate and self.bit_rate // 1000)
        if encoding is None:
            raise self.unsupported("output_format.encoding", self.encoding, _ENCODINGS)
        if self.container == "wav" or encoding == "float":
            return AudioFormat("wav" if self.container == "wav" else "pcm", rate, encoding)
        return AudioFormat(encoding, rate)


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
    voice: Annotated[CartesiaVoice | str, WrapValidator(name_or_id)]
    output_format: OutputFormat
    model_id: str | None = Field(None, description="Any; it means the loaded model.")
    language: str | None = Field(None, max_length=64)
    locale: str | None = Field(None, max_length=64)
    normalization: str | None = None
    generation_config: GenerationConfig | None = None
    add_timestamps: bool | None = None
    max_buffer_delay_ms: int | None = Field(None, ge=0, description="0: each text is a sentence.")
    seed: int | None = Field(None, ge=0, lt=2**64, description="Not of the vendor's.")
    continuity: str | None = Field(None, description="Not of the vendor's.")

    def fields(self, *containers: str) -> dict[str, Any]:
        """Return what these mean for `Dialect.configure`; see `OutputFormat.audio`."""
        how = self.generation_config
        return {
            "audio": self.output_format.audio(*containers),
            "voice": self.voice if isinstance(self.voice, str) else self.voice.id,
            "language": self.language or self.locale,
            "normalize": "off" if self.normalization == "off" else None,
            "speed": how and how.speed,
            "volume": 20 * math.log10(how.volume) if how and how.volume else None,
            "seed": self.seed,
            "continuity": self.continuity,
        }


class CartesiaRequest(CartesiaBody):
    """The body of a request over HTTP, which has a text."""

    transcript: str = Field(description="The text to speak.")
    context_id: str | None = Field(None, max_length=MAX_NAME_CHARS)


async def _messages(
    speaking: ActiveSpeech, body: CartesiaBody, begin_s: float = 0.0, **names: Any
) -> AsyncIterator[dict[str, Any]]:
    """Yield a speech, which begins `begin_s` after its context, as chunk and timestamps."""
    common = {"done": False, "status_code": 206, **names}
    async for audio in speaking.audio():
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


def _done(name: Any) -> dict[str, Any]:
    return {"type": "done", "done": True, "status_code": 200, "context_id": name}


def _event(facts: dict[str, Any]) -> bytes:
    return f"event: {facts['type']}\ndata: {json.dumps(facts)}\n\n".encode()


class Cartesia(Dialect):
    """Cartesia's routes."""

    name, title = "cartesia", "Cartesia"
    paths = re.compile("/tts/(bytes|sse|websocket)")
    # What clients send by default, or what concerns only the vendor's own machines.
    harmless = (
        *("mode", "use_normalized_timestamps", "add_phoneme_timestamps"),
        *("context_id", "continue", "flush", "duration", "cancel"),
    )

    def add_routes(self, app: FastAPI) -> None:
        async def begin(body: CartesiaBody, request: Request, *containers: str) -> ActiveSpeech:
            fields = body.fields(*containers)
            self.ignore(body.unknown())
            return await self.speak(request, body.transcript, **fields)

        @app.post("/tts/bytes", **ROUTE)
        async def speak(body: CartesiaRequest, request: Request) -> Response:
            """Speak a text: audio while it is made."""
            speaking = await begin(body, request, "raw", "wav", "mp3")
            return self.audio(speaking, is_whole=speaking.plan.audio.name == "wav")

        @app.post("/tts/sse", **ROUTE)
        async def events(body: CartesiaRequest, request: Request) -> Response:
            """Speak a text: events with audio and times of words."""
            speaking = await begin(body, request, "raw")

            async def lines() -> AsyncIterator[bytes]:
                async for message in _messages(speaking, body, context_id=body.context_id):
                    yield _event(message)
                yield _event(_done(body.context_id))

            def failed(error: Exception) -> bytes:
                facts = self.error_body(ApiError.of(error), speaking.request_id)
                return _event({"type": "error", "done": True} | facts)

            return SpeechResponse(speaking, lines(), EVENT_STREAM, failed)

        @app.websocket("/tts/websocket")
        async def websocket(websocket: WebSocket) -> None:
            await _CartesiaSession(websocket, self).run()

    def error_body(self, error: ApiError, request_id: str) -> dict[str, Any]:
        code = error.code
        shown = {"title": code.replace("_", " ").capitalize(), "message": error.message}
        return {**shown, "error_code": code, "status_code": error.status, "request_id": request_id}


class _CartesiaSession(DialectSession):
    """A connection of a Cartesia client."""

    async def obey(self, facts: dict[str, Any]) -> bool:
        name = facts.get("context_id")
        if not isinstance(name, str) or not name:
            raise wrong("context_id", name, "a string that is not empty")
        context = self.contexts.get(name)
        if facts.get("cancel"):
            if context:
                context.cancel()
                context.is_closing = False  # no `done`, which would end the client's next context
                del self.contexts[name]
            return False
        body = CartesiaBody.model_validate(facts)
        fields = body.fields("raw")
        if context and any(context.settings[each] != fields[each] for each in ("voice", "audio")):
            raise UsageError(
                "The voice or the output_format is not that of the context's first message.",
                hint="Open another context for it.",
            )
        if context is None or context.settings != fields:
            self.dialect.ignore(body.unknown())
            plan = await self.dialect.configure(**fields)
            # One that was being spoken to its end may be over now.
            context = self.contexts.get(name) or self.open(name, plan)
            context.end()  # the text so far keeps its settings
            context.plan, context.settings = plan, fields
        context.is_closing = False  # it takes text again
        context.request, delay_ms = body, body.max_buffer_delay_ms
        limit_s = (delay_ms or _BUFFER_DELAY_MS) / 1000
        context.text_limit_s = min(limit_s, self.settings.idle_timeout_s)
        await context.feed(body.transcript, is_sentence=delay_ms == 0)
        if facts.get("flush"):
            context.mark("flush_done")
        if not facts.get("continue"):
            context.close()
        return False

    def messages(
        self, context: Context, text: Utterance, speaking: ActiveSpeech
    ) -> AsyncIterator[dict[str, Any]]:
        names = {"context_id": context.name, "flush_id": context.num_answers + 1}
        return _messages(speaking, context.request, context.heard_s, **names)

    async def answer(self, context: Context, mark: str) -> None:
        context.num_answers += 1
        facts = {"flush_id": context.num_answers, "flush_done": True, "context_id": context.name}
        await self.send(type=mark, done=False, status_code=206, **facts)

    async def closed(self, context: Context) -> None:
        if not context.has_failed:  # the error was its end
            await self.send(**_done(context.name))

    async def report(self, error: ApiError, name: str | None) -> None:
        body = self.dialect.error_body(error, self.request_id)
        await self.send(type="error", done=True, context_id=name, **body)
