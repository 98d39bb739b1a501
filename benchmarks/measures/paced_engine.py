"""An engine without a model: a thread that delivers silence in the engine's chunks, at a fixed
pace.

It shows the time that a service or a server adds: every chunk carries the time of its delivery.
"""

import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np

from qwen_megakernel.engine.stream import SpeechStream
from qwen_megakernel.engine.stream_state import StreamState
from qwen_megakernel.marking import Marking
from qwen_megakernel.records import AudioChunk
from qwen_megakernel.speech_options import OPTIONS, SpeechOptions
from qwen_megakernel.text.intake import TextIntake
from qwen_megakernel.text.languages import supported_languages
from qwen_megakernel.text.parts import TextEncoding
from qwen_megakernel.text.request_text import RequestText

FRAME_S, RATE = 0.08, 24000
FRAME_SAMPLES = int(FRAME_S * RATE)
_STAMP_SAMPLES = 4  # nanoseconds in 64 bits


def handed_over(pcm: bytes) -> float:
    """Return when the chunk that begins with these bytes was delivered, in `time.perf_counter()`.

    On Linux, all processes share this clock.
    """
    return int(np.frombuffer(pcm[: 2 * _STAMP_SAMPLES], np.int64)[0]) / 1e9


class PacedText:
    """A tokenizer that accepts text and ignores it."""

    def feed(self, piece: str) -> list[int]:
        return []

    def end(self) -> list[int]:
        return []


class PacedEngine:
    """An engine that delivers chunks from a thread, in the real engine's sizes.

    Args:
        rtf: seconds that it takes to make a second of audio.
        speech_frames: length of every utterance, whatever its text; a request may lower it.
        num_slots: the number that it reports; it speaks every stream at once.
    """

    def __init__(self, rtf: float, *, speech_frames: int = 40, num_slots: int = 1):
        self.sample_rate, self.num_slots, self.max_frames = RATE, num_slots, speech_frames
        self.voices: list[str] = []
        self.default_voice, self.failure, self.reference_cache_hits = None, None, 0
        self.languages = supported_languages(["english"])
        self.files = SimpleNamespace(name="paced")
        self.mark = Marking()
        self.states: list[StreamState] = []
        self.real_time_factor = rtf
        self._next: deque[tuple[float, StreamState, int, int]] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stream(
        self,
        text: str | None,
        *,
        text_open: bool,
        chunk_frames: int = OPTIONS["chunk_frames"].default,
        first_chunk_frames: int = OPTIONS["first_chunk_frames"].default,
        max_frames: int | None = None,
        **_: Any,
    ) -> SpeechStream:
        """Start a request; of its options, only the numbers of frames have an effect."""
        request = SpeechOptions(
            chunk_frames=chunk_frames,
            first_chunk_frames=first_chunk_frames,
            max_frames=min(self.max_frames, max_frames or self.max_frames),
        )
        encoding = TextEncoding(request, None, lambda text: [], PacedText)
        intake = TextIntake(RequestText(), encoding, is_whole=not text_open)
        state = StreamState(request, intake, _nothing, _nothing, RATE)
        self.states.append(state)
        self._next.append((time.perf_counter(), state, 0, first_chunk_frames))
        return SpeechStream(state, self)

    def find_voice(self, voice: None, style: None = None) -> None:
        """Return None for every voice."""

    def close(self) -> None:
        """Stop the thread."""
        self._closed = True
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            now = time.perf_counter()
            for _ in range(len(self._next)):
                due, state, first, size = self._next.popleft()
                if due > now and not state.cancelled:
                    self._next.append((due, state, first, size))
                    continue
                size = 0 if state.cancelled else min(size, state.request.max_frames - first)
                self._put(state, first, size)
                if size:
                    due += size * FRAME_S * self.real_time_factor
                    larger = min(2 * size, state.request.chunk_frames)
                    self._next.append((due, state, first + size, larger))
            time.sleep(0.001)

    def _put(self, state: StreamState, first: int, size: int) -> None:
        samples = np.zeros(size * FRAME_SAMPLES, np.int16)
        reason = None if size else "cancelled" if state.cancelled else "eos"
        state.finish_reason = reason
        state.timings.setdefault("first_chunk", state.elapsed_ms())
        if size:
            samples[:_STAMP_SAMPLES] = np.array([time.perf_counter_ns()]).view(np.int16)
        state.outbox.put(reason or AudioChunk(samples, RATE, first, size, 0.0))


def _nothing() -> None:
    """Do nothing: the thread checks the streams every millisecond anyway."""
