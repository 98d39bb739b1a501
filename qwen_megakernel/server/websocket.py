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

import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

from qwen_megakernel.errors import UsageError
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.error_responses import ApiError, shown
from qwen_megakernel.server.responses import KEEP, steer
from qwen_megakernel.server.schemas import SessionConfig, check_length
from qwen_megakernel.server.session import Context, ContextSession, wrong
from qwen_megakernel.server.utterance import Relay, Start, Utterance

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

    async def speak(self, start: Start, relay: Relay, sending: contextlib.ExitStack) -> str | None:
        if self.num_refused:
            raise UsageError(
                f"{MAX_WAITING} utterances were waiting when this one began, which is the limit.",
                hint="Wait for a session.done before you send more.",
            )
        return await Utterance.speak(self, start, relay, sending)


class Session(ContextSession):
    """One WebSocket connection, which has one context from its first session.config on."""

    first = "session.config"
    _num_utterances = 0

    # ---- messages from the client ----------------------------------------------------------------

    def ends_at(self) -> float:  # there is no end while the client listens
        context, settings = self.contexts.get(""), self.settings
        limit = settings.config_timeout_s if context is None else settings.idle_timeout_s
        if context and context.waiting and context.writing is None:
            return time.monotonic() + limit
        return self.active_at + limit

    def is_activity(self, facts: dict[str, Any]) -> bool:
        text = facts.get("text")
        return facts.get("type") != "input.text" or not isinstance(text, str) or bool(text.strip())

    async def obey(self, facts: dict[str, Any]) -> bool:
        kind, context = facts.pop("type", None), self.contexts.get("")
        if kind == "session.config":
            await self._set_config(context, facts)
        elif kind == "session.close":
            await self.close()
        elif context is None:
            raise wrong("The first message", kind, "session.config")
        elif kind == "input.text":
            await self._take_text(context, facts.get("text"))
        elif kind == "input.done":
            if context.writing is None:
                self._begin(context)
            context.end()
        elif kind == "response.cancel":
            context.cancel()
        else:
            known = "session.config, input.text, input.done, response.cancel, session.close"
            raise UsageError(f"Unknown message type {shown(kind, 80)}.", f"Known: {known}.")
        return False

    async def _set_config(self, context: Context | None, facts: dict[str, Any]) -> None:
        if context and context.writing:
            raise UsageError("session.config came within an utterance; send input.done first.")
        config = SessionConfig.model_validate(facts)
        steer(self.scope, KEEP)  # to clone a voice may take long
        plan = await self.service.configure(config)
        context = context or self.open("", plan)
        context.plan, context.settings, self.first = plan, config, ""

    async def _take_text(self, context: Context, text: Any) -> None:
        if not isinstance(text, str):
            raise wrong("The `text` of input.text", text, "a string")
        if text:
            utterance = context.writing or self._begin(context)
            check_length(utterance.num_chars + len(text), self.settings)
            await utterance.feed(text)

    def _begin(self, context: Context) -> Utterance:
        waiting = cast("deque[NumberedUtterance]", context.waiting)
        num_held = sum(not each.num_refused for each in waiting)
        is_refused = num_held > MAX_WAITING  # one of those held is being spoken
        if is_refused and waiting[-1].num_refused:
            utterance = context.writing = waiting[-1]
        else:
            plan, index = context.plan.within(context.conversation), self._num_utterances
            utterance = NumberedUtterance(index=index, config=context.settings, plan=plan)
            context.begin(utterance)
        if is_refused:
            utterance.refuse()
        self._num_utterances += 1
        return utterance

    # ---- messages to the client ------------------------------------------------------------------

    async def messages(
        self, context: Context, text: Utterance, speaking: ActiveSpeech
    ) -> AsyncIterator[bytes | dict[str, Any]]:
        assert isinstance(text, NumberedUtterance)
        config = text.config
        names: dict[str, Any] = {"utterance_index": text.index, "sentence_index": 0}
        has_begun = False
        is_whole = config.stream_audio is False
        async for data in speaking.file_at_end() if is_whole else speaking.audio():
            if not has_begun:
                yield {
                    "type": "audio.start",
                    **names,
                    # The text is known only after the client has ended it.
                    "sentence_text": "".join(text.pieces) if text.ended else None,
                    "format": speaking.plan.audio.name,
                    "sample_rate": speaking.record.sample_rate,
                    "channels": 1,
                    "seed": speaking.stream.seed,
                    "request_id": speaking.request_id,
                    "warnings": speaking.warnings,
                    **speaking.mark.fields,
                }
                has_begun = True
            yield data
            # Times that have become final; audio of these words may come later.
            if found := await speaking.timestamps(config.timestamp_granularities or ()):
                yield {"type": "audio.timestamps", "utterance_index": text.index, **found}
        names["sentence_text"] = "".join(text.pieces)
        yield {"type": "audio.done", **names, **speaking.facts(), "usage": speaking.usage}

    async def ended(
        self, context: Context, text: Utterance, reason: str | None, sending: contextlib.ExitStack
    ) -> None:  # a draining server waits for the last message, too
        assert isinstance(text, NumberedUtterance)
        if not text.ended:
            sending.close()  # a draining server does not wait for text
        # Each input.done gets one session.done, which comes after it.
        while not text.ended and text.num_refused < 2:
            await text.change()
        index = text.index
        if text.num_refused > 1:
            text.index, text.num_refused = index + 1, text.num_refused - 1
        else:
            context.waiting.remove(text)
        self.active_at = time.monotonic()
        is_spoken = reason != "error" and text.speaking is not None and not text.is_blank
        facts = {"total_sentences": int(is_spoken), "finish_reason": reason}
        await self.send(type="session.done", utterance_index=index, **facts)

    async def report(self, error: ApiError, name: str | None) -> None:
        await self.send(type="error", message=error.message, error=error.facts)
