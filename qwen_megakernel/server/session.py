"""WebSockets whose clients send JSON, take text by the token, and get audio meanwhile.

A client's texts belong to contexts, each with a name: a context speaks one text after the other,
independently of other contexts. `websocket` has one context, the modules of `dialects` have any
number; they translate messages.
"""

import asyncio
import contextlib
import functools
import itertools
import json
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.types import Message

from qwen_megakernel.errors import QwenTTSError, UsageError
from qwen_megakernel.printable import printable
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.error_responses import POLICY, ApiError, shown
from qwen_megakernel.server.schemas import SpeechPlan, check_json_values, check_length
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.utterance import Speaker, Utterance

MAX_FAULTS = 20  # wrong messages after which the connection is closed
MAX_CONTEXTS = 256  # of one connection, those included that are spoken to their end
MAX_WAITING = 256  # texts of one context
MAX_NAME_CHARS = 256  # of a context; each message about it repeats its name
# Without a message or a speech; agents are silent for minutes and keep their connection.
IDLE_S = 300.0
_ENDS = tuple(".!?\u2026:;,\"')")  # of sentences in scripts with spaces


class Context(Speaker):
    """The texts of one name.

    Args:
        name: the client's name of it.
        plan: of the next text.
        settings: what the client asked for, as its protocol keeps it.
        earlier: a closing context of the same name, which is spoken first.
    """

    def __init__(
        self,
        session: "ContextSession",
        name: str,
        plan: SpeechPlan,
        settings: Any,
        earlier: "Context | None",
    ):
        speak = functools.partial(session.speak_text, self)
        super().__init__(session.spawn, speak, functools.partial(session.finish, self))
        self._session, self.name, self.plan, self.settings = session, name, plan, settings
        self.num_answers = 0
        self.heard_s = 0.0  # seconds of audio of the texts before the one being spoken
        self.counted_ms = [0, 0]  # up to which letters were sent, as written and as spoken
        self.request: Any = None  # the client's last, as its dialect keeps it
        self.is_closing = self.has_failed = False  # failed: its last text, which was not blank
        self.text_limit_s = session.settings.idle_timeout_s  # until a text ends that gets no more
        self._earlier = earlier and earlier.task
        self._text_timer: asyncio.TimerHandle | None = None  # ends the text if no more of it comes

    async def feed(self, text: str, *, is_sentence: bool = False) -> None:
        """Add text; white space alone begins no text.

        Args:
            is_sentence: the client sends whole sentences, which need a space between them.
        Raises:
            TextTooLong: the texts of the context that wait are too long together.
        """
        if self.writing is None and not text.strip():
            return
        before = self.writing.pieces[-1:] if is_sentence and self.writing else []
        if before and before[0].endswith(_ENDS) and not text[:1].isspace():
            text = f" {text}"
        num_waiting = sum(each.num_chars for each in self.waiting)
        check_length(num_waiting + len(text), self._session.settings)
        writing = self.writing or self._begin_text()
        self.expect_text()
        await writing.feed(text)

    def expect_text(self) -> None:
        """End the text if no more of it comes: it would hold a slot of the engine."""
        if self._text_timer:
            self._text_timer.cancel()
        self._text_timer = asyncio.get_running_loop().call_later(self.text_limit_s, self.end)

    def cancel(self) -> None:
        super().cancel()
        if self._text_timer:
            self._text_timer.cancel()

    def mark(self, mark: str) -> None:
        """End the text, which may be empty; `answer` reports that it was spoken."""
        text = self.writing
        if text is None or text.over:
            text = self._begin_text()
        text.mark = mark
        self.end()

    def close(self) -> None:
        """End the context when its texts are spoken; `closed` reports it."""
        self.end()
        self.is_closing = True
        self.start()

    def start(self) -> None:
        self._session.speaking.add(self)
        super().start()

    async def _speak_all(self) -> None:
        if self._earlier:
            await asyncio.wait([self._earlier])
        await super()._speak_all()

    def _begin_text(self) -> Utterance:
        if len(self.waiting) >= MAX_WAITING:
            raise UsageError(f"{MAX_WAITING} texts are waiting to be spoken, which is the limit.")
        return self.begin(Utterance(plan=self.plan.within(self.conversation)))


class ContextSession:
    """One connection, not accepted yet; a subclass translates the messages of a protocol."""

    first = ""  # the type of the first message, without which the connection is closed; "": any
    subprotocols: tuple[str, ...] = ()  # that a client may offer

    def __init__(self, websocket: WebSocket, service: Service):
        self.scope, self._socket = websocket.scope, websocket
        self.service, self.settings = service, service.settings
        self.request_id: str = websocket.state.request_id
        self.headers: Mapping[str, str] = {}  # of the response that opens the connection
        self.contexts: dict[str, Context] = {}  # the latest of each name, open or closing
        self.speaking: set[Context] = set()
        # When the client last sent something, or a speech ended; `time.monotonic`.
        self.active_at = time.monotonic()
        self._speech_numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ending = self._is_closed = False
        self._over = asyncio.Event()
        self._error: BaseException | None = None  # of a task

    # ---- what a protocol adds --------------------------------------------------------------------

    async def obey(self, facts: dict[str, Any]) -> bool:
        """Handle a message; returns True to close the connection when all is spoken."""
        raise NotImplementedError

    async def report(self, error: ApiError, name: str | None) -> None:
        """Send an error about a context, or the connection (None)."""
        raise NotImplementedError

    def messages(
        self, context: "Context", text: Utterance, speaking: ActiveSpeech
    ) -> AsyncIterator[bytes | dict[str, Any]]:
        """Yield the messages of a speech; by default they are its encoded audio."""
        return speaking.audio()

    async def ended(
        self, context: "Context", text: Utterance, reason: str | None, sending: contextlib.ExitStack
    ) -> None:
        """Take a spoken text out of the context, and report what belongs after it.

        Args:
            reason: why the speech ended; "error": it has failed, or was refused.
            sending: a draining server waits for its end.
        """
        context.waiting.popleft()
        if text.mark and not text.cancelled:
            await self.answer(context, text.mark)

    async def answer(self, context: "Context", mark: str) -> None:
        """Report that all audio before a mark was sent."""

    async def closed(self, context: "Context") -> None:
        """Report that a context has ended."""

    def is_activity(self, facts: dict[str, Any]) -> bool:
        """Return whether a message shows that the client is there."""
        return True

    def ends_at(self) -> float:
        """Return until when to wait for a message, as `time.monotonic` counts; asked again then."""
        return IDLE_S + (time.monotonic() if self.speaking else self.active_at)

    async def accept(self) -> None:
        """Accept the connection, and send what comes before everything else."""
        offered = self.scope.get("subprotocols", ())
        chosen = next((each for each in offered if each in self.subprotocols), None)
        await self._socket.accept(chosen, Headers(self.headers).raw)

    # ---- contexts --------------------------------------------------------------------------------

    def open(self, name: str, plan: SpeechPlan, settings: Any = None) -> "Context":
        """Return a new context, or raise `UsageError` if there are too many; see `Context`."""
        if len(self.speaking.union(self.contexts.values())) >= MAX_CONTEXTS:
            what = f'Context "{printable(name, 80)}" is one too many: this connection has '
            what += f"{MAX_CONTEXTS} open ones."
            raise UsageError(what, hint="Close contexts, or open another connection.")
        if not _is_name(name):
            raise wrong("context_id", name, f"a string of at most {MAX_NAME_CHARS} characters")
        context = Context(self, name, plan, settings, self.contexts.get(name))
        self.contexts[name] = context
        return context

    async def speak_text(
        self, context: "Context", text: Utterance, sending: contextlib.ExitStack
    ) -> None:
        """Speak a context's next text."""

        async def relay(speaking: ActiveSpeech) -> None:
            async for message in self.messages(context, text, speaking):
                if isinstance(message, dict):
                    await self.send(**message)
                elif message:
                    await self._sent(self._socket.send_bytes(message))

        try:
            reason = await text.speak(self._start, relay, sending)
        except (QwenTTSError, ApiError) as error:
            await self.report(ApiError.of(error), context.name)
            reason = "error"
        if not text.is_blank:
            context.has_failed = reason == "error"
        context.heard_s += text.speaking.length_s if text.speaking else 0.0
        self.active_at = time.monotonic()
        await self.ended(context, text, reason, sending)

    async def finish(self, context: "Context") -> None:
        """Note that a context has nothing more to speak."""
        if context.is_closing:
            if self.contexts.get(context.name) is context:
                del self.contexts[context.name]
            await self.closed(context)
        self.speaking.discard(context)
        await self._close_at_end()

    async def _start(self, text: str | None, plan: SpeechPlan) -> ActiveSpeech:
        """Start a speech with an id of its own."""
        request_id = f"{self.request_id}-{next(self._speech_numbers)}"
        return await self.service.speak(text, plan, request_id)

    # ---- the connection --------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task of the connection, which `run` cancels at the end, or whose error it raises.

        A task that finds the client gone ends the connection, too.
        """
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._note)
        return task

    def _note(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._over.set()
            if not isinstance(error, WebSocketDisconnect | ConnectionAbortedError):
                self._error = self._error or error

    async def run(self) -> None:
        """Serve the connection until either side ends it; errors before that refuse it."""
        self.spawn(self._read()).add_done_callback(lambda _: self._over.set())
        try:
            await self._over.wait()
        finally:
            for context in self.speaking.union(self.contexts.values()):
                context.cancel()
            tasks = [*self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if self._error:
            raise self._error

    async def _read(self) -> None:
        """Read messages until the client is gone, is idle, or sends too much that is wrong."""
        await self.accept()
        num_faults = 0
        while True:
            facts: dict[str, Any] = {}
            try:
                message = await self._receive()
                if message["type"] == "websocket.disconnect":
                    return
                facts = _json_object(message)
                if self.is_activity(facts):
                    self.active_at = time.monotonic()
                # What comes until the end is read, too, for the client may vanish.
                if not self._is_ending and await self.obey(facts):
                    self._is_ending = True
                    for context in list(self.contexts.values()):
                        context.close()
                    await self._close_at_end()
            except (QwenTTSError, ApiError, ValidationError) as error:
                name = facts.get("context_id")
                await self.report(ApiError.of(error), name if _is_name(name) else None)
                num_faults += 1
                why = f"{MAX_FAULTS} messages were refused."
                if self.first:
                    why = f"The first message must be a valid {self.first}."
                if self.first or num_faults >= MAX_FAULTS:
                    await self.close(POLICY, why)
                    return
            except TimeoutError:
                what = f"No {self.first or 'message'} arrived in time."
                await self.report(ApiError(408, what, "idle_timeout"), None)
                await self.close(POLICY, what)
                return

    async def _receive(self) -> Message:
        receiving = asyncio.ensure_future(self._socket.receive())
        try:
            while not receiving.done():
                left_s = self.ends_at() - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                await asyncio.wait({receiving}, timeout=left_s)
            return receiving.result()
        finally:
            receiving.cancel()

    async def send(self, **facts: Any) -> None:
        """Send an object; raises `ConnectionAbortedError` if the client does not read it."""
        await self._sent(self._socket.send_text(json.dumps(facts, separators=(",", ":"))))

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection; the reason has 123 bytes at most."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._socket.close(code, reason)
        self._over.set()

    async def _close_at_end(self) -> None:
        if self._is_ending and not self.speaking:
            await self.close()

    async def _sent(self, writing: Coroutine[Any, Any, None]) -> None:
        if self._is_closed:  # found by another task, while this one has more to send
            writing.close()
            raise ConnectionAbortedError("The connection is closed.")
        try:
            await writing
        except WebSocketDisconnect:  # or it did not read
            self._is_closed = True
            raise


def _json_object(message: Message) -> dict[str, Any]:
    if message.get("text") is None:
        raise UsageError("The message is binary; it must be JSON text.")
    check_json_values(message["text"])
    try:
        facts = json.loads(message["text"])
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The message is not JSON: {error}.") from error
    if not isinstance(facts, dict):
        raise UsageError("The message must be a JSON object.")
    return facts


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= MAX_NAME_CHARS


def wrong(name: str, value: object, wanted: str) -> UsageError:
    """Return the error about a field of a message."""
    return UsageError(f"{name} is {shown(value, 80)}; it must be {wanted}.")
