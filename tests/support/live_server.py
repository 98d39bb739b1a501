"""A server on loopback for tests: uvicorn as `serve` runs it, in a thread, on a port of its own."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from waiting import wait_until

from qwen_megakernel.server import app
from qwen_megakernel.server import serving as serving_module
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.settings import ServerSettings

SPEECH = "/v1/audio/speech"


class LiveServer:
    """The test's handle on a server: its address and its state."""

    def __init__(self, address: tuple[str, int], running: Any):
        self.address, self.running = address, running
        self.url = f"http://{address[0]}:{address[1]}"
        self.client = httpx.Client(base_url=self.url, timeout=30)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.running.servers[0].get_loop()

    @property
    def service(self) -> Service:
        return self.running.service

    @property
    def engine(self) -> Any:
        return self.service.engine

    def speak(self, text: str = "Hello there.", **body: Any) -> httpx.Response:
        """POST a request and read all of the answer."""
        return self.client.post(SPEECH, json={"input": text} | body)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=20)

    def connect_slowly(self) -> socket.socket:
        """Open a connection for which the operating system buffers almost nothing."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(self.address)
        return connection

    def send_speech(self, text: str = "Hello there.", **body: Any) -> socket.socket:
        """Open a connection, send a request, and read nothing."""
        connection = self.connect()
        connection.sendall(http_post(json.dumps({"input": text} | body).encode()))
        return connection

    def num_tasks(self) -> int:
        async def count() -> int:
            return len(asyncio.all_tasks())

        return asyncio.run_coroutine_threadsafe(count(), self.loop).result(10)

    @contextlib.contextmanager
    def watched_loop(self) -> Iterator[Callable[[], float]]:
        """Yield a function that returns the longest time, in seconds, for which the loop stood.

        It is CPU time of the loop's thread, so that other programs do not count.
        """
        longest, watching = 0.0, True

        async def watch() -> None:
            nonlocal longest
            last = time.thread_time()
            while watching:
                await asyncio.sleep(0.001)
                now = time.thread_time()
                longest, last = max(longest, now - last), now

        watcher = asyncio.run_coroutine_threadsafe(watch(), self.loop)
        try:
            yield lambda: longest
        finally:
            watching = False
            watcher.result(10)

    def settle(self, seconds: float = 10.0) -> None:
        """Wait until the server neither speaks nor sends anything."""
        wait_until(lambda: self.service.admission.idle, seconds)


def http_post(body: bytes, path: str = SPEECH, content_type: str = "application/json") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


@contextlib.contextmanager
def serving(
    engine: Any, *, send_buffer: int | None = None, loop: str = "auto", **settings: Any
) -> Iterator[LiveServer]:
    """Yield a server for `engine` (or for a function that makes one); stop it at the end.

    Args:
        send_buffer: bytes that the operating system may hold for each client.
        loop: "asyncio": the event loop of an installation without uvicorn's extras; "uvloop"; or
            "auto": what is installed.
        settings: `ServerSettings`.
    """
    chosen = ServerSettings(**settings)
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    running = serving_module.DrainingServer(app.create_app(engine, chosen), chosen)
    running.config.loop = loop
    with serving_module.listen("127.0.0.1", 0) as listener:
        if send_buffer is not None:  # connections inherit this
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        address = listener.getsockname()
        thread = threading.Thread(target=running.run, args=([listener],), daemon=True)
        thread.start()
        live = LiveServer(address, running)
        try:
            wait_until(lambda: running.started)
            yield live
        finally:
            live.client.close()
            running.should_exit = True
            thread.join(timeout=20)
            assert not thread.is_alive()


def assert_error(answer: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """Check that the answer is an error of the server's form, and return its fields."""
    assert answer.status_code == status
    assert answer.headers["x-request-id"]
    facts = answer.json()["error"]
    assert set(facts) == {"message", "type", "param", "code"}
    assert facts["message"] and facts["type"]
    if code:
        assert facts["code"] == code
    return facts


def sse(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream, without "[DONE]"."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def configure_slowly(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let servers take so long to turn a request's fields into a plan, as one that clones does."""
    configure = Service.configure

    async def slowly(service: Service, body: Any) -> Any:
        await asyncio.sleep(seconds)
        return await configure(service, body)

    monkeypatch.setattr(Service, "configure", slowly)
