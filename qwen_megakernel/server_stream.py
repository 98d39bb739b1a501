"""Speech on its way to one HTTP client, read from the engine ahead of it.

A client that reads slowly costs memory up to a limit, then the pace of its own stream, then its
connection; it never costs others the engine's slot for longer than that. A client that goes away
ends its stream at once.
"""

import asyncio
import base64
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Self

import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from qwen_megakernel.errors import DeadlineExceeded
from qwen_megakernel.server_admission import FinishedRequests, Ticket
from qwen_megakernel.server_audio import Encoder, encode_whole
from qwen_megakernel.server_errors import error_facts
from qwen_megakernel.server_metrics import SpeechRecord
from qwen_megakernel.server_settings import MEDIA_TYPES, ServerSettings
from qwen_megakernel.utterance import AudioChunk

EVENT_STREAM = "text/event-stream"
ABORT = "abort_connection"  # key of scope["state"], put there by server_protocol


class Speaking:
    """One admitted request, being spoken; its chunks wait here for the client.

    Whoever sends them does so in a `with` block, whose end stops the speech; a server that drains
    waits for it.

    Args:
        stream: the engine's.
        ticket: given back when the engine is done with the stream.
        record: times and counts.
        request_id: as in X-Request-Id.
        finished: is told how it ended.
        buffer_s: seconds of audio to hold before the engine has to wait.
    """

    def __init__(
        self,
        stream: Any,
        ticket: Ticket,
        record: SpeechRecord,
        *,
        request_id: str,
        finished: FinishedRequests,
        buffer_s: float,
    ):
        self.stream, self.record, self.request_id = stream, record, request_id
        self.finish_reason: str | None = None
        self._ticket, self._finished = ticket, finished
        self._limit = int(buffer_s * record.sample_rate)
        self._chunks: deque[AudioChunk] = deque()
        self._num_buffered = 0  # samples
        self._news, self._space = asyncio.Event(), asyncio.Event()
        self._error: Exception | None = None
        self._over = self._closed = False
        self._task = asyncio.create_task(self._read())

    async def chunks(self) -> AsyncIterator[AudioChunk]:
        """Every chunk of the speech, in order.

        Raises:
            Whatever ended the stream, after the last chunk before it.
        """
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._num_buffered -= len(chunk.samples)
                self._space.set()
                yield chunk
            if self._over:
                if self._error:
                    raise self._error
                return
            self._news.clear()
            await self._news.wait()

    def close(self) -> None:
        """Stop speaking; does not wait for it. Harmless when it is over."""
        self._closed = True
        self._space.set()
        self.stream.close()

    def __enter__(self) -> Self:
        self._ticket.admission.open_responses += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._ticket.admission.open_responses -= 1

    async def _read(self) -> None:
        reason = "error"
        try:
            async for chunk in self.stream:
                if chunk.num_frames:
                    self.record.add(len(chunk.samples), chunk.num_frames)
                self._chunks.append(chunk)
                self._num_buffered += len(chunk.samples)
                self._news.set()
                reason = chunk.finish_reason or reason
                while self._num_buffered >= self._limit and not self._closed:
                    self._space.clear()
                    await self._space.wait()
        except Exception as error:  # whoever reads the chunks gets it
            self._error = error
        finally:
            self._over, self.finish_reason = True, reason
            self._ticket.release()
            self.record.finish(reason)
            self._finished.add(self.request_id, self.facts())
            self._news.set()

    def facts(self) -> dict[str, Any]:
        """What is known of the speech; all of it, once it is over."""
        record = self.record
        facts = {
            "finish_reason": self.finish_reason,
            "seed": self.stream.seed,
            "parts": self.stream.num_parts,
            "n_steps": record.num_frames,
            "n_samples": record.num_samples,
            "sample_rate": record.sample_rate,
            "elapsed_ms": round(record.elapsed_ms, 3),
            "first_audio_ms": record.first_audio_ms and round(record.first_audio_ms, 3),
            "engine_ms": {name: round(ms, 3) for name, ms in self.stream.timings.items()},
        }
        if self._error:
            facts["error"] = error_facts(self._error)[1]
        return facts

    @property
    def usage(self) -> dict[str, int]:
        """OpenAI's count of tokens: of text, and of audio (one a frame)."""
        given, drawn = self.stream.num_text_tokens, self.record.num_frames
        return {"input_tokens": given, "output_tokens": drawn, "total_tokens": given + drawn}


async def audio_bytes(speaking: Speaking, encoder: Encoder) -> AsyncIterator[bytes]:
    """The speech as one file, in pieces; a piece is empty where the encoder holds samples back."""
    async for chunk in speaking.chunks():
        yield await encoded(encoder, chunk.samples)
    yield await encoded(encoder, None)


async def encoded(encoder: Encoder, samples: np.ndarray | None) -> bytes:
    """What the encoder makes of [num_samples] int16; None ends the file."""
    if not encoder.blocks:
        return encoder.finish() if samples is None else encoder.encode(samples)
    if samples is None:
        return await asyncio.to_thread(encoder.finish)
    return await asyncio.to_thread(encoder.encode, samples)


async def encoded_whole(response_format: str, samples: np.ndarray, rate: int) -> bytes:
    """A complete file of [num_samples] int16."""
    return await asyncio.to_thread(encode_whole, response_format, samples, rate)


async def events(
    speaking: Speaking, encoder: Encoder, *, include_codes: bool, max_steps: int | None
) -> AsyncIterator[bytes]:
    """The speech as server-sent events.

    Args:
        speaking: the speech.
        encoder: of what the deltas hold; put together they are one file.
        include_codes: add each delta's codec frames.
        max_steps: with it, the superset: an event for each frame, at the end the whole as WAV and
            "[DONE]". None: OpenAI's events alone.
    """
    stream, rate = speaking.stream, speaking.record.sample_rate
    whole: list[np.ndarray] = []
    async for chunk in speaking.chunks():
        out = b""
        if max_steps is not None:
            whole.append(chunk.samples)
            for step in range(chunk.frame_index + 1, chunk.frame_index + chunk.num_frames + 1):
                out += _progress(phase="decoding", step=step, max_steps=max_steps)
        delta = {"frame_index": chunk.frame_index, "num_frames": chunk.num_frames}
        delta |= {"sample_rate": rate, "t_ms": round(speaking.record.elapsed_ms, 3)}
        if include_codes:
            delta["codes"] = stream.codes_of(chunk).tolist()
        audio = await encoded(encoder, chunk.samples)
        if chunk.num_frames or audio:
            out += _event(type="speech.audio.delta", audio=_base64(audio), **delta)
        if out:
            yield out
    audio, out = await encoded(encoder, None), b""
    if audio:
        out += _event(type="speech.audio.delta", audio=_base64(audio), sample_rate=rate)
    done = speaking.facts() | {"usage": speaking.usage}
    if max_steps is None:
        yield out + _event(type="speech.audio.done", **done)
        return
    yield out + _progress(phase="vocoder")
    wav = await encoded_whole("wav", np.concatenate(whole), rate)
    done = {"phase": "done"} | done | {"audio": _base64(wav)}
    yield _event(type="speech.audio.done", **done) + b"data: [DONE]\n\n"


def error_event(error: Exception) -> bytes:
    """How an error reaches a client that reads events."""
    return _event(type="speech.audio.error", phase="error", error=error_facts(error)[1])


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
        speaking: Speaking,
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
        await send(
            {"type": "http.response.start", "status": 200, "headers": self.raw_headers},
        )

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
    speaking: Speaking, response_format: str, receive: Receive, settings: ServerSettings
) -> Response:
    """The whole speech in one answer, with its length and how it ended.

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
    data = await encoded_whole(
        response_format, np.concatenate(samples), speaking.record.sample_rate
    )
    headers = {"X-Finish-Reason": speaking.finish_reason}
    return Response(data, media_type=MEDIA_TYPES[response_format], headers=headers)


async def _close_when_gone(speaking: Speaking, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    speaking.close()


def abort(scope: Scope) -> None:
    """Cut the connection, unsent bytes and all; without our protocol class the server closes it."""
    scope.get("state", {}).get(ABORT, lambda: None)()
