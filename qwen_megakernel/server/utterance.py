"""What the protocols share that take text by the token and send audio meanwhile.

An `Utterance` is a text that arrives in pieces: it opens a stream of the engine on its first piece,
feeds it, and ends or cancels it. A `Speaker` speaks utterances one after the other.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from qwen_megakernel.engine.conversation import Conversation
from qwen_megakernel.errors import EmptyText
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.schemas import SpeechPlan

Start = Callable[[str | None, SpeechPlan], Awaitable[ActiveSpeech]]
Relay = Callable[[ActiveSpeech], Awaitable[None]]


@dataclass(eq=False, slots=True, kw_only=True)
class Utterance:
    """A text that arrives in pieces; it is kept here until its stream is open, then fed."""

    plan: SpeechPlan
    may_be_blank: bool = True  # a text without anything to speak is no error
    is_streamed: bool = False  # it is fed to its stream even if it is complete before
    mark: str = ""  # which the server reports to the client after the last audio
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
        self.num_chars += len(text)
        if self.over or not text:  # a client may send any number of empty pieces
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

    async def speak(self, start: Start, relay: Relay, sending: contextlib.ExitStack) -> str | None:
        """Wait for the first text, start its stream, and relay the speech.

        Args:
            start: starts a speech; text None: it is fed in pieces.
            relay: sends all of a speech to the client.
            sending: holds the speech until the caller has sent the last message about it, for
                which a draining server waits.
        Returns:
            Why the speech ended; "eos" for blank text that may be blank.
        Raises:
            QwenTTSError, ApiError: the speech was refused, or has failed.
        """
        try:
            while not self.pieces and not self.ended:
                await self.change()
            if self.cancelled:
                return "cancelled"
            if not self.pieces and self.may_be_blank:
                return "eos"
            speaking = await self._open(start)
            sending.enter_context(speaking)
            async with speaking.limited():
                await relay(speaking)
            return speaking.finish_reason
        except EmptyText:
            if not (self.is_blank and self.may_be_blank):
                raise
            return "eos"
        finally:
            self.over = True
            if self.speaking:
                self.speaking.close()

    async def _open(self, start: Start) -> ActiveSpeech:
        """Start the stream, and give it the text that has arrived."""
        is_fed = not self.ended or (self.is_streamed and self.pieces)
        text = None if is_fed else "".join(self.pieces)
        self.speaking = speaking = await start(text, self.plan)
        if self.cancelled:  # meanwhile
            speaking.close()
        elif text is None:
            for piece in self.pieces:  # their number may grow
                await speaking.feed(piece)
            self.feeding = speaking
            if self.ended:
                speaking.stream.end_text()
        return speaking


class Speaker:
    """Speaks a client's texts one after the other, in a task; the last one may still take text.

    Args:
        spawn: starts a task.
        speak: speaks the first text of `waiting`, and then takes it out.
        finish: called when no text is waiting, unless the task is cancelled before.
    """

    def __init__(
        self,
        spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        speak: Callable[[Utterance, contextlib.ExitStack], Awaitable[None]],
        finish: Callable[[], Awaitable[None]],
    ):
        self.waiting: deque[Utterance] = deque()  # the first is being spoken
        self.writing: Utterance | None = None  # the one that still takes text
        self.conversation = Conversation()  # of all texts
        self.task: asyncio.Task[None] | None = None
        self._spawn, self._speak, self._finish = spawn, speak, finish

    def begin(self, text: Utterance) -> Utterance:
        """Add a text."""
        self.writing = text
        self.waiting.append(text)
        self.start()
        return text

    def start(self) -> None:
        """Speak what is waiting, if anything is, and call `finish`."""
        if self.task is None:
            self.task = self._spawn(self._speak_all())

    def end(self) -> None:
        """End the text that is being written."""
        if self.writing:
            self.writing.end()
        self.writing = None

    def cancel(self) -> None:
        """Stop speaking all texts; later ones continue none of them."""
        for text in self.waiting:
            text.cancel()
        self.writing, self.conversation = None, Conversation()

    async def _speak_all(self) -> None:
        while self.waiting:
            with contextlib.ExitStack() as sending:
                await self._speak(self.waiting[0], sending)
        self.task = None
        await self._finish()
