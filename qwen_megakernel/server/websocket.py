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
import functools
import json
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from fastapi import WebSocket

from qwen_megakernel.engine.conversation import Conversation
from qwen_megakernel.errors import QwenTTSError, UsageError
from qwen_megakernel.printable import get_logger
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.encoders import new_encoder
from qwen_megakernel.server.error_responses import ApiError, error_facts
from qwen_megakernel.server.responses import audio_bytes, file_at_end, keep
from qwen_megakernel.server.schemas import SessionConfig, check_length, in_conversation
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.utterance import JsonSocket, Utterance

logger = get_logger(__name__)

MAX_WAITING = 8  # utterances that may wait for the one being spoken; further ones are refused


@dataclass(eq=False, slots=True, kw_only=True)
class NumberedUtterance(Utterance):
    """The text until an `input.done`."""

    index: int
    config: SessionConfig
    # This utterance and those after it that began while too many were waiting. Their number has no
    # limit, so they are counted, not held; each is answered with an error.
    num_refused: int = 0

    def refuse(self) -> None:
        """Count this utterance, or (again) the one right after it, as refused."""
        self.num_refused += 1
        self.num_chars, self.over, self.ended = 0, True, False


class Session:
    """One WebSocket connection."""

    def __init__(self, websocket: WebSocket, service: Service):
        self._socket, self._settings = JsonSocket(websocket, service), service.settings
        self._config: SessionConfig | None = None
        self._options: dict[str, Any] = {}
        self._warnings: list[str] = []
        self._pending: deque[NumberedUtterance] = deque()  # the first is being spoken
        self._writing: NumberedUtterance | None = None  # the utterance that still takes text
        self._num_utterances = 0
        self._conversation = Conversation()  # of its utterances
        # When the client last sent anything but blank text, or its speech ended; `time.monotonic`.
        self._active_at = time.monotonic()
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Serve the connection until either side ends it."""
        reading = self._socket.read(
            *(self._obey, self._send_error, self._ends_at),
            first=lambda: "session.config" if self._config is None else "",
        )
        await self._socket.run(self._speak_all(), reading, end=self._cancel_all)

    # ---- messages from the client ----------------------------------------------------------------

    def _cancel_all(self) -> None:
        for utterance in self._pending:
            utterance.cancel()

    def _ends_at(self) -> float:
        """Return until when a message is waited for; there is no end while the client listens."""
        settings = self._settings
        limit = settings.config_timeout_s if self._config is None else settings.idle_timeout_s
        if self._pending and self._writing is None:
            return time.monotonic() + limit
        return self._active_at + limit

    async def _obey(self, facts: dict[str, Any]) -> bool:
        """Handle a message; returns True to close the session."""
        kind = facts.pop("type", None)
        if kind != "input.text" or str(facts.get("text")).strip():
            self._active_at = time.monotonic()
        if kind == "session.config":
            await self._set_config(facts)
        elif kind == "session.close":
            await self._socket.close()
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
            self._cancel_all()
            self._writing, self._conversation = None, Conversation()
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
        self._options, self._warnings = await self._socket.service.configure(config)
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

    def _begin(self) -> NumberedUtterance:
        num_held = sum(not each.num_refused for each in self._pending)
        is_refused = num_held > MAX_WAITING  # one of those held is being spoken
        if is_refused and self._pending[-1].num_refused:
            utterance = self._pending[-1]
        else:
            assert self._config is not None  # `_obey` refuses text before it
            utterance = NumberedUtterance(
                index=self._num_utterances,
                config=self._config,
                options=in_conversation(self._options, self._conversation),
                warnings=self._warnings,
            )
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

    async def _serve(self, utterance: NumberedUtterance, sending: contextlib.ExitStack) -> None:
        """Speak an utterance and send its session.done; then the caller ends `sending`.

        A draining server waits until then, so the client gets the last message, too.
        """
        facts: dict[str, Any] = {"total_sentences": 0}
        try:
            facts = await self._speak_one(utterance, sending)
        except (QwenTTSError, ApiError) as error:
            await self._send_error(error)
            facts["finish_reason"] = "error"
        if not utterance.ended:
            sending.close()  # a draining server does not wait for text
        # Each input.done gets one session.done, which comes after it.
        while not utterance.ended and utterance.num_refused < 2:
            await utterance.change()
        index = utterance.index
        if utterance.num_refused > 1:
            utterance.index, utterance.num_refused = index + 1, utterance.num_refused - 1
        else:
            self._pending.remove(utterance)
        self._active_at = time.monotonic()
        await self._socket.send(type="session.done", utterance_index=index, **facts)

    async def _speak_one(
        self, utterance: NumberedUtterance, sending: contextlib.ExitStack
    ) -> dict[str, Any]:
        if utterance.num_refused:
            raise UsageError(
                f"{MAX_WAITING} utterances were waiting when this one began, which is the limit.",
                hint="Wait for a session.done before you send more.",
            )
        relay = functools.partial(self._relay, utterance)
        reason = await utterance.speak(self._socket, relay, sending)
        is_spoken = utterance.speaking is not None and not utterance.is_blank
        return {"total_sentences": int(is_spoken), "finish_reason": reason}

    async def _relay(self, utterance: NumberedUtterance, speaking: ActiveSpeech) -> None:
        config, rate = utterance.config, speaking.record.sample_rate
        response_format = config.format_or(self._settings)
        mark = speaking.mark
        how: dict[str, Any] = {"opus_kbits": self._settings.opus_kbits}
        how["encoding"] = config.encoding or "pcm"
        if config.stream_audio:
            encoder = new_encoder(response_format, rate, **how, comment=mark.comment)
            pieces = audio_bytes(speaking, encoder)
        else:
            pieces = file_at_end(speaking, response_format, **how)
        names: dict[str, Any] = {"utterance_index": utterance.index, "sentence_index": 0}
        has_begun = False
        async for data in pieces:
            if not has_begun:
                await self._socket.send(
                    type="audio.start",
                    **names,
                    # The text is known only after the client has ended it.
                    sentence_text="".join(utterance.pieces) if utterance.ended else None,
                    format=response_format,
                    sample_rate=rate,
                    channels=1,
                    seed=speaking.stream.seed,
                    request_id=speaking.request_id,
                    warnings=utterance.warnings + speaking.stream.text.warnings,
                    **mark.fields,
                )
                has_begun = True
            if data:
                await self._socket.send_bytes(data)
            # Times that have become final; audio of these words may come later.
            if found := await speaking.timestamps(config.timestamp_granularities or ()):
                index = utterance.index
                await self._socket.send(type="audio.timestamps", utterance_index=index, **found)
        names["sentence_text"] = "".join(utterance.pieces)
        await self._socket.send(
            type="audio.done", **names, **speaking.facts(), usage=speaking.usage
        )

    async def _send_error(self, error: Exception, about: dict[str, Any] | None = None) -> None:
        facts = error_facts(error)[1]
        await self._socket.send(type="error", message=facts["message"], error=facts)
