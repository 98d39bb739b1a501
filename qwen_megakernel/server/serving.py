"""Serves the app with uvicorn: limits connections, can cut one, drains at the end."""

import asyncio
import contextlib
import dataclasses
import errno
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from qwen_megakernel.choices import API_KEY_VARIABLE
from qwen_megakernel.errors import UsageError
from qwen_megakernel.printable import get_logger
from qwen_megakernel.server.admission import Admission
from qwen_megakernel.server.app import create_app
from qwen_megakernel.server.middleware import SMALL_BODY, is_loopback
from qwen_megakernel.server.responses import ABORT, KEEP
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.settings import ACCEPTS, ServerSettings

logger = get_logger(__name__)

_BACKLOG = 128  # connections that the operating system holds until the server accepts them
_IDLE_CONNECTIONS = 256  # open besides `max_connections` requests and WebSockets
_OTHER_DESCRIPTORS = 192  # files, libraries, Wyoming clients, connections that are being closed
_MAX_HEAD_BYTES = 1 << 16  # of a request's first line and headers


def max_open_connections(settings: ServerSettings) -> int:
    """Return how many connections may be open, which leaves descriptors for everything else.

    The process gets as many descriptors as that needs, if it may.
    """
    num_connections = settings.max_connections + _IDLE_CONNECTIONS
    wanted = num_connections + _OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return num_connections
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(num_connections, max(soft - _OTHER_DESCRIPTORS, soft // 2))


def guarded_protocol(settings: ServerSettings) -> type[asyncio.Protocol]:
    """Return a protocol class that limits connections: their number, and how long they are idle.

    uvicorn waits for a request for as long as bytes trickle in. If too many connections are open,
    the class cuts the one that has been without a request for the longest time, which is the new
    one if all others have requests; a WebSocket counts as a request once it has valid settings.
    The class also passes the app a function that cuts the connection: a normal close waits for a
    client that may never read.
    """
    limit = max_open_connections(settings)
    # Connections without a request, the longest wait first, with the end of their time.
    waiting: dict[Any, asyncio.TimerHandle] = {}

    # Not uvicorn's other protocol, which is that of httptools: it sends chunks to clients of
    # HTTP/1.0, reads headers without end, and skips the body of a client that offers HTTP/2.
    class GuardedProtocol(H11Protocol):
        def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None):
            functions = {ABORT: lambda: self.transport.abort(), KEEP: self._stop_waiting}
            super().__init__(config, server_state, app_state | functions, _loop)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._note()
            if len(self.connections) > limit:  # counts WebSockets, too
                # A WebSocket that has ended is in `waiting` until its time is over.
                next(each for each in waiting if not each.transport.is_closing()).transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._note()

        def _get_upgrade(self) -> bytes | None:
            # uvicorn warns about all others, which clients of Java send with each request.
            return b"websocket" if super()._get_upgrade() == b"websocket" else None

        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                msg = "The request is no HTTP/1.1 without TLS and with headers of at most "
                super().send_400_response(f"{msg}{_MAX_HEAD_BYTES} bytes: {sys.exception()}.")
            else:  # in the body of a request that is being answered
                self.transport.abort()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._note()

        def connection_lost(self, error: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(error)

        def _note(self) -> None:
            """Limit the time without a request; some bytes of one are not enough."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()
            elif self not in waiting:
                waiting[self] = self.loop.call_later(settings.body_timeout_s, self.transport.abort)

        def _stop_waiting(self) -> None:
            if deadline := waiting.pop(self, None):
                deadline.cancel()

    return GuardedProtocol


def counting_protocol(
    admission: Admission, settings: ServerSettings
) -> type[WebSocketsSansIOProtocol]:
    """Return a WebSocket protocol class that counts what clients send among all buffered bytes.

    uvicorn gives the app whole messages, so only the protocol sees a message that never ends. While
    all requests and messages together are too large, the class cuts the connection of each message
    that is not small.

    When the app refuses a WebSocket, the class marks the handshake as complete. Otherwise uvicorn
    logs each refusal as an error of the app.
    """

    class CountingProtocol(WebSocketsSansIOProtocol):
        _held = 0  # bytes of the current message
        _is_whole = False  # no more data comes until the app has taken the message

        def data_received(self, data: bytes) -> None:
            num_before = 0 if self._is_whole else self._held
            self._is_whole = False
            self._hold(num_before + len(data))
            if self._held > SMALL_BODY and admission.buffered_bytes > settings.max_buffered_bytes:
                self.transport.abort()
                return
            super().data_received(data)
            if self.conn.handshake_exc and not self.transport.is_closing():
                self.transport.write(b"".join(self.conn.data_to_send()))  # uvicorn sends no answer
                self.transport.close()

        def handle_ping(self) -> None:
            super().handle_ping()
            if not self.writable.is_set() and not self.read_paused:
                self.transport.pause_reading()  # until the client has read the pongs

        def resume_writing(self) -> None:
            super().resume_writing()
            if not self.read_paused:
                self.transport.resume_reading()

        def send_receive_event_to_app(self) -> None:
            if self.curr_msg_data_type == "text":
                try:
                    b"".join(self.frames).decode()
                except UnicodeDecodeError:  # uvicorn would log a traceback
                    self.conn.send_close(1007, "The message is not UTF-8 text.")
                    self.handle_parser_exception()
                    return
            super().send_receive_event_to_app()
            self._is_whole = True

        async def send(self, message: Any) -> None:
            await super().send(message)
            self.handshake_complete |= self.close_sent

        def connection_lost(self, error: Exception | None) -> None:
            self._hold(0)
            super().connection_lost(error)

        def _hold(self, num_bytes: int) -> None:
            admission.buffered_bytes += num_bytes - self._held
            self._held = num_bytes

    return CountingProtocol


class DrainingServer(uvicorn.Server):
    """uvicorn's server with limits, which after SIGTERM or Ctrl-C finishes what it speaks.

    It refuses new requests then. uvicorn alone stops listening at once, so that later clients get a
    refused connection instead of an error with the reason. A second signal cuts the running
    speeches and ends the server.

    Args:
        app: of `create_app`.
        wyoming: a listening socket for Wyoming clients.
        say: prints a line about the end.
    """

    def __init__(
        self,
        app: FastAPI,
        settings: ServerSettings,
        *,
        wyoming: socket.socket | None = None,
        say: Callable[[str], None] = lambda line: None,
    ):
        self.service: Service = app.state.service
        config = uvicorn.Config(
            app,
            http=guarded_protocol(settings),
            h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
            backlog=ACCEPTS,
            ws=counting_protocol(self.service.admission, settings),
            ws_max_size=settings.max_body_bytes,
            ws_per_message_deflate=False,  # compression delays audio without making it smaller
            timeout_graceful_shutdown=1,  # this server has waited already
            log_config=None,
            access_log=False,
        )
        super().__init__(config)
        self._wyoming = None
        if wyoming is not None:
            from qwen_megakernel.server.wyoming_server import WyomingServer  # the extra [wyoming]

            self._wyoming = WyomingServer(self.service, wyoming)
        self._say = say
        self._give_up_at: float | None = None
        self.ended_by: int | None = None  # the first signal

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():  # asyncio has set their backlog to `ACCEPTS`
            each.listen(_BACKLOG)
        if self._wyoming and not self.should_exit:
            await self._wyoming.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if num_cut := self.service.admission.num_unfinished:
            for connection in list(self.server_state.connections):
                connection.transport.abort()
        if self._wyoming:
            await self._wyoming.close()
        await super().shutdown(sockets)
        if self.ended_by is not None:
            cut = f"; {_speeches(num_cut)} cut off" if num_cut else ""
            self._say(f"ended by {signal.Signals(self.ended_by).name}{cut}")

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self.ended_by is not None:  # uvicorn itself would raise the signal again after the end
            self.should_exit = True
            return
        self.ended_by = sig
        if self.service.is_loading:  # a compiler that the terminal ends, too, is no failure
            logging.disable(logging.WARNING)
        self.service.admission.draining = True
        if running := self.service.admission.num_unfinished:
            limit = f"at most {self.service.settings.drain_timeout_s:g} s"
            again = "Ctrl-C again" if sig == signal.SIGINT else "a second signal"
            self._say(f"finishing {_speeches(running)} ({limit}); {again} ends at once")

    async def on_tick(self, counter: int) -> bool:
        if self.service.admission.draining and not self.should_exit:
            now = asyncio.get_running_loop().time()
            if self._give_up_at is None:
                self._give_up_at = now + self.service.settings.drain_timeout_s
            self.should_exit = self.service.admission.idle or now >= self._give_up_at
        return await super().on_tick(counter)


def _speeches(count: int) -> str:
    return f"{count} speech" if count == 1 else f"{count} speeches"


def serve(
    engine: Any,
    settings: ServerSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 8090,
    wyoming_port: int | None = None,
    wyoming_host: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[int | None, bool]:
    """Serve until SIGTERM or Ctrl-C; running streams are finished first.

    Args:
        host, port: the address to listen on; port 0 takes a free one.
        wyoming_port: the port for Wyoming clients; None: no Wyoming server.
        wyoming_host: the address for Wyoming clients; None: `host`.
        say: prints a line: an address, or how the server ends.
    Returns:
        The first signal, if there was one; and whether the engine is still being made, in a thread
        that cannot be stopped.
    Raises:
        UsageError: the server cannot listen on an address.
        Exception: the engine could not be made.
    """
    addresses = {"http": (host, port)}
    if wyoming_port is not None:
        addresses["tcp"] = (wyoming_host or host, wyoming_port)
    with contextlib.ExitStack() as stack:
        listeners = {}
        for scheme, address in addresses.items():
            listener = listeners[scheme] = stack.enter_context(listen(*address))
            shown = f"[{address[0]}]" if ":" in address[0] else address[0]
            say(f"listening on {scheme}://{shown}:{listener.getsockname()[1]}")
        settings = settings_for(listeners["http"], settings)
        app = create_app(engine, settings)
        server = DrainingServer(app, settings, wyoming=listeners.get("tcp"), say=say)
        server.run(sockets=[listeners["http"]])
    if server.service.failure and server.ended_by is None:
        raise server.service.failure
    return server.ended_by, server.service.is_loading


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, whose connections send each piece of audio at once.

    Raises:
        UsageError: the address is in use or wrong.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        # create_server appends the address, which the message has already, to the reason.
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (while")[0]
        what = f"Cannot listen on {host} port {port}: {reason.rstrip('.')}."
        is_used = getattr(error, "errno", None) == errno.EADDRINUSE
        hint = "Choose another port; 0 takes any free one." if is_used else ""
        raise UsageError(what, hint=hint) from error
    # Connections inherit this. asyncio's loop sets it only on sockets that name their protocol, and
    # without it audio waits until the client has acknowledged the headers, by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def settings_for(listener: socket.socket, settings: ServerSettings) -> ServerSettings:
    """Return the settings for a listening socket: other machines may use any name of the server.

    Warns if other machines reach the server and no API key is required.
    """
    address = listener.getsockname()[0]
    if is_loopback(address):
        return settings
    if settings.api_key is None:
        logger.warning(
            "Other machines reach this server (it listens on %s), and it requires no API key. Set "
            "one in the environment variable %s.",
            *(address, API_KEY_VARIABLE),
        )
    return dataclasses.replace(settings, allow_hosts=settings.allow_hosts or ("*",))
