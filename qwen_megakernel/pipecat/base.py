"""Pipecat's TTS base class, corrected for a service that makes its audio in this process.

The class corrects the timing of words and the end of speech in pipecat-ai 1.14. It uses private
members of Pipecat's class, so the release of Pipecat is pinned.
"""

import asyncio
import inspect
from itertools import pairwise
from typing import Any

from pipecat.frames.frames import (
    AggregatedTextFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    StopFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.tts_service import TTSService

from qwen_megakernel.pipecat.word_timestamps import PlayoutClock
from qwen_megakernel.text.sentences import sentence_spans, unspeakable

LONG_TEXT_CHARS = 400  # some sentences; longer texts are cut, which the sentences of LLMs are not


class InProcessTTSService(TTSService):
    """A `TTSService` that times words by their audio, and that always ends."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self._playout = PlayoutClock()
        self._stopping = False
        self._is_interrupted = False  # since the current `TTSSpeakFrame` came
        self._played_out = asyncio.Event()
        self._words_in_order = asyncio.Lock()
        self._pushed_marks = ""  # marks and emoji that were pushed with the word before them

    # FrameProcessor changes the type of its base's argument, too.
    async def setup(self, setup: FrameProcessorSetup) -> None:  # type: ignore[override]
        """Join a pipeline; forget the times of an earlier one, which had another clock."""
        self._playout = PlayoutClock()
        self._stopping = False
        self._played_out.clear()
        self._word_timestamp_tracker.last_pts = 0
        self._word_timestamp_tracker.uninterruptible_last_pts = 0
        await self._text_aggregator.reset()  # of a turn that the LLM never finished
        self._turn_context_id = None
        await super().setup(setup)

    # ---- text ------------------------------------------------------------------------------------

    async def _handle_aggregated_text(
        self, src_frame: AggregatedTextFrame, context_id: str | None = None
    ) -> None:
        """Speak a text; a long one, such as a `TTSSpeakFrame` may have, sentence by sentence.

        The base class takes a time that grows with the square of a text's length: 10,000 characters
        would block the event loop for most of a second.
        """
        if self._stopping:
            return  # text after the EndFrame, which no listener would hear
        text = src_frame.text
        context_id = context_id or self.create_context_id()
        is_spoken = src_frame.text_type not in self._skip_text_types
        if len(text) <= LONG_TEXT_CHARS or src_frame.raw_text not in (None, text) or not is_spoken:
            await super()._handle_aggregated_text(src_frame, context_id)
        else:
            for begin, end in sentence_spans(text):
                sentence = text[begin:end]
                frame = AggregatedTextFrame(sentence, src_frame.text_type, raw_text=sentence)
                frame.interruptible = src_frame.interruptible
                await super()._handle_aggregated_text(frame, context_id)
                await asyncio.sleep(0)  # the calls above may never have waited
        if context_id != self._turn_context_id:  # text behind an interruption, whose turn is over
            await self._end_text(context_id)

    async def _handle_tts_speak(self, frame: TTSSpeakFrame) -> None:
        self._is_interrupted = False
        await super()._handle_tts_speak(frame)
        if self._is_interrupted:  # the base class has returned to a turn that is over
            self._turn_context_id = None

    # ---- ends ------------------------------------------------------------------------------------

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, StopFrame):  # it waits for all contexts
            await self._end_texts()
        await super().process_frame(frame, direction)

    async def _end_texts(self) -> None:
        """End the texts of all contexts, also that of a turn which the LLM never finished."""
        for context_id in self.get_audio_contexts():
            await self._end_text(context_id)

    async def _end_text(self, context_id: str) -> None:
        """End the text of an open context, whose last words may be no complete sentence."""
        if self.audio_context_available(context_id):
            rest = await self._aggregated_frame_sequencer.finalize(context_id)
            await self._push_sequencer_frames(rest, context_id)
            await self.flush_audio(context_id)

    async def stop(self, frame: EndFrame) -> None:
        """Let the current speech play out.

        The base class awaits its playback task here. An interruption either cancels that task, or
        drops the mark that would end it, and then the pipeline never ends. This method waits for
        any playback task to reach the mark, and an interruption sets the mark again.
        """
        self._stopping = True
        await self._end_texts()
        if self._audio_context_task:
            await self._audio_context_manager.end_playback()
            await self._played_out.wait()
            self._audio_context_task = None
        await super().stop(frame)

    async def _audio_context_task_handler(self) -> None:
        await super()._audio_context_task_handler()
        self._played_out.set()  # a cancelled task does not get here

    async def _handle_interruption(
        self, frame: InterruptionFrame, direction: FrameDirection
    ) -> None:
        await super()._handle_interruption(frame, direction)
        self._is_interrupted = True
        self._playout.cut(self._now_s())
        if self._stopping:
            await self._audio_context_manager.end_playback()

    async def stop_all_metrics(self) -> None:
        """End all measurements at an interruption.

        The base class would report the time to the interruption as the time to the first byte.
        """
        await self.cancel_ttfb_metrics()
        await super().stop_all_metrics()

    # ---- words -----------------------------------------------------------------------------------

    async def start_word_timestamps(self) -> None:
        """Begin to time the words of a context, just before its first audio is pushed.

        The base class counts from the last word of the context before, but the words are heard
        after the end of that context's audio.
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
        """Time words by when their audio is heard, not by how much audio precedes it."""
        async with self._words_in_order:
            for word, seconds in word_times:
                if self._pushed_marks.startswith(word):
                    self._pushed_marks = self._pushed_marks[len(word) :].lstrip()
                    continue
                self._pushed_marks = ""
                delayed = [(word, seconds + self._playout.delay_s)]
                await super()._add_word_timestamps(delayed, context_id, includes_inter_frame_spaces)

    async def _push_word_frames(self, frames: list[Frame]) -> None:
        """Push the frames of words, with the spaces between ideographs and another script.

        The last of a sentence gets the marks and emoji behind it, too. The base class has them only
        in the `raw_text` of that frame, because they are not heard.
        """
        for frame, after in pairwise([*frames, None]):
            if isinstance(frame, TTSTextFrame):
                raw = frame.raw_text or ""
                rest = raw[len(frame.text) :] if raw.startswith(frame.text) else ""
                self._pushed_marks = rest.strip() if unspeakable(rest) else ""
                if self._pushed_marks:
                    frame.text = raw
                if frame.includes_inter_frame_spaces:
                    heard = getattr(after, "accumulated_text", "")  # ends with this word
                    before = heard.rstrip().removesuffix(raw or frame.text)
                    space = before[len(before.rstrip()) :]
                    frame.text, frame.raw_text = space + frame.text, raw and space + raw
        await super()._push_word_frames(frames)

    async def _push_sequencer_frames(self, frames: list[Frame], context_id: str | None) -> None:
        """Push a complete sentence, with its words that were heard before it was complete.

        The base class would append these words to the context's queue, after later words of the
        same sentence.
        """
        if any(isinstance(frame, TTSTextFrame) for frame in frames):
            async with self._words_in_order:
                await self._push_word_frames(frames)
        else:
            await super()._push_sequencer_frames(frames, context_id)

    async def push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        await super().push_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            duration_s = frame.num_frames / frame.sample_rate
            self._playout.send(self._now_s(), duration_s, interruptible=frame.interruptible)

    def _heard_s(self, context_id: str) -> float:
        """Return how much of a context's audio the listener has heard."""
        return self._playout.heard_s(context_id, self._now_s())

    def _now_s(self) -> float:
        return self.get_clock().get_time() / 1e9


def base_arguments() -> set[str]:
    """Return the names of the arguments that Pipecat's base classes use.

    The classes accept any other name, too, and ignore it.
    """
    bases = (base for base in TTSService.__mro__ if "__init__" in vars(base))
    parameters = (p for base in bases for p in inspect.signature(base).parameters.values())
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
