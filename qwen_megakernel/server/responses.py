"""Responses that carry speech to an HTTP client, as audio or as events.

A client that disconnects ends its stream.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

import numpy as np
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from qwen_megakernel.errors import QwenTTSError
from qwen_megakernel.printable import get_logger
from qwen_megakernel.records import AudioChunk
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.error_responses import ApiError

logger = get_logger(__name__)

EVENT_STREAM = "text/event-stream"
DONE = b"data: [DONE]\n\n"
_PROGRESS = "speech.audio.progress"  # type of events
_PIECE_BYTES = 3 << 17  # made base64 at once; a multiple of 3
# Keys of scope["state"], put there by `serving`: functions without arguments.
ABORT = "abort_connection"  # cuts it and drops unsent bytes
KEEP = "keep_connection"  # lets no new connection take its place

MAX_HEADER_CHARS = 1024  # of one value; proxies have 4 or 8 KB for all headers together
_UNCHANGED = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


async def whole(
    speaking: ActiveSpeech, loudness: float | None = None, granularities: Collection[str] = ()
) -> AsyncIterator[bytes]:
    """Yield the whole speech as one file, or, with timestamps, as JSON that holds the file."""
    data = b"".join([piece async for piece in speaking.file_at_end(loudness)])
    if granularities:
        facts: dict[str, Any] = {"audio": "", "format": speaking.plan.audio.name}
        facts |= {f"{name}s": [] for name in granularities}
        facts |= await speaking.timestamps(granularities)
        facts |= speaking.facts() | speaking.mark.fields
        # Half a surrogate pair, which a word may contain, becomes an escape of JSON.
        text = json.dumps(facts, ensure_ascii=False, separators=(",", ":"))
        data = await with_audio(text.encode(errors="backslashreplace"), b'"audio":', data)
    yield data


async def events(
    speaking: ActiveSpeech,
    max_steps: int | None,
    granularities: Collection[str],
    *,
    include_codes: bool | None,
) -> AsyncIterator[bytes]:
    """Yield the speech as server-sent events.

    The audio of the deltas, joined, is one file. No delta is empty: while the encoder holds samples
    back, the next delta covers more frames.

    Args:
        max_steps: the most frames that the request can have. It adds to OpenAI's events one for
            each frame, and at the end the whole speech as WAV and "[DONE]"; None: it adds nothing.
        granularities: kinds of timestamps to send, once they are final; they may be ahead of the
            audio that was sent.
    """
    stream, rate = speaking.stream, speaking.record.sample_rate
    held: list[AudioChunk] = []  # chunks that the encoder still holds back

    async def settled(samples: np.ndarray | None) -> bytes:
        """Return the events of audio and times that are ready after these samples."""
        out, facts = b"", dict[str, Any]()
        if audio := await speaking.encoded(samples):
            if held:
                begin, num_frames = held[0].frame_index, sum(chunk.num_frames for chunk in held)
                facts |= {"frame_index": begin, "num_frames": num_frames}
                facts["start_s"] = round(held[0].start_s, 6)
                if drifts := [asdict(drift) for chunk in held for drift in chunk.drifts]:
                    facts["drifts"] = drifts
                if include_codes:
                    facts["codes"] = stream.codes[begin : begin + num_frames].tolist()
            held.clear()
            facts |= {"sample_rate": rate, "t_ms": round(speaking.record.elapsed_ms, 3)}
            facts |= speaking.mark.fields
            out = event(type="speech.audio.delta", audio=base64_of(audio), **facts)
        if found := await speaking.timestamps(granularities):
            out += event(type="speech.audio.timestamps", **found)
        return out

    async for chunk in speaking.chunks(keep=max_steps is not None):
        out = b"" if max_steps is None else _steps(chunk, max_steps, type=_PROGRESS)
        held.append(chunk)
        if out := out + await settled(chunk.samples):
            yield out
    out = await settled(None)
    done = speaking.facts() | {"usage": speaking.usage} | speaking.mark.fields
    if max_steps is None:
        yield out + event(type="speech.audio.done", **done)
        return
    yield out + event(type=_PROGRESS, phase="vocoder")
    wav = await speaking.file(name="wav", encoding="pcm")
    last = event(type="speech.audio.done", phase="done", **done, audio="")
    yield await with_audio(last, b'"audio":', wav) + DONE


async def phases(speaking: ActiveSpeech, max_steps: int) -> AsyncIterator[bytes]:
    """Yield the speech as events of phases: a step for each frame, and the audio at the end.

    Args:
        speaking: a speech whose chunks are single frames.
        max_steps: the most frames that the request can have.
    """
    async for chunk in speaking.chunks(keep=True):
        yield _steps(chunk, max_steps)
    yield event(phase="vocoder")
    wav, facts = await speaking.file(name="wav", encoding="pcm"), speaking.facts()
    done = {name: facts[name] for name in ("n_steps", "n_samples", "elapsed_ms")}
    yield await with_audio(event(phase="done", **done, audio=""), b'"audio":', wav) + DONE


def _steps(chunk: AudioChunk, max_steps: int, **facts: Any) -> bytes:
    """Return an event for each frame of a chunk."""
    steps = range(chunk.frame_index + 1, chunk.frame_index + chunk.num_frames + 1)
    facts |= {"phase": "decoding"}
    return b"".join(event(**facts, step=step, max_steps=max_steps) for step in steps)


def error_event(error: Exception, **facts: Any) -> bytes:
    """Return the event that reports an error to a client that reads `phases`, or `events`."""
    return event(**facts, phase="error", error=ApiError.of(error).facts)


def event(**facts: Any) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: %s\n\n" % json.dumps(facts, separators=(",", ":")).encode()


def base64_of(data: bytes) -> str:
    """Return bytes as text in base64."""
    return base64.b64encode(data).decode("ascii")


async def with_audio(text: bytes, key: bytes, audio: bytes) -> bytes:
    """Return JSON in which a whole file, in base64, takes the place of the empty string of a key.

    A file may have many megabytes: it is encoded in pieces, between which other speeches continue,
    and not searched for characters that JSON escapes.
    """
    head, _, tail = text.partition(key + b'""')
    pieces = []
    for begin in range(0, len(audio), _PIECE_BYTES):
        pieces.append(base64.b64encode(audio[begin : begin + _PIECE_BYTES]))
        await asyncio.sleep(0)
    return b"".join((head, key, b'"', *pieces, b'"', tail))


class SpeechResponse(Response):
    """A response that sends speech while it is made; errors before the first piece set the status.

    Args:
        pieces: the body; a piece may be empty.
        on_error: makes the last piece of a body that failed; None: the connection is cut, the only
            way to report an error in the middle of audio.
        is_whole: the body is one piece, made when the speech is over; its length and why the speech
            ended are in the headers.
    """

    def __init__(
        self,
        speaking: ActiveSpeech,
        pieces: AsyncIterator[bytes],
        media_type: str,
        on_error: Callable[[Exception], bytes] | None = None,
        *,
        is_whole: bool = False,
    ):
        super().__init__(media_type=media_type, headers=speech_headers(speaking))
        del self.headers["content-length"]
        self._speaking, self._pieces, self._on_error = speaking, pieces, on_error
        self._is_whole, self._started = is_whole, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        watcher = asyncio.create_task(_close_when_gone(self._speaking, receive))
        try:
            with self._speaking:
                async with self._speaking.limited():
                    async for piece in self._pieces:
                        await self._send(send, piece)
                await self._send(send, b"", last=True)
        except Exception as error:
            if not self._started or isinstance(error, ConnectionAbortedError):
                raise  # `middleware` answers it, or has cut the connection
            if not isinstance(error, QwenTTSError):
                request_id = self._speaking.request_id
                logger.error("Speech %s failed while it was sent.", request_id, exc_info=error)
            if self._on_error is None:
                steer(scope, ABORT)
            else:
                await self._send(send, self._on_error(error), last=True)
        finally:
            watcher.cancel()

    async def _send(self, send: Send, piece: bytes, *, last: bool = False) -> None:
        if not self._started:
            if self._is_whole:
                self.headers["Content-Length"] = str(len(piece))
                self.headers["X-Finish-Reason"] = str(self._speaking.finish_reason)
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            self._started = True
        if piece or last:
            await send({"type": "http.response.body", "body": piece, "more_body": not last})


def speech_headers(speaking: ActiveSpeech) -> dict[str, str]:
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
        if text.is_normalized:
            headers["X-Spoken-Text"] = header_value(text.spoken)
    if speaking.warnings:
        headers["X-Warning"] = header_value("; ".join(speaking.warnings))
    return headers


def header_value(text: str) -> str:
    """Return a text, which may have half a surrogate pair, as the value of a header.

    The result lacks outer white space, and is percent-encoded (UTF-8) except for the printable
    characters of ASCII. It is cut between characters after at most 1024 characters.
    """
    encoded = ""
    for char in text.strip():
        encoded_char = quote(char, safe=_UNCHANGED, errors="replace")
        if len(encoded) + len(encoded_char) > MAX_HEADER_CHARS:
            break
        encoded += encoded_char
    return encoded.rstrip(" ")


async def _close_when_gone(speaking: ActiveSpeech, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    speaking.close()


async def sent(writing: Awaitable[None], limit_s: float, abort: Callable[[], None]) -> None:
    """Await a write to a client, of any protocol.

    If it stalls for `limit_s`, `abort` cuts the connection, and `ConnectionAbortedError` is raised.
    """
    try:
        async with asyncio.timeout(limit_s):
            await writing
    except TimeoutError as error:
        abort()
        raise ConnectionAbortedError(f"The client read nothing for {limit_s:g} s.") from error


def steer(scope: Scope, act: str) -> None:
    """Make the connection `ABORT` or `KEEP`; no effect under a server other than `serving`'s."""
    scope.get("state", {}).get(act, lambda: None)()
