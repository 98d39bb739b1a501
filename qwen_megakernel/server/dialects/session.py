"""Several texts on one WebSocket: each context has a name, and speaks one text after the other.

Contexts are independent: each has streams of its own in the service's queue. A context that is
flushed ends its text; more text of it begins a new stream, whose audio follows.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from fastapi import WebSocket

from qwen_megakernel.engine.conversation import Conversation
from qwen_megakernel.errors import QwenTTSError, UsageError
from qwen_megakernel.printable import printable
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.dialects.dialect import Desk, Sound
from qwen_megakernel.server.error_responses import ApiError, error_facts
from qwen_megakernel.server.responses import audio_bytes, keep
from qwen_megakernel.server.schemas import check_length, in_conversation
from qwen_megakernel.server.utterance import JsonSocket, Utterance

MAX_CONTEXTS = 256  # of one connection
MAX_WAITING = 256  # texts of one context
# Without a message or a speech; agents are silent for minutes and keep their connection.
IDLE_S = 300.0
_ENDS = tuple(".!?\u2026:;,\"')")  # of sentences in scripts with spaces


class Context:
    """The texts of one name.

    Args:
        name: the client's name of it.
        options: of `Service.speak`, for the next text.
        settings: what the client asked for first, as its dialect keeps it.
    """

    def __init__(self, name: str, options: dict[str, Any], sound: Sound, settings: Any):
        self.name, self.options, self.sound, self.settings = name, options, sound, settings
        self.waiting: deque[Utterance] = deque()  # the first is being spoken
        self.writing: Utterance | None = None  # the one that still takes text
        self.heard_s = 0.0  # seconds of audio of the texts before the one being spoken
        self.conversation = Conversation()  # of its texts
        self.counted_ms = [0, 0]  # up to which letters were sent, as written and as spoken
        self.num_answers = 0
        self.request: Any = None  # the client's last, as its dialect keeps it
        self.is_closing = False
        self.task: asyncio.Task[None] | None = None  # speaks `waiting`
        self.text_timer: asyncio.TimerHandle | None = None  # ends the text if no more of it comes

    def flush(self) -> None:
        """End the text."""
        if self.text_timer:
            self.text_timer.cancel()
        if self.writing:
            self.writing.end()
        self.writing = None

    def cancel(self) -> None:
        """Stop speaking all texts."""
        self.flush()
        self.conversation = Conversation()
        for utterance in self.waiting:
            utterance.cancel()


class ContextSession:
    """One connection of a vendor's client; a subclass translates the messages."""

    def __init__(self, websocket: WebSocket, desk: Desk):
        self.socket, self.desk = JsonSocket(websocket, desk.service), desk
        self.contexts: dict[str, Context] = {}  # open ones
        self.leaving: dict[str, Context] = {}  # those that are spoken to their end
        self._marks: dict[Utterance, str] = {}  # texts with an answer at their end
        self._active_at = time.monotonic()  # when the client last sent a message, or a speech ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None  # of a task
        self._is_ending, self._changed = False, asyncio.Event()

    # ---- what a dialect adds ---------------------------------------------------------------------

    async def greet(self) -> None:
        """Send what comes before everything else."""

    async def obey(self, facts: dict[str, Any]) -> bool:
        """Handle a message; returns True to close the connection when all is spoken."""
        raise NotImplementedError

    async def relay(
        self, context: Context, speaking: ActiveSpeech, pieces: AsyncIterator[bytes]
    ) -> None:
        """Send a speech, whose encoded audio comes in pieces, some of them empty."""
        raise NotImplementedError

    async def refuse(self, status: int, facts: dict[str, Any], name: str | None) -> None:
        """Send the facts of an error (`error_facts`) about a context, or the connection (None)."""
        raise NotImplementedError

    async def answer(self, context: Context, mark: str) -> None:
        """Report that all audio before a mark was sent."""

    async def closed(self, context: Context) -> None:
        """Report that a context has ended."""

    # ---- contexts --------------------------------------------------------------------------------

    def open(
        self, name: str, options: dict[str, Any], sound: Sound, settings: Any = None
    ) -> Context:
        """Return a new context; see `Context`.

        Raises:
            UsageError: the connection has too many.
        """
        if len(self.contexts) >= MAX_CONTEXTS:
            raise UsageError(
                f'Context "{printable(name, 80)}" is one too many: this connection has '
                f"{MAX_CONTEXTS} open ones.",
                hint="Close contexts, or open another connection.",
            )
        context = self.contexts[name] = Context(name, options, sound, settings)
        keep(self.socket.scope)
        return context

    async def feed(self, context: Context, text: str, *, is_sentence: bool = False) -> None:
        """Add text; white space alone begins no text.

        Args:
            is_sentence: the client sends whole sentences, which need a space between them.
        Raises:
            TextTooLong: the texts of the context that wait are too long together.
        """
        if context.writing is None and not text.strip():
            return
        before = context.writing.pieces[-1:] if is_sentence and context.writing else []
        if before and before[0].endswith(_ENDS) and not text[:1].isspace():
            text = f" {text}"
        num_waiting = sum(each.num_chars for each in context.waiting)
        check_length(num_waiting + len(text), self.desk.settings)
        context.writing = utterance = context.writing or self._begin(context)
        utterance.num_chars += len(text)
        self.expect_text(context)
        await utterance.feed(text)

    def expect_text(self, context: Context) -> None:
        """End the context's text if no more of it comes: it would hold a slot of the engine."""
        if context.text_timer:
            context.text_timer.cancel()
        loop, limit_s = asyncio.get_running_loop(), self.desk.settings.idle_timeout_s
        context.text_timer = loop.call_later(limit_s, context.flush)

    def mark(self, context: Context, mark: str) -> None:
        """End the context's text, which may be empty; `answer` reports that it was spoken."""
        utterance = context.writing
        if utterance is None or utterance.over:
            utterance = self._begin(context)
        context.flush()
        utterance.end()
        self._marks[utterance] = mark

    def reopen(self, name: str) -> Context:
        """Let a context that is being spoken to its end take text again."""
        context = self.contexts[name] = self.leaving.pop(name)
        context.is_closing = False
        return context

    def close(self, context: Context) -> None:
        """End a context when its texts are spoken; `closed` reports it."""
        context.flush()
        context.is_closing = True
        self.leaving[context.name] = self.contexts.pop(context.name)
        self._start(context)

    def _begin(self, context: Context) -> Utterance:
        if len(context.waiting) >= MAX_WAITING:
            raise UsageError(f"{MAX_WAITING} texts are waiting to be spoken, which is the limit.")
        utterance = Utterance(options=in_conversation(context.options, context.conversation))
        context.waiting.append(utterance)
        self._start(context)
        return utterance

    def _start(self, context: Context) -> None:
        if context.task is None:
            context.task = asyncio.create_task(self._speak_all(context))
            self._tasks.add(context.task)
            context.task.add_done_callback(self._task_over)

    def _task_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._error = self._error or task.exception()
        self._changed.set()

    async def _speak_all(self, context: Context) -> None:
        while context.waiting:
            with contextlib.ExitStack() as sending:
                await self._speak_one(context, context.waiting[0], sending)
        context.task = None
        if context.is_closing:
            if self.leaving.get(context.name) is context:
                del self.leaving[context.name]
            await self.closed(context)

    async def _speak_one(
        self, context: Context, utterance: Utterance, sending: contextlib.ExitStack
    ) -> None:
        async def relay(speaking: ActiveSpeech) -> None:
            pieces = audio_bytes(speaking, self.desk.encoder(speaking, context.sound))
            # Pieces that wait when the client cancels are dropped.
            wanted = (piece async for piece in pieces if not utterance.cancelled)
            await self.relay(context, speaking, wanted)

        try:
            await utterance.speak(self.socket, relay, sending)
        except (QwenTTSError, ApiError) as error:
            await self._refuse(error, {"context_id": context.name})
        context.waiting.popleft()
        if utterance.speaking:
            record = utterance.speaking.record
            context.heard_s += record.num_samples / record.sample_rate
        self._active_at = time.monotonic()
        mark = self._marks.pop(utterance, None)
        if mark and not utterance.cancelled:
            await self.answer(context, mark)

    # ---- the connection --------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the connection until either side ends it; errors before that refuse it."""
        # The vendors' messages have no field that says that speech is synthetic.
        headers = self.desk.service.engine.mark.headers
        await self.socket.run(self._read(), self._watch(), end=self._cancel_all, headers=headers)

    async def _read(self) -> None:
        await self.greet()
        await self.socket.read(self._obey, self._refuse, self._ends_at)

    async def _obey(self, facts: dict[str, Any]) -> bool:
        self._active_at = time.monotonic()
        if not self._is_ending and await self.obey(facts):
            self._is_ending = True
            for context in list(self.contexts.values()):
                self.close(context)
            self._changed.set()
        return False  # what comes until the end is read, for the client may vanish

    async def _refuse(self, error: Exception, about: dict[str, Any]) -> None:
        status, facts, _ = error_facts(error)
        name = about.get("context_id")
        await self.refuse(status, facts, name if isinstance(name, str) else None)

    def _ends_at(self) -> float:
        return IDLE_S + (time.monotonic() if self._tasks else self._active_at)

    async def _watch(self) -> None:
        """Close the connection when it is to end and all is spoken; raise a context's error."""
        while self._error is None:
            if self._is_ending and not self._tasks:
                await self.socket.close()
                return
            self._changed.clear()
            await self._changed.wait()
        raise self._error

    def _cancel_all(self) -> None:
        for context in (*self.contexts.values(), *self.leaving.values()):
            context.cancel()
        for task in self._tasks:
            task.cancel()


def wrong(name: str, value: object, wanted: str) -> UsageError:
    """Return the error about a field of a message."""
    return UsageError(f"{name} is {printable(repr(value), 80)}; it must be {wanted}.")
