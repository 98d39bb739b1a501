"""Pipecat's TTS base class, made fit for a service that makes its audio in this process.

It is right about words and ends where the base class of pipecat-ai 1.14 is not. That takes private
members of it, so the release is pinned.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

from pipecat.frames.frames import (
    AggregatedTextFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.tts_service import TTSService
from pipecat.utils.text.simple_text_aggregator import SimpleTextAggregator

from qwen_megakernel.pipecat.word_timestamps import PlayoutClock

# Some sentences: an LLM's are shorter, and go on as they are.
LONG_TEXT_CHARS = 400


class InProcessTTSService(TTSService):
    """A `TTSService` whose words keep to their audio and whose end always comes."""

    def __init__(self, **kwargs: Any):
        """Initialize the service.

        Args:
            **kwargs: For the base class.
        """
        super().__init__(**kwargs)
        self._playout = PlayoutClock()
        self._stopping = False
        self._played_out = asyncio.Event()
        self._words_in_order = asyncio.Lock()

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Become part of a pipeline, perhaps not the first one.

        Its clock begins at 0, so nothing is left of the times of the one before.

        Args:
            setup: The pipeline's clock, tasks and sample rates.
        """
        self._playout = PlayoutClock()
        self._stopping = False
        self._played_out.clear()
        self._word_timestamp_tracker.last_pts = 0
        self._word_timestamp_tracker.uninterruptible_last_pts = 0
        await super().setup(setup)

    # ---- text ------------------------------------------------------------------------------------

    async def _handle_aggregated_text(
        self, src_frame: AggregatedTextFrame, context_id: str | None = None
    ) -> None:
        """Speak text; a long one, as a `TTSSpeakFrame` may bring, sentence by sentence.

        The base class follows the words of a text in a time that grows with the square of its
        length: 10,000 characters would keep the event loop for most of a second.
        """
        text = src_frame.text
        if len(text) <= LONG_TEXT_CHARS or src_frame.raw_text not in (None, text):
            await super()._handle_aggregated_text(src_frame, context_id)
            return
        context_id = context_id or self.create_context_id()
        async for sentence in _sentences(text, self.text_aggregation_language):
            frame = AggregatedTextFrame(sentence, src_frame.text_type, raw_text=sentence)
            frame.interruptible = src_frame.interruptible
            await super()._handle_aggregated_text(frame, context_id)
            await asyncio.sleep(0)  # nothing above need ever have waited

    # ---- ends ------------------------------------------------------------------------------------

    async def stop(self, frame: EndFrame) -> None:
        """Let what is being spoken play out.

        The base class awaits its playback task here. An interruption either cancels that task, or
        drops the mark that would end it, and then the pipeline never ends. This waits for whichever
        playback task gets to the mark, and an interruption renews the mark.

        Args:
            frame: The end frame.
        """
        self._stopping = True
        for context_id in self.get_audio_contexts():
            await self.flush_audio(context_id)  # of a turn that the LLM never finished
        if self._audio_context_task:
            await self._audio_context_manager.end_playback()
            await self._played_out.wait()
            self._audio_context_task = None
        await super().stop(frame)

    async def _audio_context_task_handler(self) -> None:
        await super()._audio_context_task_handler()
        self._played_out.set()  # not reached by a task that is cancelled

    async def _handle_interruption(
        self, frame: InterruptionFrame, direction: FrameDirection
    ) -> None:
        await super()._handle_interruption(frame, direction)
        self._playout.cut(self._now_s())
        if self._stopping:
            await self._audio_context_manager.end_playback()

    async def stop_all_metrics(self) -> None:
        """End the measurements that an interruption ends.

        The base class would report the time to the interruption as the time to the first byte.
        """
        await self.cancel_ttfb_metrics()
        await super().stop_all_metrics()

    # ---- words -----------------------------------------------------------------------------------

    async def start_word_timestamps(self) -> None:
        """Let the words of a context begin: its first audio is about to be pushed.

        The base class counts from the last word of the context before; the words are heard behind
        the end of its audio.
        """
        await super().start_word_timestamps()
        now_s = self._now_s()
        words_from_s = max(now_s, self._word_timestamp_tracker.last_pts / 1e9)
        self._playout.begin(self.get_active_audio_context_id(), now_s, words_from_s)

    async def _add_word_timestamps(
        self,
        word_times: list[tuple[str, float]],
        context_id: str | None = None,
        includes_inter_frame_spaces: bool = False,
    ) -> None:
        """Time words by when their audio is heard, not by how much audio goes before it."""
        delayed = [(word, seconds + self._playout.delay_s) for word, seconds in word_times]
        async with self._words_in_order:
            await super()._add_word_timestamps(delayed, context_id, includes_inter_frame_spaces)

    async def _push_sequencer_frames(self, frames: list[Frame], context_id: str | None) -> None:
        """Push a sentence that is complete, with its words that were heard before it was.

        The base class puts these words behind all that waits in the context's queue; a later word
        of the same sentence that waits there would come first.
        """
        if any(isinstance(frame, TTSTextFrame) for frame in frames):
            async with self._words_in_order:
                await self._push_word_frames(frames)
        else:
            await super()._push_sequencer_frames(frames, context_id)

    async def push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        """Push a frame.

        Args:
            frame: The frame.
            direction: Where to.
        """
        await super().push_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            duration_s = frame.num_frames / frame.sample_rate
            self._playout.send(self._now_s(), duration_s, interruptible=frame.interruptible)

    def _heard_s(self, context_id: str) -> float:
        """How much of a context's audio the listener has heard."""
        return self._playout.heard_s(context_id, self._now_s())

    def _now_s(self) -> float:
        return self.get_clock().get_time() / 1e9


async def _sentences(text: str, language: str) -> AsyncIterator[str]:
    """Cut a text into sentences; joined, they are the text."""
    aggregator = SimpleTextAggregator(language=language)
    end = 0
    async for sentence in aggregator.aggregate(text):
        begin, end = end, text.index(sentence.text, end) + len(sentence.text)
        yield text[begin:end]
    if text[end:].strip():
        yield text[end:]


def base_arguments() -> set[str]:
    """Names of the arguments that Pipecat's base classes do something with.

    They take any other name, too, without a word.
    """
    bases = (base for base in TTSService.__mro__ if "__init__" in vars(base))
    parameters = (p for base in bases for p in inspect.signature(base).parameters.values())
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
