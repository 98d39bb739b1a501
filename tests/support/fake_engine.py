"""An engine that hums: the public methods of `TTSEngine`, with faults that can be planted.

Speech takes `letter_s` per letter, at a pitch of its own for each request, so a test can tell whose
audio it hears and how much of the text was spoken.
"""

import asyncio
import copy
from collections import deque
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.letters import count_letters
from qwen_megakernel.engine.conversation import Conversation
from qwen_megakernel.engine.stream import StreamText
from qwen_megakernel.errors import (
    EmptyText,
    EngineClosed,
    GenerationError,
    QwenTTSError,
    UnknownVoice,
    UsageError,
)
from qwen_megakernel.marking import Marking
from qwen_megakernel.records import AudioChunk
from qwen_megakernel.sound.chunks import new_chunks
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.languages import resolve_language, supported_languages
from qwen_megakernel.text.parts import TextPart
from qwen_megakernel.text.reading.reader import Reading, TextReader
from qwen_megakernel.text.reading.spoken import Piece, SpokenText
from qwen_megakernel.text.sentences import unspeakable
from qwen_megakernel.timing.speech_timer import SpeechTimer
from qwen_megakernel.timing.words import TimedWord, spoken_spans, word_spans
from qwen_megakernel.voice import Voice

SAMPLE_RATE = 24000
FRAME_S = 0.08
FRAME_SAMPLES = 1920
STORY = "Once upon a time there was a very small house at the edge of a wood. "


class FakeEngine:
    """Speaks on `num_slots` slots; further requests wait.

    Args:
        rtf: seconds to make a second of audio.
        letter_s: seconds of audio per letter (benchmarks.letters.count_letters).
        first_delay_s: before the first chunk, for the prefill.
        silent_frames: silent frames before the first word.
        refusal: raised for every request.
        fail_after: frames after which a request fails with `error`.
        stall_after: frames after which a request delivers nothing more, ever.
        mark: what its streams say that they are marked with; None: metadata.
    """

    can_clone = True
    seconds_per_frame = FRAME_S

    def __init__(
        self,
        *,
        num_slots: int = 8,
        rtf: float = 0.02,
        letter_s: float = 1 / 15,
        first_delay_s: float = 0.0,
        silent_frames: int = 0,
        refusal: Exception | None = None,
        fail_after: int | None = None,
        error: Exception | None = None,
        stall_after: int | None = None,
        voices: tuple[str, ...] = ("aiden", "vivian"),
        mark: Marking | None = None,
    ):
        self.mark = mark or Marking()
        self.sample_rate, self.num_slots, self.max_frames = SAMPLE_RATE, num_slots, 1000
        self.real_time_factor, self.weights, self.vocoder_weights = None, None, "float32"
        self.files = SimpleNamespace(name="hum")
        self.voices = list(voices)
        self.default_voice = next(iter(voices), None)
        self.reference_cache_hits, self.ignores_instruct = 0, False
        self.failure: QwenTTSError | None = None  # if set, the engine refuses requests
        self.languages = supported_languages(("chinese", "english", "german", "japanese"))
        self.rtf, self.letter_s, self.first_delay_s = rtf, letter_s, first_delay_s
        self.silent_frames = silent_frames
        self.refusal = refusal
        self.fail_after, self.stall_after = fail_after, stall_after
        self.error = error or GenerationError("planted")
        self.streams: list[FakeStream] = []
        self.speaking: set[FakeStream] = set()
        self.closed = False
        self._slots = asyncio.Semaphore(num_slots)
        self._reading = Reading()
        self.normalizes = False

    def find_voice(self, voice: str | Voice | None, style: str | None = None) -> str | Voice | None:
        if isinstance(voice, str) and voice not in self.voices:
            raise UnknownVoice(f'Unknown voice "{voice}".')
        if not isinstance(voice, str | Voice | None):
            raise UsageError(f"voice is {voice!r}; it must be a name or a Voice.")
        return voice if style is None or not isinstance(voice, Voice) else voice.in_style(style)

    def check_continuity(self) -> list[str]:
        return []

    def stream(
        self,
        text: str | None = None,
        *,
        text_open: bool = False,
        conversation: Conversation | None = None,
        find_voice: Any = None,
        **options: Any,
    ) -> "FakeStream":
        if self.closed:
            raise EngineClosed("closed")
        if self.refusal:
            raise copy.copy(self.refusal)
        if (text is None) != text_open:
            raise UsageError("text or text_open")
        if text is not None and unspeakable(text):
            raise EmptyText("empty")
        request = SpeechOptions(seed=7).override(**options)
        resolve_language(request.language, self.languages)
        reader = self._reading.reader(request.normalize, request.language, request.lexicon)
        stream = FakeStream(self, text, request, reader)
        stream.text_format = request.text_format  # recorded, but ignored
        stream.conversation = conversation  # recorded, but ignored
        stream.find_voice = find_voice  # recorded, but ignored
        self.streams.append(stream)
        return stream

    def go_on(self) -> None:
        """Speak on after a stall; must be called on the event loop of the streams."""
        self.stall_after = None
        for stream in self.streams:
            stream._changed.set()

    def close(self) -> None:
        self.closed = True
        for stream in self.streams:
            stream.close()


class ExactTimes(SpeechTimer):
    """The times of a stream's words; `find` knows those of the hum exactly."""

    def __init__(self, stream: "FakeStream") -> None:
        super().__init__([stream._part], stream, deque())
        self._stream = stream

    async def find(self) -> list[TimedWord]:
        """Return the words whose beginning was heard."""
        stream, engine = self._stream, self._stream.engine
        text, speed = stream.text, stream.request.sound.speed
        spans = word_spans(text.written)
        letter_s, silence_s = engine.letter_s / speed, engine.silent_frames * FRAME_S / speed
        letters = [0, *accumulate(map(count_letters, text.spoken))]
        found = []
        self.catch_up()
        for (begin, end), (low, high) in zip(spans, spoken_spans(text.pieces, spans), strict=True):
            start_s, end_s = (silence_s + letters[place] * letter_s for place in (low, high))
            if start_s < self._heard_s and (low < len(text.spoken) or stream._over):
                found.append(TimedWord(text.written[begin:end], start_s, end_s, begin))
        return found


class FakeStream:
    """One request."""

    def __init__(
        self,
        engine: FakeEngine,
        text: str | None,
        request: SpeechOptions,
        reader: TextReader | None,
    ):
        self.engine, self.request, self.reader = engine, request, reader
        self.seed, self.finish_reason = request.seed, None
        self._spoken = self.written = text or ""
        if reader and text is not None:
            self._spoken = reader.whole(text)
        self.text_ended, self._is_whole = text is not None, text is not None
        self._sent: list[bytes] = []
        self.num_frames = 0
        self.cancelled = False
        self.timings, self.warnings, self.drifts = {}, [], []
        self.pitch = 200 + 37 * (len(engine.streams) % 40)
        self._part = TextPart(text=self._spoken, first_frame=0)
        self.times = ExactTimes(self)
        self._changed = asyncio.Event()
        self._due: float | None = None  # loop time of the next chunk
        self._heard = new_chunks(request.sound, SAMPLE_RATE, None, has_parts=False)
        self.sample_rate = self._heard.sample_rate if self._heard else SAMPLE_RATE
        self._chunk_frames = request.first_chunk_frames
        self._over = False

    speakers = ((0, None),)  # one speaks all of it

    @property
    def sent(self) -> bytes:
        return b"".join(self._sent)

    @property
    def spoken(self) -> SpokenText:
        if self.reader:
            return self.reader.spoken
        return SpokenText([Piece(self._spoken, 0, len(self._spoken), is_kept=True)])

    @property
    def text(self) -> StreamText:
        """The text, of one part and with a token for each letter."""
        return StreamText(
            written=self.written,
            is_normalized=self.reader is not None,
            warnings=self.warnings,
            num_tokens=count_letters(self._spoken),
            num_parts=1,
            drifts=self.drifts,
            planned_parts=1 if self._is_whole else None,
            _spoken=self.spoken,
        )

    def _say(self, text: str) -> None:
        self._spoken += text
        self._part.text += text

    @property
    def codes(self) -> np.ndarray:
        """The frames, [num_frames, 16] int32; the first code of a frame is its number."""
        codes = np.zeros((self.num_frames, 16), dtype=np.int32)
        codes[:, 0] = np.arange(self.num_frames)
        return codes

    def feed(self, text: str) -> None:
        if self.text_ended:
            raise UsageError("text has ended")
        self.written += text
        self._say(self.reader.feed(text) if self.reader else text)
        self._changed.set()

    def end_text(self) -> None:
        if self.reader:
            self._say(self.reader.end())
        self.text_ended = True
        self._changed.set()

    def close(self) -> None:
        self.cancelled = True
        self._changed.set()
        self._leave()

    def __aiter__(self) -> "FakeStream":
        return self

    async def __anext__(self) -> AudioChunk:
        chunks: list[AudioChunk] = []
        while not chunks:
            if chunk := await self._next():
                chunks = self._heard.hear(chunk) if self._heard else [chunk]
            elif self._heard and (rest := self._heard.rest()):
                chunks = [rest]
            else:
                self.times.received.append(None)
                raise StopAsyncIteration
        (heard,) = chunks
        self.times.received.append(heard)
        self._sent.append(heard.samples.tobytes())
        return heard

    async def _next(self) -> AudioChunk | None:
        """Make the next chunk, as an engine does; None: the speech is over."""
        if self._over:
            return None
        if self._due is None:
            await self._enter()
        while not self.cancelled:
            left, size = self._frames_in_text() - self.num_frames, self._chunk_frames
            if self.request.max_frames is not None:
                size = min(size, self.request.max_frames - self.num_frames)
                if not size:
                    return self._last("length")
            if self.engine.stall_after is not None and self.num_frames >= self.engine.stall_after:
                left = 0
            elif self.engine.fail_after is not None and self.num_frames >= self.engine.fail_after:
                self._over = True
                self._leave()
                raise copy.copy(self.engine.error)
            elif left <= 0 and self.text_ended:
                if not self.num_frames:
                    self._over = True
                    self._leave()
                    raise EmptyText("The text ended without a word.")
                return self._last("eos")
            if left > 0 and (self.text_ended or left >= size):
                return await self._make(min(left, size))
            self._changed.clear()
            await self._changed.wait()
            self._due = max(self._due, asyncio.get_running_loop().time())
        return self._last("cancelled")

    def _frames_in_text(self) -> int:
        spoken = round(count_letters(self._spoken) * self.engine.letter_s / FRAME_S)
        return spoken + self.engine.silent_frames if spoken else 0

    async def _enter(self) -> None:
        entering = asyncio.ensure_future(self.engine._slots.acquire())
        leaving = asyncio.ensure_future(self._wait_for_cancel())
        try:
            await asyncio.wait((entering, leaving), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # of the reader: release a slot that was just taken
            if not entering.cancel() and entering.result():
                self.engine._slots.release()
            raise
        finally:
            leaving.cancel()
        self._due = asyncio.get_running_loop().time() + self.engine.first_delay_s
        if not entering.done():
            entering.cancel()
            return
        self.engine.speaking.add(self)
        if self.cancelled:
            self._leave()

    async def _wait_for_cancel(self) -> None:
        while not self.cancelled:
            self._changed.clear()
            await self._changed.wait()

    def _leave(self) -> None:
        if self in self.engine.speaking:
            self.engine.speaking.remove(self)
            self.engine._slots.release()

    async def _make(self, num_frames: int) -> AudioChunk | None:
        loop = asyncio.get_running_loop()
        self._due += num_frames * FRAME_S * self.engine.rtf
        while not self.cancelled and loop.time() < self._due:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), self._due - loop.time())
            except TimeoutError:
                break
        if self.cancelled:
            return self._last("cancelled")
        first = self.num_frames
        self.num_frames += num_frames
        t = np.arange(first * FRAME_SAMPLES, self.num_frames * FRAME_SAMPLES) / SAMPLE_RATE
        sound = t >= self.engine.silent_frames * FRAME_S
        samples = (8000 * sound * np.sin(2 * np.pi * self.pitch * t)).astype(np.int16)
        self._chunk_frames = min(2 * self._chunk_frames, self.request.chunk_frames)
        return AudioChunk(samples, SAMPLE_RATE, first, num_frames, 0.0)

    def _last(self, reason: str) -> None:
        self._over = True
        self.finish_reason = reason
        if reason == "eos":
            self._part.end(self.num_frames, reason)
        self._leave()  # last, for a test in another thread waits for this
        return None
