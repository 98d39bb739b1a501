"""A client of the WebSocket for tests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from fake_engine import STORY, FakeEngine
from live_server import LiveServer, serving
from waiting import wait_until
from websockets.asyncio.client import ClientConnection, connect

STREAM = "/v1/audio/speech/stream"


@contextlib.asynccontextmanager
async def session(
    live: LiveServer, config: dict[str, Any] | bool | None = None, **options: Any
) -> AsyncIterator[ClientConnection]:
    """Open a connection; configure it unless `config` is False."""
    url = live.url.replace("http", "ws") + STREAM
    async with connect(url, max_size=None, **options) as socket:
        if config is not False:
            await say(socket, "session.config", **{"response_format": "pcm"} | (config or {}))
        yield socket


@contextlib.asynccontextmanager
async def finished_but_unread() -> AsyncIterator[tuple[LiveServer, ClientConnection]]:
    """Yield a server whose engine has spoken a whole text, and a client that has read little."""
    engine = FakeEngine(rtf=0.001)
    with serving(engine, send_buffer=8192, buffer_s=300) as live:
        async with session(live, max_queue=1, sock=live.connect_slowly()) as socket:
            await say(socket, "input.text", text=(STORY * 60)[:4000])
            await say(socket, "input.done")
            await asyncio.to_thread(wait_until, lambda: engine.streams and engine.streams[0]._over)
            yield live, socket


async def say(socket: ClientConnection, kind: str, **facts: Any) -> None:
    await socket.send(json.dumps({"type": kind} | facts))


async def hear(socket: ClientConnection) -> dict[str, Any] | bytes:
    message = await asyncio.wait_for(socket.recv(), 20)
    return message if isinstance(message, bytes) else json.loads(message)


async def hear_until(
    socket: ClientConnection, kind: str = "session.done"
) -> tuple[list[dict[str, Any]], bytes]:
    """Return events and audio up to an event of `kind`."""
    events, audio = [], b""
    while True:
        heard = await hear(socket)
        if isinstance(heard, bytes):
            audio += heard
            continue
        events.append(heard)
        if heard["type"] == kind:
            return events, audio


async def speak(socket: ClientConnection, *pieces: str) -> tuple[list[dict[str, Any]], bytes]:
    """Send an utterance in pieces, and return its events and audio."""
    for piece in pieces:
        await say(socket, "input.text", text=piece)
    await say(socket, "input.done")
    return await hear_until(socket)
