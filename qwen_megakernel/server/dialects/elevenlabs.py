"""ElevenLabs' HTTP routes and WebSockets.

A message of a WebSocket has {"text", "context_id", "flush", "close_context", "close_socket"}; the
path `stream-input` has one context, and empty text ends it. The server answers with {"audio" (in
base64), "alignment", "normalizedAlignment", "contextId"}, and with {"isFinal": true} at the end of
a context.
"""

import base64
import json
import re
from collections.abc import AsyncIterator
from typing import Any, Literal

from fastapi import FastAPI, Request, Response, WebSocket
from pydantic import Field

from qwen_megakernel.errors import UnknownVoice, UsageError
from qwen_megakernel.printable import printable
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.dialects.dialect import Desk, Dialect, Fields, Sound, unsupported
from qwen_megakernel.server.dialects.letters import LetterTimer, TimedLetters
from qwen_megakernel.server.dialects.session import Context, ContextSession, serve, wrong
from qwen_megakernel.server.error_responses import error_facts
from qwen_megakernel.server.responses import audio_bytes, held
from qwen_megakernel.server.service import Service

_ROUTE = "/v1/text-to-speech/{voice}"
_DEFAULT_FORMAT = "mp3_44100_128"
_RATES = (8000, 16000, 22050, 24000, 32000, 44100, 48000)
_MP3 = ((22050, 32), (24000, 48), *((44100, kbits) for kbits in (32, 64, 96, 128, 192)))
_OPUS = (32, 64, 96, 128, 192)
_FORMATS = {
    **{f"mp3_{rate}_{kbits}": Sound("mp3", rate, kbits=kbits) for rate, kbits in _MP3},
    **{f"{kind}_{rate}": Sound(kind, rate) for kind in ("pcm", "wav") for rate in _RATES},
    **{f"{kind}_8000": Sound(kind, 8000) for kind in ("ulaw", "alaw")},
    **{
        f"opus_48000_{kbits}": Sound("opus", 48000, kbits=kbits) for kbits in (32, 64, 96, 128, 192)
    },
}
# What clients send by default, or what concerns only the vendor's own machines.
_HARMLESS = (
    *("auto_mode", "chunk_length_schedule", "enable_logging", "flush_after_generation"),
    *("generation_config", "inactivity_timeout", "optimize_streaming_latency"),
    *("try_trigger_generation", "xi_api_key", "xi-api-key", "authorization"),
)


class VoiceSettings(Fields):
    """The settings of a voice; only its speed has a meaning here."""

    speed: float | None = Field(None, ge=0.25, le=4)


class Settings(Fields):
    """What a request and the URL of a WebSocket share."""

    language_code: str | None = Field(None, max_length=64)
    seed: int | None = Field(None, ge=0, lt=2**64)
    apply_text_normalization: Literal["auto", "on", "off"] | None = None
    enable_ssml_parsing: bool | None = None
    voice_settings: VoiceSettings | None = None
    model_id: str | None = None  # of the vendor's models; here it means the loaded one

    def options(self) -> dict[str, Any]:
        """Return the fields of `SpeechSettings` that these mean."""
        return {
            "language": self.language_code,
            "seed": self.seed,
            "normalize": {"on": "on", "off": "off"}.get(self.apply_text_normalization or ""),
            "text_format": "ssml" if self.enable_ssml_parsing else None,
            "speed": self.voice_settings.speed if self.voice_settings else None,
        }


class SpeechRequest(Settings):
    """The body of a POST to /v1/text-to-speech/{voice}."""

    text: str = Field(description="The text to speak.")


def sound_of(output_format: str, *, is_streamed: bool = False) -> Sound:
    """Return the audio that an `output_format` names.

    Args:
        is_streamed: over a WebSocket, whose texts would each begin with the header of a wav.
    Raises:
        ApiError: 400, the server does not make it; lists what it makes.
    """
    known = [name for name in _FORMATS if not (is_streamed and name.startswith("wav"))]
    if output_format not in known:
        raise unsupported("output_format", output_format, known)
    return _FORMATS[output_format]


# ---- HTTP ----------------------------------------------------------------------------------------


def _in_seconds(timed: TimedLetters) -> dict[str, Any] | None:
    if not timed.letters:
        return None
    return {
        "characters": list(timed.letters),
        "character_start_times_seconds": [round(each, 3) for each in timed.starts],
        "character_end_times_seconds": [round(each, 3) for each in timed.ends],
    }


async def _timed_pieces(
    speaking: ActiveSpeech, pieces: AsyncIterator[bytes]
) -> AsyncIterator[tuple[bytes, TimedLetters, TimedLetters]]:
    """Yield audio with the letters whose times have become final; either may be empty."""
    timer = LetterTimer(speaking)
    async for audio in pieces:
        written, spoken = await timer.take()
        if audio or written.letters or spoken.letters:
            yield audio, written, spoken


def _add_routes(app: FastAPI, service: Service) -> None:
    desk = Desk("elevenlabs", service, _HARMLESS)

    async def begin(
        voice: str, body: SpeechRequest, request: Request, output_format: str
    ) -> tuple[ActiveSpeech, Sound]:
        sound = sound_of(output_format)
        desk.ignore(body.unknown() | (set(request.query_params) - {"output_format"}))
        options = await desk.configure(voice, sound, **body.options())
        return await desk.speak(request, body.text, options), sound

    @app.post(_ROUTE, response_class=Response)
    async def convert(
        voice: str, body: SpeechRequest, request: Request, output_format: str = _DEFAULT_FORMAT
    ) -> Response:
        """Speak a text, in ElevenLabs' form: one complete file."""
        speaking, sound = await begin(voice, body, request, output_format)
        return await desk.audio(request, speaking, sound, is_whole=True)

    @app.post(_ROUTE + "/stream", response_class=Response)
    async def stream(
        voice: str, body: SpeechRequest, request: Request, output_format: str = _DEFAULT_FORMAT
    ) -> Response:
        """Speak a text, in ElevenLabs' form: audio while it is made."""
        speaking, sound = await begin(voice, body, request, output_format)
        return await desk.audio(request, speaking, sound, is_whole=False)

    def timed(speaking: ActiveSpeech, sound: Sound) -> AsyncIterator[Any]:
        encoder = desk.encoder(sound, speaking.record.sample_rate)
        return _timed_pieces(speaking, audio_bytes(speaking, encoder))

    @app.post(_ROUTE + "/with-timestamps")
    async def convert_with_timestamps(
        voice: str, body: SpeechRequest, request: Request, output_format: str = _DEFAULT_FORMAT
    ) -> dict[str, Any]:
        """Speak a text, in ElevenLabs' form: all audio in base64, and the times of letters."""
        speaking, sound = await begin(voice, body, request, output_format)
        audio, written, spoken = b"", TimedLetters(), TimedLetters()
        async with held(speaking, request.receive, service.settings):
            async for piece, *letters in timed(speaking, sound):
                audio += piece
                written.extend(letters[0])
                spoken.extend(letters[1])
        return _json(audio, _in_seconds(written), _in_seconds(spoken))

    @app.post(_ROUTE + "/stream/with-timestamps", response_class=Response)
    async def stream_with_timestamps(
        voice: str, body: SpeechRequest, request: Request, output_format: str = _DEFAULT_FORMAT
    ) -> Response:
        """Speak a text, in ElevenLabs' form: lines of JSON with audio and the times of letters."""
        speaking, sound = await begin(voice, body, request, output_format)

        async def lines() -> AsyncIterator[bytes]:
            async for audio, written, spoken in timed(speaking, sound):
                yield _line(_json(audio, _in_seconds(written), _in_seconds(spoken)))

        return desk.stream(speaking, lines(), "application/json", _line_of_error)

    @app.websocket(_ROUTE + "/stream-input")
    async def stream_input(websocket: WebSocket, voice: str) -> None:
        await serve(websocket, lambda: _ElevenLabsSession.of(websocket, desk, voice, multi=False))

    @app.websocket(_ROUTE + "/multi-stream-input")
    async def multi_stream_input(websocket: WebSocket, voice: str) -> None:
        await serve(websocket, lambda: _ElevenLabsSession.of(websocket, desk, voice, multi=True))

    _add_lists(app, service)


def _add_lists(app: FastAPI, service: Service) -> None:
    def entries() -> list[dict[str, Any]]:
        names = [*service.engine.voices, *service.settings.voice_aliases]
        return [
            {"voice_id": name, "name": name, "category": "premade", "labels": {}, "samples": []}
            for name in names
        ]

    @app.get("/v1/voices")
    async def voices() -> dict[str, Any]:
        """List the voices, in ElevenLabs' form."""
        return {"voices": entries()}

    @app.get("/v2/voices")
    async def search() -> dict[str, Any]:
        """List the voices, in ElevenLabs' form of version 2: all on one page."""
        found = entries()
        return {
            "voices": found,
            "has_more": False,
            "total_count": len(found),
            "next_page_token": None,
        }

    @app.get("/v1/voices/{voice}")
    async def voice(voice: str) -> dict[str, Any]:
        """Describe a voice, in ElevenLabs' form."""
        found = next((each for each in entries() if each["voice_id"] == voice), None)
        if found is None:
            raise UnknownVoice(
                f'No voice is called "{voice[:80]}".', hint="GET /v1/voices lists them."
            )
        return found


def _models(service: Service) -> list[dict[str, Any]]:
    """Return the list of GET /v1/models, in ElevenLabs' form."""
    engine = service.engine
    languages = [{"language_id": name, "name": name} for name in engine.languages]
    return [
        {
            "model_id": engine.files.name,
            "name": engine.files.name,
            "can_do_text_to_speech": True,
            "can_do_voice_conversion": False,
            "languages": languages,
            "maximum_text_length_per_request": service.settings.max_chars,
        }
    ]


def _json(audio: bytes, written: Any, spoken: Any) -> dict[str, Any]:
    encoded = base64.b64encode(audio).decode("ascii")
    return {"audio_base64": encoded, "alignment": written, "normalized_alignment": spoken}


def _line(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode() + b"\n"


def _error_body(status: int, facts: dict[str, Any], request_id: str) -> dict[str, Any]:
    return {"detail": {"status": facts["code"], "message": facts["message"]}}


def _line_of_error(error: Exception) -> bytes:
    status, facts, _ = error_facts(error)
    return _line(_error_body(status, facts, ""))


# ---- WebSockets ----------------------------------------------------------------------------------


class _ElevenLabsSession(ContextSession):
    """A connection of an ElevenLabs client."""

    def __init__(self, websocket: WebSocket, desk: Desk, voice: str, *, multi: bool):
        super().__init__(websocket, desk)
        query = dict(websocket.query_params)
        self._voice, self._multi = voice, multi
        self._sound = sound_of(query.pop("output_format", _DEFAULT_FORMAT), is_streamed=True)
        # Clients differ: LiveKit's asks for this and counts times from the start of the context,
        # all others count them from the end of the message before.
        self._counts_on = query.pop("sync_alignment", "") == "true"
        values: dict[str, Any] = {**query}
        if "enable_ssml_parsing" in query:
            values["enable_ssml_parsing"] = query["enable_ssml_parsing"] == "true"
        if query.get("seed", "").isdecimal():
            values["seed"] = int(query["seed"])
        self._settings = Settings.model_validate(values)
        desk.ignore(self._settings.unknown())

    @classmethod
    async def of(
        cls, websocket: WebSocket, desk: Desk, voice: str, *, multi: bool
    ) -> "_ElevenLabsSession":
        """Return a session, whose voice and settings were checked."""
        session = cls(websocket, desk, voice, multi=multi)
        await session._options(session._settings)
        return session

    async def _options(self, settings: Settings) -> dict[str, Any]:
        return await self.desk.configure(self._voice, self._sound, **settings.options())

    async def obey(self, facts: dict[str, Any]) -> bool:
        """See `ContextSession`."""
        text, name = facts.get("text"), facts.get("context_id")
        if text is not None and not isinstance(text, str):
            raise wrong("text", text, "a string")
        if name is not None and not isinstance(name, str):
            raise wrong("context_id", name, "a string")
        if self._multi and facts.get("close_socket"):
            return True
        if self._multi and facts.get("close_context"):
            self._close_context(name or "")
            return False
        context = self.contexts.get(name or "")
        if text is None and not facts.get("flush"):
            raise UsageError(
                "The message has no `text`.",
                hint="Known besides: flush, context_id, close_context, close_socket.",
            )
        if context is None and text:
            context = await self._new_context(name or "", facts)
        elif context is not None and text and facts.get("voice_settings") is not None:
            await self._check_settings(context, facts)
        if context is not None:
            if text:
                await self.feed(context, text)
            self.expect_text(context)
            if facts.get("flush"):
                context.flush()
        return not self._multi and text == "" and not facts.get("flush")

    async def _new_context(self, name: str, facts: dict[str, Any]) -> Context:
        settings = self._merged(facts)
        self.desk.ignore(settings.unknown())
        return self.open(name, await self._options(settings), self._sound, settings.options())

    def _merged(self, facts: dict[str, Any]) -> Settings:
        given = {key: facts[key] for key in facts if key not in ("text", "context_id", "flush")}
        return Settings.model_validate(self._settings.model_dump() | given)

    async def _check_settings(self, context: Context, facts: dict[str, Any]) -> None:
        if self._merged(facts).options() != context.settings:
            raise UsageError(
                f'Context "{printable(context.name, 80)}" exists with other settings.',
                hint="Settings belong into the first message of a context; close it first.",
            )

    def _close_context(self, name: str) -> None:
        """End a context: text that was not flushed is dropped, the rest is spoken.

        A client that closes a context again no longer listens to it: Pipecat does so when its user
        interrupts.
        """
        if context := self.contexts.get(name):
            if context.writing:
                context.writing.cancel()
            self.close(context)
        elif context := self.leaving.get(name):
            context.cancel()

    async def relay(
        self, context: Context, speaking: ActiveSpeech, pieces: AsyncIterator[bytes]
    ) -> None:
        """See `ContextSession`."""
        async for audio, *letters in _timed_pieces(speaking, pieces):
            written, spoken = (
                self._in_ms(context, which, timed) for which, timed in enumerate(letters)
            )
            await self.socket.send(
                audio=base64.b64encode(audio).decode("ascii") if audio else None,
                isFinal=None,
                alignment=written,
                normalizedAlignment=spoken,
                **self._named(context.name),
            )

    def _in_ms(self, context: Context, which: int, timed: TimedLetters) -> dict[str, Any] | None:
        """Return letters with whole milliseconds, counted from the end of the letters before."""
        if not timed.letters:
            return None
        starts, ends = (
            [round(1000 * (context.heard_s + each)) for each in times]
            for times in (timed.starts, timed.ends)
        )
        base = 0 if self._counts_on else context.counted_ms[which]
        context.counted_ms[which] = ends[-1]
        return {
            "chars": list(timed.letters),
            "charStartTimesMs": [start - base for start in starts],
            "charDurationsMs": [end - start for start, end in zip(starts, ends, strict=True)],
        }

    def _named(self, name: str | None) -> dict[str, str]:
        return {"contextId": name} if self._multi and name else {}

    async def closed(self, context: Context) -> None:
        """See `ContextSession`."""
        await self.socket.send(audio=None, isFinal=True, **self._named(context.name))

    async def refuse(self, error: Exception, name: str | None) -> None:
        """See `ContextSession`."""
        facts = error_facts(error)[1]
        named = self._named(name)
        await self.socket.send(message=facts["message"], error=facts["code"], code=1008, **named)


DIALECT = Dialect(
    name="elevenlabs",
    paths=re.compile(r"/v1/text-to-speech/.*|/v[12]/voices|/v1/voices/.*"),
    posts=re.compile(r"/v1/text-to-speech/[^/]+(/stream)?(/with-timestamps)?"),
    models=_models,
    key_headers=("xi-api-key",),
    key_queries=("xi-api-key", "xi_api_key", "authorization"),
    how_to_send="xi-api-key: KEY",
    error_body=_error_body,
    add_routes=_add_routes,
)
