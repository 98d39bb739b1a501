"""WS /v1/audio/speech/stream: takes text by the token, and sends audio before the text ends.

The protocol is vLLM-Omni's, with `response.cancel` added and audio sent while it is made. One
connection speaks one utterance after the other; `input.done` ends an utterance, not the connection.

    client                                server
    session.config (settings)
    input.text (text) ...                 audio.start, binary ..., audio.timestamps, audio.done
    input.done                            session.done (utterance_index)
    response.cancel                       audio.done and session.done, "cancelled"
    session.close                         (closes)
"""

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from fastapi import WebSocket, WebSocketDisconnect
from pydantic import ValidationError
from starlette.types import Message

from qwen_megakernel.audio import joined
from qwen_megakernel.errors import EmptyText, QwenTTSError, UsageError
from qwen_megakernel.printable import get_logger
from qwen_megakernel.server.active_speech import ActiveSpeech, encoded, encoded_whole, sent
from qwen_megakernel.server.encoders import new_encoder
from qwen_megakernel.server.error_responses import ApiError, error_facts
from qwen_megakernel.server.responses import abort, keep
from qwen_megakernel.server.schemas import (
    SessionConfig,
    check_json_values,
    check_length,
    num_json_values,
)
from qwen_megakernel.server.settings import ServerSettings

logger = get_logger(__name__)

MAX_WAITING = 8  # utterances that may wait for the one being spoken; further ones are refused
MAX_FAULTS = 20  # wrong messages after which the connection is closed

_POLICY, _RESTART = 1008, 1012  # close codes (RFC 6455)


@dataclass(eq=False, slots=True)
class Utterance:
    """The text until an `input.done`; it is kept here until its stream is open, then fed."""

    index: int
    config: SessionConfig
    options: dict[str, Any]
    warnings: list[str]
    pieces: list[str] = field(default_factory=list)
    is_blank: bool = True  # all text so far is white space
    num_chars: int = 0
    ended: bool = False
    cancelled: bool = False
    speaking: ActiveSpeech | None = None
    feeding: ActiveSpeech | None = None  # `speaking`, if it takes the text as it arrives
    over: bool = False  # whether its speech has ended
    # This utterance and those after it that began while too many were waiting. Their number has no
    # limit, so they are counted, not held; each is answered with an error.
    num_refused: int = 0
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

    def refuse(self) -> None:
        """Count this utterance, or (again) the one right after it, as refused."""
        self.num_refused += 1
        self.num_chars, self.over, self.ended = 0, True, False

    def cancel(self) -> None:
        """Stop speaking the utterance, or never begin."""
        self.cancelled = self.ended = True
        if self.speaking:
            self.speaking.close()
        self.changed.set()


class Session:
    """One WebSocket connection.

    Args:
        websocket: the connection, not accepted yet.
        settings: limits and times.
        configure: turns a config into options of `TTSEngine.stream` and warnings.
        speak: `await speak(text, options)` starts an utterance; text None: the text is fed in
            pieces.
    """

    def __init__(
        self,
        websocket: WebSocket,
        settings: ServerSettings,
        *,
        configure: Callable[..., Any],
        speak: Callable[..., Awaitable[ActiveSpeech]],
    ):
        self._socket, self._settings = websocket, settings
        self._configure, self._speak = configure, speak
        self._config: SessionConfig | None = None
        self._options: dict[str, Any] = {}
        self._warnings: list[str] = []
        self._pending: deque[Utterance] = deque()  # the first is being spoken
        self._writing: Utterance | None = None  # the utterance that still takes text
        self._num_utterances = self._num_faults = 0
        # When the client last sent anything but blank text, or its speech ended; `time.monotonic`.
        self._active_at = time.monotonic()
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Serve the connection until either side ends it."""
        await self._socket.accept()
        speaker = asyncio.create_task(self._speak_all())
        reader = asyncio.create_task(self._read_all())
        try:
            await asyncio.wait((speaker, reader), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for utterance in self._pending:
                utterance.cancel()
            for task in (speaker, reader):
                task.cancel()
            ends = await asyncio.gather(speaker, reader, return_exceptions=True)
        for end in ends:
            is_gone = isinstance(end, WebSocketDisconnect | ConnectionAbortedError)
            if isinstance(end, Exception) and not is_gone:
                raise end

    # ---- messages from the client ----------------------------------------------------------------

    async def _read_all(self) -> None:
        while True:
            try:
                message = await self._receive()
                if message["type"] == "websocket.disconnect":
                    return
                if await self._obey(message):
                    await self._socket.close()
                    return
            except (QwenTTSError, ApiError, ValidationError) as error:
                await self._send_error(error)
                self._num_faults += 1
                if self._config is None:
                    await self._close("The first message must be a valid session.config.")
                    return
                if self._num_faults >= MAX_FAULTS:
                    await self._close(f"{MAX_FAULTS} messages were refused.")
                    return
            except TimeoutError:
                wanted = "session.config" if self._config is None else "message"
                what = f"No {wanted} arrived in time."
                await self._send_error(ApiError(408, what, code="idle_timeout"))
                await self._close(what)
                return

    async def _close(self, reason: str) -> None:
        """Close the connection for a fault of the client; a reason has 123 bytes at most."""
        await self._socket.close(_POLICY, reason)

    async def _receive(self) -> Message:
        """Return the next message; the wait is limited except while the client listens."""
        settings = self._settings
        limit = settings.config_timeout_s if self._config is None else settings.idle_timeout_s
        receiving = asyncio.ensure_future(self._socket.receive())
        try:
            while True:
                left_s = self._active_at + limit - time.monotonic()
                if self._pending and self._writing is None:
                    left_s = limit
                if left_s <= 0:
                    raise TimeoutError
                done, _ = await asyncio.wait({receiving}, timeout=left_s)
                if done:
                    return receiving.result()
        finally:
            receiving.cancel()

    async def _obey(self, message: Message) -> bool:
        """Handle a message; returns True to close the session."""
        if message.get("text") is None:
            raise UsageError("The message is binary; it must be JSON text.")
        check_json_values(num_json_values(message["text"]))
        try:
            facts = json.loads(message["text"])
        except (ValueError, RecursionError) as error:
            raise UsageError(f"The message is not JSON: {error}.") from error
        if not isinstance(facts, dict):
            raise UsageError("The message must be a JSON object.")
        kind = facts.pop("type", None)
        if kind != "input.text" or str(facts.get("text")).strip():
            self._active_at = time.monotonic()
        if kind == "session.config":
            await self._set_config(facts)
        elif kind == "session.close":
            return True
        elif self._config is None:
            raise UsageError(
                f"The first message is {json.dumps(kind)[:80]}; it must be session.config."
            )
        elif kind == "input.text":
            await self._take_text(facts.get("text"))
        elif kind == "input.done":
            (self._writing or self._begin()).end()
            self._writing = None
        elif kind == "response.cancel":
            for utterance in self._pending:
                utterance.cancel()
            self._writing = None
        else:
            raise UsageError(
                f"Unknown message type {json.dumps(kind)[:80]}.",
                hint="Known: session.config, input.text, input.done, response.cancel, "
                "session.close.",
            )
        return False

    async def _set_config(self, facts: dict[str, Any]) -> None:
        if self._writing is not None:
            raise UsageError("session.config came within an utterance; send input.done first.")
        config = SessionConfig.model_validate(facts)
        config.check_timestamps()
        self._options, self._warnings = await self._configure(config)
        self._config = config
        keep(self._socket.scope)

    async def _take_text(self, text: Any) -> None:
        if not isinstance(text, str):
            raise UsageError(
                f"The `text` of input.text is {json.dumps(text)[:80]}; it must be a string."
            )
        if not text:
            return
        utterance = self._writing or self._begin()
        check_length(utterance.num_chars + len(text), self._settings)
        utterance.num_chars += len(text)
        await utterance.feed(text)

    def _begin(self) -> Utterance:
        num_held = sum(not each.num_refused for each in self._pending)
        is_refused = num_held > MAX_WAITING  # one of those held is being spoken
        if is_refused and self._pending[-1].num_refused:
            utterance = self._pending[-1]
        else:
            assert self._config is not None  # `_obey` refuses text before it
            utterance = Utterance(self._num_utterances, self._config, self._options, self._warnings)
            self._pending.append(utterance)
        if is_refused:
            utterance.refuse()
        self._num_utterances += 1
        self._writing = utterance
        self._news.set()
        return utterance

    # ---- messages to the client ------------------------------------------------------------------

    async def _speak_all(self) -> None:
        while True:
            while not self._pending:
                self._news.clear()
                await self._news.wait()
            with contextlib.ExitStack() as sending:
                await self._serve(self._pending[0], sending)

    async def _serve(self, utterance: Utterance, sending: contextlib.ExitStack) -> None:
        """Speak an utterance and send its session.done; then the caller ends `sending`.

        A draining server waits until then, so the client gets the last message, too.
        """
        facts: dict[str, Any] = {"total_sentences": 0}
        try:
            facts = await self._speak_one(utterance, sending)
        except (QwenTTSError, ApiError) as error:
            if isinstance(error, EmptyText) and utterance.is_blank:
                facts["finish_reason"] = "eos"  # an utterance of white space is no error
            else:
                await self._send_error(error)
                facts["finish_reason"] = "error"
        utterance.over = True
        if not utterance.ended:
            sending.close()  # a draining server does not wait for text
        # Each input.done gets one session.done, which comes after it.
        while not utterance.ended and utterance.num_refused < 2:
            utterance.changed.clear()
            await utterance.changed.wait()
        index = utterance.index
        if utterance.num_refused > 1:
            utterance.index, utterance.num_refused = index + 1, utterance.num_refused - 1
        else:
            self._pending.remove(utterance)
        self._active_at = time.monotonic()
        await self._send(type="session.done", utterance_index=index, **facts)

    async def _speak_one(
        self, utterance: Utterance, sending: contextlib.ExitStack
    ) -> dict[str, Any]:
        if utterance.num_refused:
            raise UsageError(
                f"{MAX_WAITING} utterances were waiting when this one began, which is the limit.",
                hint="Wait for a session.done before you send more.",
            )
        while not utterance.pieces and not utterance.ended:
            utterance.changed.clear()
            await utterance.changed.wait()
        if utterance.cancelled:
            return {"total_sentences": 0, "finish_reason": "cancelled"}
        if not utterance.pieces:
            return {"total_sentences": 0, "finish_reason": "eos"}
        await self._open(utterance)
        speaking = utterance.speaking
        assert speaking is not None  # `_open` has started it
        sending.enter_context(speaking)
        try:
            async with speaking.limited(self._settings.deadline_s):
                await self._relay(utterance, speaking)
        finally:
            speaking.close()
        return {"total_sentences": 1, "finish_reason": speaking.finish_reason}

    async def _open(self, utterance: Utterance) -> None:
        """Start an utterance's stream, and give it the text that has arrived."""
        text = "".join(utterance.pieces) if utterance.ended else None
        utterance.speaking = speaking = await self._speak(text, utterance.options)
        if utterance.cancelled:  # meanwhile
            speaking.close()
        elif text is None:
            for piece in utterance.pieces:  # their number may grow
                await speaking.feed(piece)
            utterance.feeding = speaking
            if utterance.ended:
                speaking.stream.end_text()

    async def _relay(self, utterance: Utterance, speaking: ActiveSpeech) -> None:
        config, rate = utterance.config, speaking.record.sample_rate
        response_format = config.format_or(self._settings)
        how, mark = (self._settings.opus_kbits, config.encoding or "pcm"), speaking.stream.mark
        encoder = new_encoder(response_format, rate, *how, mark.comment)
        whole: list[np.ndarray] = []
        has_begun = False
        names: dict[str, Any] = {"utterance_index": utterance.index, "sentence_index": 0}

        async def begin() -> None:
            await self._send(
                type="audio.start",
                **names,
                # The text is known only after the client has ended it.
                sentence_text="".join(utterance.pieces) if utterance.ended else None,
                format=response_format,
                sample_rate=rate,
                channels=1,
                seed=speaking.stream.seed,
                request_id=speaking.request_id,
                warnings=utterance.warnings + speaking.stream.warnings,
                **mark.fields,
            )

        async for chunk in speaking.chunks():
            if not has_begun:
                await begin()
                has_begun = True
            if not config.stream_audio:
                whole.append(chunk.samples)
            elif data := await encoded(encoder, chunk.samples):
                await self._send_bytes(data)
            await self._send_timestamps(utterance, speaking)
        if not has_begun:  # speech without a sample
            await begin()
        if config.stream_audio:
            data = await encoded(encoder, None)
        else:
            data = await encoded_whole(response_format, joined(whole), rate, *how, mark)
        if data:
            await self._send_bytes(data)
        await self._send_timestamps(utterance, speaking)
        names["sentence_text"] = "".join(utterance.pieces)
        await self._send(type="audio.done", **names, **speaking.facts(), usage=speaking.usage)

    async def _send_timestamps(self, utterance: Utterance, speaking: ActiveSpeech) -> None:
        """Send times of words and sentences that have become final; audio may come later."""
        granularities = utterance.config.timestamp_granularities or ()
        if found := await speaking.timestamps(granularities):
            await self._send(type="audio.timestamps", utterance_index=utterance.index, **found)

    async def _send_error(self, error: Exception) -> None:
        facts = error_facts(error)[1]
        await self._send(type="error", message=facts["message"], error=facts)

    async def _send(self, **facts: Any) -> None:
        await self._sent(self._socket.send_text(json.dumps(facts, separators=(",", ":"))))

    async def _send_bytes(self, data: bytes) -> None:
        await self._sent(self._socket.send_bytes(data))

    async def _sent(self, writing: Awaitable[None]) -> None:
        limit_s = self._settings.stall_timeout_s
        await sent(writing, limit_s, lambda: abort(self._socket.scope))
