"""ElevenLabs' HTTP routes and WebSockets.

A message of a WebSocket has {"text", "context_id", "flush", "close_context", "close_socket"}; the
path `stream-input` has one context, and empty text ends it. The server answers with {"audio" (in
base64), "alignment", "normalizedAlignment", "contextId"}, and with {"isFinal": true} at the end of
a context.
"""

import json
import re
from collections.abc import AsyncIterator, Iterable
from typing import Any, Literal

from fastapi import FastAPI, Request, Response, WebSocket
from pydantic import Field
from starlette.datastructures import Headers

from qwen_megakernel.errors import UsageError
from qwen_megakernel.printable import printable
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.dialects.dialect import ROUTE, Dialect, DialectSession, Fields
from qwen_megakernel.server.dialects.letters import LetterTimer, TimedLetters, timed
from qwen_megakernel.server.encoders import AudioFormat
from qwen_megakernel.server.error_responses import POLICY, ApiError
from qwen_megakernel.server.responses import SpeechResponse, base64_of, whole, with_audio
from qwen_megakernel.server.schemas import SpeechPlan
from qwen_megakernel.server.session import Context, wrong
from qwen_megakernel.server.utterance import Utterance

_ROUTE = "/v1/text-to-speech/{voice}"
_DEFAULT_FORMAT = "mp3_44100_128"
_RATES = (8000, 16000, 22050, 24000, 32000, 44100, 48000)
_MP3 = ((22050, 32), (24000, 48), *((44100, kbits) for kbits in (32, 64, 96, 128, 192)))
_OPUS = (32, 64, 96, 128, 192)
_FORMATS = {
    **{f"mp3_{rate}_{kbits}": AudioFormat("mp3", rate, kbits=kbits) for rate, kbits in _MP3},
    **{f"{kind}_{rate}": AudioFormat(kind, rate) for kind in ("pcm", "wav") for rate in _RATES},
    **{f"{kind}_8000": AudioFormat(kind, 8000) for kind in ("ulaw", "alaw")},
    **{f"opus_48000_{kbits}": AudioFormat("opus", 48000, kbits=kbits) for kbits in _OPUS},
}


class VoiceSettings(Fields):
    """The settings of a voice; only its speed has a meaning here."""

    speed: float | None = Field(None, ge=0.25, le=4)


class Settings(Fields):
    """What a request, the URL of a WebSocket and the first message of a context share."""

    model_id: str | None = Field(None, description="Any; it means the loaded model.")
    language_code: str | None = Field(None, max_length=64)
    seed: int | None = Field(None, ge=0, lt=2**64)
    apply_text_normalization: Literal["auto", "on", "off"] | None = None
    enable_ssml_parsing: bool | None = None
    voice_settings: VoiceSettings | None = None
    continuity: str | None = Field(None, description="Not of the vendor's.")

    def fields(self) -> dict[str, Any]:
        """Return the fields of `SpeechSettings` that these mean."""
        normalize = self.apply_text_normalization
        return {
            "language": self.language_code,
            "seed": self.seed,
            "continuity": self.continuity,
            "normalize": None if normalize == "auto" else normalize,
            "text_format": "ssml" if self.enable_ssml_parsing else None,
            "speed": self.voice_settings and self.voice_settings.speed,
        }


class ElevenLabsBody(Settings):
    """The body of a POST to /v1/text-to-speech/{voice}."""

    text: str = Field(description="The text to speak.")


def _audio_of(output_format: str, known: Iterable[str]) -> AudioFormat:
    if output_format not in known:
        raise Fields.unsupported("output_format", output_format, known)
    return _FORMATS[output_format]


# ---- HTTP ----------------------------------------------------------------------------------------


class ElevenLabs(Dialect):
    """ElevenLabs' routes."""

    name, title = "elevenlabs", "ElevenLabs"
    paths = re.compile("/v1/text-to-speech/.*|/v[12]/voices", re.DOTALL)
    # What clients send by default, or what concerns only the vendor's own machines.
    harmless = (
        *("text", "context_id", "flush", "close_context", "auto_mode", "chunk_length_schedule"),
        *("enable_logging", "generation_config", "inactivity_timeout"),
        *("optimize_streaming_latency", "output_format", "sync_alignment"),
        *("try_trigger_generation", "xi_api_key"),
    )

    def has(self, path: str, headers: Headers) -> bool:
        return super().has(path, headers) or (path == "/v1/models" and "xi-api-key" in headers)

    def add_routes(self, app: FastAPI) -> None:
        def add(path: str, *, is_whole: bool, is_timed: bool, summary: str) -> None:
            @app.post(_ROUTE + path, summary=f"Speak a text: {summary}", **ROUTE)
            async def speak(
                voice: str,
                body: ElevenLabsBody,
                request: Request,
                output_format: str = _DEFAULT_FORMAT,
            ) -> Response:
                audio = _audio_of(output_format, _FORMATS)
                self.ignore(body.unknown() | {*request.query_params})
                fields = body.fields()
                speaking = await self.speak(request, body.text, voice, audio, **fields)
                if not is_timed:
                    return self.audio(speaking, is_whole=is_whole)
                lines, kind = _lines(speaking, is_whole=is_whole), "application/json"
                return SpeechResponse(speaking, lines, kind, self.last_line, is_whole=is_whole)

        add("", is_whole=True, is_timed=False, summary="one file")
        add("/stream", is_whole=False, is_timed=False, summary="audio while it is made")
        add("/with-timestamps", is_whole=True, is_timed=True, summary="audio and times of letters")
        stream = "lines of JSON with audio and times of letters"
        add("/stream/with-timestamps", is_whole=False, is_timed=True, summary=stream)

        def add_socket(path: str, *, is_multi: bool) -> None:
            @app.websocket(_ROUTE + path)
            async def stream_input(websocket: WebSocket, voice: str) -> None:
                session = _ElevenLabsSession(websocket, self, voice, is_multi=is_multi)
                await session.plan(session.asked)  # refuses what is wrong
                await session.run()

        add_socket("/stream-input", is_multi=False)
        add_socket("/multi-stream-input", is_multi=True)

        @app.get("/v1/voices")
        @app.get("/v2/voices")
        async def voices() -> dict[str, Any]:
            """List the voices, in ElevenLabs' form."""
            names = [*self.service.engine.voices, *self.settings.voice_aliases]
            found = [{"voice_id": name, "name": name, "category": "premade"} for name in names]
            page = {"has_more": False, "total_count": len(found), "next_page_token": None}
            return {"voices": found, **page}

    def models(self) -> list[dict[str, Any]]:
        engine = self.service.engine
        name = engine.files.name
        languages = [{"language_id": each, "name": each} for each in engine.languages]
        facts = {"can_do_text_to_speech": True, "languages": languages}
        return [{"model_id": name, "name": name, **facts}]

    def error_body(self, error: ApiError, request_id: str) -> dict[str, Any]:
        return {"detail": {"status": error.code, "message": error.message}}

    def last_line(self, error: Exception) -> bytes:
        """Return the line that reports an error after others."""
        return _json_line(self.error_body(ApiError.of(error), ""))


async def _lines(speaking: ActiveSpeech, *, is_whole: bool) -> AsyncIterator[bytes]:
    """Yield lines of JSON with audio and times of letters; one line for a whole speech."""
    if is_whole:
        async for file in whole(speaking):
            line = _line(b"", *await LetterTimer(speaking).take())
            yield await with_audio(line, b'"audio_base64": ', file)
        return
    async for audio, letters in timed(speaking):
        yield _line(audio, *letters)


def _in_seconds(letters: TimedLetters) -> dict[str, Any] | None:
    if not letters:
        return None
    return {
        "characters": [letter for letter, _, _ in letters],
        "character_start_times_seconds": [round(start_s, 3) for _, start_s, _ in letters],
        "character_end_times_seconds": [round(end_s, 3) for _, _, end_s in letters],
    }


def _line(audio: bytes, written: TimedLetters, spoken: TimedLetters) -> bytes:
    times = {"alignment": _in_seconds(written), "normalized_alignment": _in_seconds(spoken)}
    return _json_line({"audio_base64": base64_of(audio), **times})


def _json_line(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts).encode() + b"\n"


# ---- WebSockets ----------------------------------------------------------------------------------


class _ElevenLabsSession(DialectSession):
    """A connection of an ElevenLabs client."""

    def __init__(self, websocket: WebSocket, dialect: Dialect, voice: str, *, is_multi: bool):
        super().__init__(websocket, dialect)
        query = dict(websocket.query_params)
        self._voice, self._is_multi = voice, is_multi
        # Each text would begin with the header of a wav.
        known = [name for name in _FORMATS if not name.startswith("wav")]
        self._audio = _audio_of(query.get("output_format", _DEFAULT_FORMAT), known)
        # LiveKit's client asks for this and counts times from the start of the context; all others
        # count them from the end of the message before.
        self._counts_on = query.get("sync_alignment") == "true"
        self._is_auto = query.get("auto_mode") == "true"
        self.asked = Settings.model_validate(query, strict=False)
        dialect.ignore(self.asked.unknown())

    async def plan(self, settings: Settings) -> SpeechPlan:
        """Return the plan of a text; see `Dialect.configure`."""
        return await self.dialect.configure(self._voice, self._audio, **settings.fields())

    async def obey(self, facts: dict[str, Any]) -> bool:
        text, given = facts.get("text"), facts.get("context_id")
        name = "" if given is None else given
        for key, value in (("text", "" if text is None else text), ("context_id", name)):
            if not isinstance(value, str):
                raise wrong(key, value, "a string")
        if self._is_multi and facts.get("close_socket"):
            return True
        if self._is_multi and facts.get("close_context"):
            self._close_context(name)
            return False
        if text is None and not facts.get("flush"):
            raise UsageError("The message has neither text nor flush, close_context, close_socket.")
        context = self.contexts.get(name)
        if context and context.is_closing:
            context = None
        settings = Settings.model_validate(self.asked.model_dump() | facts)
        if context is None and text:
            self.dialect.ignore(settings.unknown())
            context = self.open(name, await self.plan(settings), settings.fields())
        elif context and facts.get("voice_settings") and settings.fields() != context.settings:
            raise UsageError(
                f'Context "{printable(name, 80)}" exists with other settings.',
                hint="Settings belong into the first message of a context; close it first.",
            )
        if context:
            await context.feed(text or "", is_sentence=self._is_auto)
            context.expect_text()  # empty text keeps a context waiting
            if facts.get("flush"):
                context.end()
        return not self._is_multi and text == "" and not facts.get("flush")

    def _close_context(self, name: str) -> None:
        """End a context: text that was not flushed is dropped, the rest is spoken.

        A client that closes a context again no longer listens to its name: Pipecat does so when its
        user interrupts.
        """
        if context := self.contexts.get(name):
            if context.is_closing:
                for each in self.speaking:
                    if each.name == name:
                        each.cancel()
            elif context.writing:
                context.writing.cancel()
            context.close()

    async def messages(
        self, context: Context, text: Utterance, speaking: ActiveSpeech
    ) -> AsyncIterator[dict[str, Any]]:
        async for audio, letters in timed(speaking):
            times = [self._in_ms(context, which, letters[which]) for which in (0, 1)]
            facts: dict[str, Any] = {"audio": base64_of(audio) if audio else None, "isFinal": None}
            facts |= {"alignment": times[0], "normalizedAlignment": times[1]}
            yield facts | self._named(context.name)

    def _in_ms(self, context: Context, which: int, letters: TimedLetters) -> dict[str, Any] | None:
        """Return letters with whole milliseconds, counted from the end of the letters before."""
        if not letters:
            return None

        def ms(seconds: float) -> int:
            return round(1000 * (context.heard_s + seconds))

        base_ms = 0 if self._counts_on else context.counted_ms[which]
        context.counted_ms[which] = ms(letters[-1][2])
        return {
            "chars": [letter for letter, _, _ in letters],
            "charStartTimesMs": [ms(start_s) - base_ms for _, start_s, _ in letters],
            "charDurationsMs": [ms(end_s) - ms(start_s) for _, start_s, end_s in letters],
        }

    def _named(self, name: str | None) -> dict[str, str]:
        return {"contextId": name} if self._is_multi and name else {}

    async def closed(self, context: Context) -> None:
        await self.send(audio=None, isFinal=True, **self._named(context.name))

    async def report(self, error: ApiError, name: str | None) -> None:
        facts = {"message": error.message, "error": error.code, "code": POLICY}
        await self.send(**facts, **self._named(name))
