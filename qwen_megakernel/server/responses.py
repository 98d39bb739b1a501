"""Responses that carry speech to an HTTP client, as audio or as events.

A client that reads nothing for a while is cut off; a client that disconnects ends its stream.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from qwen_megakernel.audio import joined, to_float32, to_int16
from qwen_megakernel.errors import QwenTTSError
from qwen_megakernel.printable import get_logger
from qwen_megakernel.records import AudioChunk
from qwen_megakernel.server.active_speech import ActiveSpeech, encoded, encoded_whole, sent
from qwen_megakernel.server.encoders import Encoder
from qwen_megakernel.server.error_responses import error_facts
from qwen_megakernel.server.headers import header_value
from qwen_megakernel.server.settings import MEDIA_TYPES, ServerSettings
from qwen_megakernel.sound.loudness import at_loudness

logger = get_logger(__name__)

EVENT_STREAM = "text/event-stream"
DONE = b"data: [DONE]\n\n"
_PROGRESS, _TIMESTAMPS = "speech.audio.progress", "speech.audio.timestamps"  # types of events
# Keys of scope["state"], put there by `serving`: functions without arguments.
ABORT = "abort_connection"
KEEP = "keep_connection"


async def audio_bytes(speaking: ActiveSpeech, encoder: Encoder) -> AsyncIterator[bytes]:
    """Yield the speech as one file; a piece is empty while the encoder holds samples back."""
    async for chunk in speaking.chunks():
        yield await encoded(encoder, chunk.samples)
    yield await encoded(encoder, None)


async def file_at_end(speaking: ActiveSpeech, kind: str, **how: Any) -> AsyncIterator[bytes]:
    """Yield an empty piece for each chunk, then one complete file; see `encoded_whole`."""
    whole: list[np.ndarray] = []
    async for chunk in speaking.chunks():
        whole.append(chunk.samples)
        yield b""
    yield await encoded_whole(speaking, joined(whole), kind, **how)


async def events(
    speaking: ActiveSpeech,
    encoder: Encoder,
    *,
    include_codes: bool,
    max_steps: int | None,
    granularities: Collection[str] = (),
) -> AsyncIterator[bytes]:
    """Yield the speech as server-sent events.

    Args:
        encoder: encodes the audio of the deltas, which joined are one file. No delta is empty:
            while the encoder holds samples back, the next delta covers more frames.
        max_steps: the most frames that the request can have. It adds to OpenAI's events one for
            each frame, and at the end the whole speech as WAV and "[DONE]"; None: it adds nothing.
        granularities: kinds of timestamps to send, once they are final; they may be ahead of the
            audio that was sent.
    """
    stream, rate = speaking.stream, speaking.record.sample_rate
    whole: list[np.ndarray] = []
    held: list[AudioChunk] = []  # chunks that the encoder still holds back

    def delta(audio: bytes) -> bytes:
        frames: dict[str, Any] = {}
        if held:
            frames["frame_index"] = held[0].frame_index
            frames["num_frames"] = sum(chunk.num_frames for chunk in held)
            frames["start_s"] = round(held[0].start_s, 6)
            if drifts := [asdict(drift) for chunk in held for drift in chunk.drifts]:
                frames["drifts"] = drifts
            if include_codes:
                begin, num_frames = frames["frame_index"], frames["num_frames"]
                frames["codes"] = stream.codes[begin : begin + num_frames].tolist()
        held.clear()
        frames |= {"sample_rate": rate, "t_ms": round(speaking.record.elapsed_ms, 3)}
        frames |= speaking.mark.fields
        return _event(type="speech.audio.delta", audio=base64_of(audio), **frames)

    async for chunk in speaking.chunks():
        out = b""
        if max_steps is not None:
            whole.append(chunk.samples)
            for step in range(chunk.frame_index + 1, chunk.frame_index + chunk.num_frames + 1):
                out += _event(type=_PROGRESS, phase="decoding", step=step, max_steps=max_steps)
        held.append(chunk)
        if audio := await encoded(encoder, chunk.samples):
            out += delta(audio)
        if found := await speaking.timestamps(granularities):
            out += _event(type=_TIMESTAMPS, **found)
        if out:
            yield out
    audio = await encoded(encoder, None)
    out = delta(audio) if audio else b""
    if found := await speaking.timestamps(granularities):
        out += _event(type=_TIMESTAMPS, **found)
    done = speaking.facts() | {"usage": speaking.usage} | speaking.mark.fields
    if max_steps is None:
        yield out + _event(type="speech.audio.done", **done)
        return
    yield out + _event(type=_PROGRESS, phase="vocoder")
    wav = await encoded_whole(speaking, joined(whole), "wav")
    done = {"phase": "done"} | done | {"audio": base64_of(wav)}
    yield _event(type="speech.audio.done", **done) + DONE


async def phases(speaking: ActiveSpeech, max_steps: int) -> AsyncIterator[bytes]:
    """Yield the speech as events of phases: a step for each frame, and the audio at the end.

    Args:
        speaking: a speech whose chunks are single frames.
        max_steps: the most frames that the request can have.
    """
    whole: list[np.ndarray] = []
    async for chunk in speaking.chunks():
        whole.append(chunk.samples)
        for step in range(chunk.frame_index + 1, chunk.frame_index + chunk.num_frames + 1):
            yield _event(phase="decoding", step=step, max_steps=max_steps)
    yield _event(phase="vocoder")
    wav = await encoded_whole(speaking, joined(whole), "wav")
    facts = speaking.facts()
    done = {name: facts[name] for name in ("n_steps", "n_samples", "elapsed_ms")}
    yield _event(phase="done", **done, audio=base64_of(wav)) + DONE


def phase_of_error(error: Exception) -> bytes:
    """Return the event that reports an error to a client that reads `phases`."""
    return _event(phase="error", error=error_facts(error)[1])


def error_event(error: Exception) -> bytes:
    """Return the event that reports an error to a client that reads `events`."""
    return _event(type="speech.audio.error", phase="error", error=error_facts(error)[1])


def _event(**facts: Any) -> bytes:
    return b"data: %s\n\n" % json.dumps(facts, separators=(",", ":")).encode()


def base64_of(data: bytes) -> str:
    """Return bytes as text in base64."""
    return base64.b64encode(data).decode("ascii")


class SpeechResponse(Response):
    """A response that sends speech while it is made; errors before the first piece set the status.

    Args:
        settings: the deadline, and the time that a client may stall.
        on_error: makes the last piece of a body that failed; None: the connection is cut, the only
            way to report an error in the middle of audio.
    """

    def __init__(
        self,
        speaking: ActiveSpeech,
        body: AsyncIterator[bytes],
        *,
        media_type: str,
        headers: Mapping[str, str],
        settings: ServerSettings,
        on_error: Callable[[Exception], bytes] | None = None,
    ):
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]
        self._speaking, self._body = speaking, body
        self._settings, self._on_error = settings, on_error
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        watcher = asyncio.create_task(_close_when_gone(self._speaking, receive))
        self._scope = scope
        try:
            with self._speaking:
                await self._send_all(send)
        except Exception as error:
            if not self._started:
                raise  # `error_responses` answers it
            request_id = self._speaking.request_id
            if isinstance(error, ConnectionAbortedError):
                logger.info("The client of speech %s did not read it in time.", request_id)
                return
            if not isinstance(error, QwenTTSError):
                logger.error("Speech %s failed while it was sent.", request_id, exc_info=error)
            if self._on_error is None:
                abort(scope)
            else:
                await self._send(send, self._on_error(error), last=True)
        finally:
            watcher.cancel()

    async def _send_all(self, send: Send) -> None:
        async with self._speaking.limited(self._settings.deadline_s):
            async for piece in self._body:
                if not self._started:
                    await self._start(send)
                if piece:
                    await self._send(send, piece)
        if not self._started:
            await self._start(send)
        await self._send(send, b"", last=True)

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._started = True

    async def _send(self, send: Send, piece: bytes, *, last: bool = False) -> None:
        """Send a piece; raises `ConnectionAbortedError` if the client does not read it."""
        writing = send({"type": "http.response.body", "body": piece, "more_body": not last})
        await sent(writing, self._settings.stall_timeout_s, lambda: abort(self._scope))


async def buffered(
    speaking: ActiveSpeech,
    response_format: str,
    encoding: str,
    loudness: float | None,
    receive: Receive,
    settings: ServerSettings,
    granularities: Collection[str] = (),
) -> Response:
    """Return the whole speech in one response, with its length and finish reason.

    Args:
        loudness: the loudness in LUFS; None: unchanged.
        granularities: kinds of timestamps to add; with any, the response is JSON that holds the
            audio.

    Raises:
        DeadlineExceeded: the speech takes too long.
        Exception: the error that ended the stream.
    """
    whole, rate = await whole_samples(speaking, receive, settings), speaking.record.sample_rate
    if loudness is not None:
        heard = to_float32(whole)
        whole = to_int16(await asyncio.to_thread(at_loudness, heard, rate, loudness))
    how = {"opus_kbits": settings.opus_kbits, "encoding": encoding}
    data = await encoded_whole(speaking, whole, response_format, **how)
    headers = {"X-Finish-Reason": str(speaking.finish_reason)}
    if granularities:
        facts: dict[str, Any] = {"audio": base64_of(data), "format": response_format}
        facts |= {f"{name}s": [] for name in granularities}
        facts |= await speaking.timestamps(granularities)
        return JSONResponse(facts | speaking.facts() | speaking.mark.fields, headers=headers)
    return Response(data, media_type=MEDIA_TYPES[response_format], headers=headers)


async def whole_samples(
    speaking: ActiveSpeech, receive: Receive, settings: ServerSettings
) -> np.ndarray:
    """Return all samples of a speech, [num_samples] int16; see `buffered`."""
    watcher = asyncio.create_task(_close_when_gone(speaking, receive))
    try:
        with speaking:
            async with speaking.limited(settings.deadline_s):
                return joined([chunk.samples async for chunk in speaking.chunks()])
    finally:
        watcher.cancel()


def speech_headers(speaking: ActiveSpeech, warnings: list[str]) -> dict[str, str]:
    """Return the headers of a response that carries a speech."""
    headers = {
        "X-Seed": str(speaking.stream.seed),
        "X-Sample-Rate": str(speaking.record.sample_rate),
        "Cache-Control": "no-store",
        **speaking.mark.headers,
    }
    text = speaking.stream.text
    if text.planned_parts is not None:
        headers["X-Parts"] = str(text.planned_parts)
    if text.is_normalized and text.planned_parts is not None:
        headers["X-Spoken-Text"] = header_value(text.spoken)
    if warnings:
        headers["X-Warning"] = header_value("; ".join(warnings))
    return headers


async def _close_when_gone(speaking: ActiveSpeech, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    speaking.close()


def abort(scope: Scope) -> None:
    """Cut the connection and drop unsent bytes; without `guarded_protocol` the server closes it."""
    scope.get("state", {}).get(ABORT, lambda: None)()


def keep(scope: Scope) -> None:
    """Let no new connection take the place of this WebSocket, whose session is configured."""
    scope.get("state", {}).get(KEEP, lambda: None)()
