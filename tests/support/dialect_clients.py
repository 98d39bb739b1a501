"""Bare clients of the dialects' WebSockets, for tests."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from live_server import LiveServer
from websockets.asyncio.client import ClientConnection, connect

ELEVENLABS = "/v1/text-to-speech/vivian/multi-stream-input?output_format=pcm_24000"
CARTESIA = "/tts/websocket"
DEEPGRAM = "/v1/speak?model=vivian&seed=5"
RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24000}


@contextlib.asynccontextmanager
async def dialect(live: LiveServer, path: str, **options: Any) -> AsyncIterator[ClientConnection]:
    """Open a WebSocket of one of the paths."""
    async with connect(live.url.replace("http", "ws") + path, max_size=None, **options) as socket:
        yield socket


async def tell(socket: ClientConnection, **facts: Any) -> None:
    await socket.send(json.dumps(facts))


async def listen(
    socket: ClientConnection, is_last: Callable[[dict[str, Any]], Any]
) -> list[dict[str, Any]]:
    """Return messages up to the one that `is_last`; bytes become {"bytes": ...}."""
    heard: list[dict[str, Any]] = []
    while not heard or not is_last(heard[-1]):
        message = await asyncio.wait_for(socket.recv(), 20)
        is_bytes = isinstance(message, bytes)
        heard.append({"bytes": message} if is_bytes else json.loads(message))
    return heard


def cartesia(name: str, transcript: str, **facts: Any) -> dict[str, Any]:
    request = {
        "context_id": name,
        "transcript": transcript,
        "voice": {"mode": "id", "id": "vivian"},
    }
    return request | {"model_id": "sonic", "output_format": RAW} | facts


def audio_of(messages: list[dict[str, Any]]) -> bytes:
    coded = (each.get("audio") or each.get("data") or "" for each in messages)
    return b"".join(base64.b64decode(each) for each in coded) + b"".join(
        each.get("bytes", b"") for each in messages
    )


def letters_of(
    messages: list[dict[str, Any]], key: str = "alignment", *, counts_on: bool = False
) -> tuple[str, list[int], list[int]]:
    """Return the letters of ElevenLabs' messages, and the milliseconds of their starts and ends.

    Args:
        counts_on: whether a message's times count from the start of the context.
    """
    text, starts, ends, base = "", [], [], 0
    for timed in filter(None, (each.get(key) for each in messages)):
        text += "".join(timed["chars"])
        starts += [base + start for start in timed["charStartTimesMs"]]
        pairs = zip(timed["charStartTimesMs"], timed["charDurationsMs"], strict=True)
        ends += [base + start + length for start, length in pairs]
        base = 0 if counts_on else ends[-1]
    return text, starts, ends
