"""Speech on its way to one HTTP client: its bytes, its events, and when to give up.

A client that takes nothing for a while is cut off; one that goes away ends its stream at once.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any

import numpy as np
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from qwen_megakernel.audio import FULL_SCALE, to_int16
from qwen_megakernel.errors import DeadlineExceeded
from qwen_megakernel.records import AudioChunk
from qwen_megakernel.server.active_speech import ActiveSpeech, encoded, encoded_whole
from qwen_megakernel.server.encoders import Encoder
from qwen_megakernel.server.error_responses import error_facts
from qwen_megakernel.server.settings import MEDIA_TYPES, ServerSettings
from qwen_megakernel.sound.loudness import at_loudness

EVENT_STREAM = "text/event-stream"
DONE = b"data: [DONE]\n\n"
ABORT = "abort_connection"  # key of scope["state"], put there by `serving`


async def audio_bytes(speaking: ActiveSpeech, encoder: Encoder) -> AsyncIterator[bytes]:
    """The speech as one file, in pieces; a piece is empty where the encoder holds samples back."""
    async for chunk in speaking.chunks():
        yield await encoded(encoder, chunk.samples)
    yield await encoded(encoder, None)


async def events(
    speaking: ActiveSpeech,
    encoder: Encoder,
    *,
    include_codes: bool,
    max_steps: int | None,
    granularities: Collection[str] = (),
) -> AsyncIterator[bytes]:
    """The speech as server-sent events.

    Args:
        speaking: the speech.
        encoder: of what the deltas hold; put together they are one file. Where it hands out nothing
            yet, the next delta stands for more frames; none is empty.
        include_codes: add each delta's codec frames.
        max_steps: with it, the superset: an event for each frame, at the end the whole as WAV and
            "[DONE]". None: OpenAI's events alone.
        granularities: of the timestamps, an event for those that have settled; they may be ahead of
            the audio that was sent.
    """
    stream, rate = speaking.stream, speaking.record.sample_rate
    whole: list[np.ndarray] = []
    held: list[AudioChunk] = []  # of which the encoder has handed out nothing yet

    def delta(audio: bytes) -> bytes:
        frames: dict[str, Any] = {}
        if held:
            frames["frame_index"] = held[0].frame_index
            frames["num_frames"] = sum(chunk.num_frames for chunk in held)
            frames["start_s"] = round(held[0].start_s, 6)
            if include_codes:
                frames["codes"] = [row for c in held for row in stream.codes_of(c).tolist()]
        held.clear()
        frames |= {"sample_rate": rate, "t_ms": round(speaking.record.elapsed_ms, 3)}
        return _event(type="speech.audio.delta", audio=_base64(audio), **frames)

    async for chunk in speaking.chunks():
        out = b""
        if max_steps is not None:
            whole.append(chunk.samples)
            for step in range(chunk.frame_index + 1, chunk.frame_index + chunk.num_frames + 1):
                out += _progress(phase="decoding", step=step, max_steps=max_steps)
        if len(chunk.samples) or chunk.num_frames:
            held.append(chunk)
        if audio := await encoded(encoder, chunk.samples):
            out += delta(audio)
        if found := await speaking.timestamps(granularities):
            out += _timestamps(found)
        if out:
            yield out
    audio = await encoded(encoder, None)
    out = delta(audio) if audio else b""
    if found := await speaking.timestamps(granularities):
        out += _timestamps(found)
    done = speaking.facts() | {"usage": speaking.usage}
    if max_steps is None:
        yield out + _event(type="speech.audio.done", **done)
        return
    yield out + _progress(phase="vocoder")
    wav = await encoded_whole("wav", np.concatenate(whole), rate)
    done = {"phase": "done"} | done | {"audio": _base64(wav)}
    yield _event(type="speech.audio.done", **done) + DONE


async def phases(speaking: ActiveSpeech, max_steps: int) -> AsyncIterator[bytes]:
    """The speech as events of phases alone: each step as its frame comes, the audio once, at the
    end.

    Args:
        speaking: a speech whose chunks are single frames.
        max_steps: that the request can have.
    """
    whole: list[np.ndarray] = []
    async for chunk in speaking.chunks():
        whole.append(chunk.samples)
        for step in range(chunk.frame_index + 1, chunk.frame_index + chunk.num_frames + 1):
            yield _event(phase="decoding", step=step, max_steps=max_steps)
    yield _event(phase="vocoder")
    wav = await encoded_whole("wav", np.concatenate(whole), speaking.record.sample_rate)
    facts = speaking.facts()
    done = {name: facts[name] for name in ("n_steps", "n_samples", "elapsed_ms")}
    yield _event(phase="done", **done, audio=_base64(wav)) + DONE


def phase_of_error(error: Exception) -> bytes:
    """How an error reaches a client that reads `phases`."""
    return _event(phase="error", error=error_facts(error)[1])


def error_event(error: Exception) -> bytes:
    """How an error reaches a client that reads events."""
    return _event(type="speech.audio.error", phase="error", error=error_facts(error)[1])


def _timestamps(found: Mapping[str, Any]) -> bytes:
    return _event(type="speech.audio.timestamps", **found)


def _progress(**facts: Any) -> bytes:
    return _event(type="speech.audio.progress", **facts)


def _event(**facts: Any) -> bytes:
    return b"data: %s\n\n" % json.dumps(facts, separators=(",", ":")).encode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


class SpeechResponse(Response):
    """Sends speech while it is made. The status is decided by the first piece.

    Args:
        speaking: the speech.
        body: its bytes.
        media_type: of the body.
        headers: of the answer.
        settings: deadline, and how long a client may stall.
        on_error: makes the last piece of a body that failed; None: the connection is cut, which is
            the only way to tell of it in the middle of audio.
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
        try:
            with self._speaking:
                await self._send_all(send)
        except Exception as error:
            if not self._started:
                raise  # becomes an answer of its own
            if self._on_error is None or isinstance(error, TimeoutError):
                abort(scope)
            else:
                await self._send(send, self._on_error(error), last=True)
        finally:
            watcher.cancel()

    async def _send_all(self, send: Send) -> None:
        spent = self._speaking.record.elapsed_ms / 1000
        try:
            async with asyncio.timeout(self._settings.deadline_s - spent):
                async for piece in self._body:
                    if not self._started:
                        await self._start(send)
                    if piece:
                        await self._send(send, piece)
        except TimeoutError as error:
            if isinstance(error, _Stalled):
                raise
            raise DeadlineExceeded(
                f"The speech was not over after {self._settings.deadline_s:.0f} s."
            ) from error
        if not self._started:
            await self._start(send)
        await self._send(send, b"", last=True)

    async def _start(self, send: Send) -> None:
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})

    async def _send(self, send: Send, piece: bytes, *, last: bool = False) -> None:
        message = {"type": "http.response.body", "body": piece, "more_body": not last}
        try:
            async with asyncio.timeout(self._settings.stall_timeout_s):
                await send(message)
        except TimeoutError as error:
            raise _Stalled from error


class _Stalled(TimeoutError):
    """The client does not read."""


async def buffered(
    speaking: ActiveSpeech,
    response_format: str,
    encoding: str,
    loudness: float | None,
    receive: Receive,
    settings: ServerSettings,
    granularities: Collection[str] = (),
) -> Response:
    """The whole speech in one answer, with its length and how it ended.

    Args:
        encoding: of the samples of wav.
        loudness: in LUFS; None: as it was made.
        granularities: of the timestamps; if there are any, the answer is JSON that holds the audio.

    Raises:
        DeadlineExceeded: it takes too long.
        Whatever ended the stream.
    """
    watcher = asyncio.create_task(_close_when_gone(speaking, receive))
    spent = speaking.record.elapsed_ms / 1000
    try:
        with speaking:
            async with asyncio.timeout(settings.deadline_s - spent):
                samples = [chunk.samples async for chunk in speaking.chunks()]
    except TimeoutError as error:
        raise DeadlineExceeded(
            f"The speech was not over after {settings.deadline_s:.0f} s."
        ) from error
    finally:
        watcher.cancel()
    whole, rate = np.concatenate(samples), speaking.record.sample_rate
    if loudness is not None:
        heard = whole.astype(np.float32) / FULL_SCALE
        whole = to_int16(await asyncio.to_thread(at_loudness, heard, rate, loudness))
    data = await encoded_whole(response_format, whole, rate, settings.opus_kbits, encoding)
    headers = {"X-Finish-Reason": speaking.finish_reason}
    if granularities:
        facts: dict[str, Any] = {"audio": _base64(data), "format": response_format}
        facts |= {f"{name}s": [] for name in granularities}
        facts |= await speaking.timestamps(granularities)
        return JSONResponse(facts | speaking.facts(), headers=headers)
    return Response(data, media_type=MEDIA_TYPES[response_format], headers=headers)


async def _close_when_gone(speaking: ActiveSpeech, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    speaking.close()


def abort(scope: Scope) -> None:
    """Cut the connection, unsent bytes and all; without our protocol class the server closes it."""
    scope.get("state", {}).get(ABORT, lambda: None)()
