"""Serving the app: uvicorn, with a limit on slow headers, a way to cut a connection, draining."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from qwen_megakernel.errors import UsageError
from qwen_megakernel.server.app import create_app
from qwen_megakernel.server.responses import ABORT
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.settings import ServerSettings

if TYPE_CHECKING:
    from qwen_megakernel.server.wyoming_server import WyomingServer

_BACKLOG = 2048  # connections the kernel holds until we take them


def guarded_protocol(header_timeout_s: float) -> type[asyncio.Protocol]:
    """A protocol class whose connections must send their headers in time.

    uvicorn waits for a request for as long as bytes trickle in. The state it hands to the app also
    gets a function that cuts the connection: closing one politely waits for a client that may
    never read.
    """

    class GuardedProtocol(AutoHTTPProtocol):
        _deadline: asyncio.TimerHandle | None = None

        def __init__(
            self,
            config: uvicorn.Config,
            server_state: Any,
            app_state: dict[str, Any],
            _loop: asyncio.AbstractEventLoop | None = None,
        ):
            super().__init__(config, server_state, app_state | {ABORT: self._abort}, _loop)

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._await_headers()

        def data_received(self, data: bytes) -> None:
            if self._deadline is None and not self._in_request:
                self._await_headers()
            super().data_received(data)
            if self._in_request:
                self._stop_waiting()

        def connection_lost(self, error: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(error)

        @property
        def _in_request(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _await_headers(self) -> None:
            self._deadline = self.loop.call_later(header_timeout_s, self._give_up)

        def _stop_waiting(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _give_up(self) -> None:
            # A WebSocket has taken the connection over by then, and has its own time limits.
            if self.transport.get_protocol() is self and not self._in_request:
                self._abort()

        def _abort(self) -> None:
            self.transport.abort()

    return GuardedProtocol


class DrainingServer(uvicorn.Server):
    """On the first SIGTERM or Ctrl-C refuses new requests and waits for those that run.

    uvicorn alone stops listening at once: whoever comes then sees a refused connection instead of
    an answer that says why. A second signal does just that.

    Args:
        config: uvicorn's.
        service: whose requests are waited for.
        settings: how long.
        wyoming: started and closed with us.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        settings: ServerSettings,
        wyoming: "WyomingServer | None" = None,
    ):
        super().__init__(config)
        self.service, self._settings, self._wyoming = service, settings, wyoming
        self._give_up_at: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Load the app, then listen."""
        await super().startup(sockets)
        if self._wyoming and not self.should_exit:
            await self._wyoming.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Hang up on whoever is left."""
        if self._wyoming:
            await self._wyoming.close()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """A signal came."""
        if self.service.admission.draining:
            super().handle_exit(sig, frame)
            return
        self.service.admission.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: is it over?"""
        if self.service.admission.draining and not self.should_exit:
            now = asyncio.get_running_loop().time()
            if self._give_up_at is None:
                self._give_up_at = now + self._settings.drain_timeout_s
            self.should_exit = self.service.admission.idle or now >= self._give_up_at
        return await super().on_tick(counter)


def serve(
    engine: Any,
    settings: ServerSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 8090,
    wyoming_port: int | None = None,
    on_listening: Callable[[str], None] | None = None,
) -> bool:
    """Serve until SIGTERM or Ctrl-C; running streams are finished first.

    Args:
        engine: see `create_app`.
        settings: limits.
        host, port: where to listen; port 0 takes any that is free.
        wyoming_port: for Wyoming clients, on the same host; None: not spoken.
        on_listening: is told each address.
    Returns:
        The engine is still being made, in a thread that nothing can stop: the signal came early.
    Raises:
        UsageError: an address cannot be had.
        Whatever kept the engine from being made.
    """
    ports = {"http": port} | ({} if wyoming_port is None else {"tcp": wyoming_port})
    with contextlib.ExitStack() as stack:
        listeners = {}
        for scheme, each in ports.items():
            listener = listeners[scheme] = stack.enter_context(listen(host, each))
            if on_listening:
                shown = f"[{host}]" if ":" in host else host
                on_listening(f"{scheme}://{shown}:{listener.getsockname()[1]}")
        app = create_app(engine, settings)
        server = new_server(app, settings, wyoming=listeners.get("tcp"))
        server.run(sockets=[listeners["http"]])
    if server.service.failure:
        raise server.service.failure
    return server.service.is_loading


def listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        UsageError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        # create_server repeats the address in its own words, behind what is wrong with it.
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (while")[0]
        raise UsageError(
            f"Cannot listen on {host} port {port}: {reason.rstrip('.')}.",
            cure="Choose another port; 0 takes any free one."
            if getattr(error, "errno", None) == errno.EADDRINUSE
            else "",
        ) from error


def new_server(
    app: FastAPI, settings: ServerSettings, *, wyoming: socket.socket | None = None
) -> DrainingServer:
    """uvicorn for `app`, with its limits; `run(sockets=[...])` serves.

    Args:
        wyoming: a listening socket for Wyoming clients.
    """
    service, companion = app.state.service, None
    if wyoming is not None:
        from qwen_megakernel.server.wyoming_server import WyomingServer  # the extra [wyoming]

        companion = WyomingServer(service, wyoming)
    config = uvicorn.Config(
        app,
        http=guarded_protocol(settings.body_timeout_s),
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,  # audio does not get smaller, only later
        timeout_graceful_shutdown=1,  # what drains has drained by then
        log_config=None,
        access_log=False,
    )
    return DrainingServer(config, service, settings, companion)
