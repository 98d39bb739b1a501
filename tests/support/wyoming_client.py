"""A Wyoming server on an engine, and its clients, for tests."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator
from typing import Any

from wyoming.audio import AudioChunk
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event

from qwen_megakernel.server.service import Service
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.server.wyoming_server import WyomingServer


@contextlib.asynccontextmanager
async def serving(engine: Any, **settings: Any) -> AsyncIterator[int]:
    """Yield the port of a server, which is closed afterwards and must leave nothing behind.

    No exception of the server's tasks may be left to the event loop.
    """
    unhandled: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, facts: unhandled.append(facts))
    service = Service(engine, ServerSettings(**settings))
    listener = socket.create_server(("127.0.0.1", 0))
    gc.freeze()  # the collection below need not look at what earlier tests left
    server = WyomingServer(service, listener)
    await server.start()
    yield listener.getsockname()[1]
    await server.close()
    await until(lambda: service.admission.idle)
    assert not server._clients
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in rest if "wyoming" in repr(task.get_coro())]
    gc.collect()  # a task reports its exception when it is collected
    assert not unhandled


@contextlib.asynccontextmanager
async def connected(engine: Any, **options: Any) -> AsyncIterator[AsyncTcpClient]:
    async with serving(engine, **options) as port, AsyncTcpClient("127.0.0.1", port) as client:
        client.read_timeout = 20
        yield client


async def events_until(client: AsyncTcpClient, kind: Any, *sent: Any) -> list[Event]:
    """Send what the client has to say, and return the events up to one of a kind."""
    for each in sent:
        await client.write_event(each.event())
    events = []
    while True:
        event = await client.read_event()
        assert event is not None, f"hung up after {[event.type for event in events]}"
        events.append(event)
        if kind.is_type(event.type):
            return events


def pcm_of(events: list[Event]) -> bytes:
    return b"".join(event.payload for event in events if AudioChunk.is_type(event.type))


async def error_of(client: AsyncTcpClient, *sent: Any) -> Error:
    """Return the error that ends the connection; see `events_until`."""
    error = Error.from_event((await events_until(client, Error, *sent))[-1])
    assert await client.read_event() is None
    return error


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)
