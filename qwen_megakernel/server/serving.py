"""uvicorn, with what it lacks: a limit on slow headers, a way to cut a connection, draining."""

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from qwen_megakernel.server.responses import ABORT
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.settings import ServerSettings

if TYPE_CHECKING:
    from qwen_megakernel.server.wyoming_server import WyomingServer


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
