"""What the protocols share that take text by the token over a WebSocket and send audio meanwhile.

A `JsonSocket` receives JSON objects within limits and sends to clients that may not read. An
`Utterance` is a text that arrives in pieces: it opens a stream of the engine on its first piece,
feeds it, and ends or cancels it. `websocket` and the modules of `dialects` translate messages to
these.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import ValidationError
from starlette.types import Message

from qwen_megakernel.errors import EmptyText, QwenTTSError, UsageError
from qwen_megakernel.server.active_speech import ActiveSpeech, sent
from qwen_megakernel.server.error_responses import POLICY, ApiError
from qwen_megakernel.server.responses import abort
from qwen_megakernel.server.schemas import check_json_values, num_json_values
from qwen_megakernel.server.service import Service

MAX_FAULTS = 20  # wrong messages after which the connection is closed


@dataclass(eq=False, slots=True, kw_only=True)
class Utterance:
    """A text that arrives in pieces; it is kept here until its stream is open, then fed.

    Attributes:
        options: keyword arguments for `TTSEngine.stream`.
        warnings: what the client should know about the options.
    """

    options: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    is_blank: bool = True  # all text so far is white space
    num_chars: int = 0
    ended: bool = False
    cancelled: bool = False
    speaking: ActiveSpeech | None = None
    feeding: ActiveSpeech | None = None  # `speaking`, if it takes the text as it arrives
    over: bool = False  # whether its speech has ended
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def feed(self, text: str) -> None:
        """Add text."""
        if self.over:
            return
        self.is_blank = self.is_blank and not text.strip()
        self.pieces.append(text)
        self.changed.set()
        if self.feeding:
            await self.feeding.feed(text)

    def end(self) -> None:
        """End the text."""
        self.ended = True
        if self.feeding and not self.over:
            self.feeding.stream.end_text()
        self.changed.set()

    def cancel(self) -> None:
        """Stop speaking the utterance, or never begin."""
        self.cancelled = self.ended = True
        if self.speaking:
            self.speaking.close()
        self.changed.set()

    async def change(self) -> None:
        """Wait until text arrives, or ends, or is cancelled."""
        self.changed.clear()
        await self.changed.wait()

    async def speak(
        self,
        socket: "JsonSocket",
        relay: Callable[[ActiveSpeech], Awaitable[None]],
        sending: contextlib.ExitStack,
    ) -> str | None:
        """Wait for the first text, start its stream, and relay the speech.

        Args:
            relay: sends all of a speech to the client.
            sending: holds the speech until the caller has sent the last message about it, for
                which a draining server waits.
        Returns:
            Why the speech ended; "eos" for an utterance without text, or of white space alone.
        Raises:
            QwenTTSError, ApiError: the speech was refused, or has failed.
        """
        try:
            while not self.pieces and not self.ended:
                await self.change()
            if self.cancelled:
                return "cancelled"
            if not self.pieces:
                return "eos"
            speaking = await self._open(socket)
            sending.enter_context(speaking)
            async with speaking.limited(socket.settings.deadline_s):
                await relay(speaking)
            return speaking.finish_reason
        except EmptyText:
            if not self.is_blank:
                raise
            return "eos"
        finally:
            self.over = True
            if self.speaking:
                self.speaking.close()

    async def _open(self, socket: "JsonSocket") -> ActiveSpeech:
        """Start the stream, and give it the text that has arrived."""
        text = "".join(self.pieces) if self.ended else None
        self.speaking = speaking = await socket.speak(text, self.options)
        if self.cancelled:  # meanwhile
            speaking.close()
        elif text is None:
            for piece in self.pieces:  # their number may grow
                await speaking.feed(piece)
            self.feeding = speaking
            if self.ended:
                speaking.stream.end_text()
        return speaking


class JsonSocket:
    """A WebSocket whose client sends JSON objects, and gets objects and bytes.

    Args:
        websocket: the connection, not accepted yet.
    """

    def __init__(self, websocket: WebSocket, service: Service):
        self.scope, self._socket = websocket.scope, websocket
        self.service, self.settings = service, service.settings
        self.request_id: str = websocket.state.request_id
        self._num_speeches = 0
        self._is_closed = False

    async def speak(self, text: str | None, options: dict[str, Any]) -> ActiveSpeech:
        """Start a speech with an id of its own; text None: it is fed in pieces."""
        self._num_speeches += 1
        request_id = f"{self.request_id}-{self._num_speeches - 1}"
        return await self.service.speak(text, options, request_id=request_id)

    async def run(
        self,
        *tasks: Coroutine[Any, Any, None],
        end: Callable[[], None],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Accept the connection, and run tasks until one of them ends.

        Args:
            tasks: they end when the client is gone, or fail.
            end: called at the end, before the other tasks are cancelled.
            headers: those of the response that opens the connection.
        Raises:
            Exception: the error of a task, except that the client is gone.
        """
        await self._socket.accept(
            headers=[(key.encode(), value.encode()) for key, value in headers.items()]
        )
        running = [asyncio.create_task(each) for each in tasks]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            end()
            for task in running:
                task.cancel()
            ends = await asyncio.gather(*running, return_exceptions=True)
        for result in ends:
            is_gone = isinstance(result, WebSocketDisconnect | ConnectionAbortedError)
            if isinstance(result, Exception) and not is_gone:
                raise result

    async def read(
        self,
        obey: Callable[[dict[str, Any]], Awaitable[bool]],
        refuse: Callable[[Exception, dict[str, Any]], Awaitable[None]],
        ends_at: Callable[[], float],
        first: Callable[[], str] = str,
    ) -> None:
        """Read messages until the client is gone, is idle, or sends too much that is wrong.

        Args:
            obey: handles an object; returns True to read no more.
            refuse: reports an error about an object; an empty one: about the connection.
            ends_at: returns until when to wait, as `time.monotonic` counts; it is called again when
                that time is over.
            first: returns the type of the first message until a valid one has come, without which
                the connection is closed; then, and by default, an empty text.
        """
        num_faults = 0
        while True:
            facts: dict[str, Any] = {}
            try:
                message = await self._receive(ends_at)
                if message["type"] == "websocket.disconnect":
                    return
                facts = _json_object(message)
                if await obey(facts):
                    return
            except (QwenTTSError, ApiError, ValidationError) as error:
                await refuse(error, facts)
                num_faults += 1
                why = f"{MAX_FAULTS} messages were refused."
                if first():
                    why = f"The first message must be a valid {first()}."
                if first() or num_faults >= MAX_FAULTS:
                    await self.close(POLICY, why)
                    return
            except TimeoutError:
                what = f"No {first() or 'message'} arrived in time."
                await refuse(ApiError(408, what, code="idle_timeout"), {})
                await self.close(POLICY, what)
                return

    async def _receive(self, ends_at: Callable[[], float]) -> Message:
        receiving = asyncio.ensure_future(self._socket.receive())
        try:
            while not receiving.done():
                left_s = ends_at() - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                await asyncio.wait({receiving}, timeout=left_s)
            return receiving.result()
        finally:
            receiving.cancel()

    async def send(self, **facts: Any) -> None:
        """Send an object; raises `ConnectionAbortedError` if the client does not read it."""
        await self._sent(self._socket.send_text(json.dumps(facts, separators=(",", ":"))))

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes; raises `ConnectionAbortedError` if the client does not read them."""
        await self._sent(self._socket.send_bytes(data))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection; the reason has 123 bytes at most."""
        self._is_closed = True
        await self._socket.close(code, reason)

    async def _sent(self, writing: Coroutine[Any, Any, None]) -> None:
        if self._is_closed:  # by another task, while this one has more to send
            writing.close()
            raise ConnectionAbortedError("The connection is closed.")
        await sent(writing, self.settings.stall_timeout_s, lambda: abort(self.scope))


def _json_object(message: Message) -> dict[str, Any]:
    if message.get("text") is None:
        raise UsageError("The message is binary; it must be JSON text.")
    check_json_values(num_json_values(message["text"]))
    try:
        facts = json.loads(message["text"])
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The message is not JSON: {error}.") from error
    if not isinstance(facts, dict):
        raise UsageError("The message must be a JSON object.")
    return facts
