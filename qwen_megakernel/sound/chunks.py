"""The chunks of an engine, as their reader hears them."""

import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from qwen_megakernel.audio import FULL_SCALE, to_int16
from qwen_megakernel.records import AudioChunk
from qwen_megakernel.sound.chain import SoundChain


class Progress(NamedTuple):
    """How much of a stream its reader has been given to hear."""

    made_s: float = 0.0  # of the engine's samples that the chain has taken, in seconds
    heard_s: float = 0.0  # of what the reader was given for them, in seconds
    begun: float | None = None  # time.perf_counter() of its first sample; None: nothing is heard


class HeardChunks:
    """Takes the chunks of a stream through its chain, in the reader's thread.

    A chunk of which nothing is heard yet is held, and the next one stands for its frames, too. The
    last chunk has the end of the sound.

    Args:
        chain: of the stream.
    """

    def __init__(self, chain: SoundChain) -> None:
        self._chain = chain
        # Replaced as a whole by the reader's thread, so any other thread sees one state of it.
        self.progress = Progress()
        self._latest: AudioChunk | None = None  # with the frames that were held before it
        self._is_held = False  # no chunk has stood for the frames of `_latest` yet
        self._num_samples = 0  # heard so far
        self._is_over = False

    @property
    def sample_rate(self) -> int:
        """Samples per second of what is heard."""
        return self._chain.sample_rate

    def hear(self, chunk: AudioChunk) -> AudioChunk | None:
        """Return what is heard with a chunk of the engine; None if that is nothing yet."""
        samples = self._chain.push(chunk.samples.astype(np.float32) / FULL_SCALE)
        made_s = chunk.end_s
        if self._latest and self._is_held:
            num_frames = self._latest.num_frames + chunk.num_frames
            chunk = replace(chunk, frame_index=self._latest.frame_index, num_frames=num_frames)
        self._latest, self._is_over = chunk, chunk.is_last
        if chunk.is_last:
            samples = np.concatenate([samples, self._chain.finish()])
        self._is_held = not (len(samples) or chunk.is_last)
        heard = None if self._is_held else self._heard(chunk, samples)
        begun = self.progress.begun or (time.perf_counter() if self._num_samples else None)
        self.progress = Progress(made_s, self._num_samples / self.sample_rate, begun)
        return heard

    def rest(self) -> AudioChunk | None:
        """Return what is left to hear of a speech that broke off, once; None if that is nothing."""
        chunk, was_over, self._is_over = self._latest, self._is_over, True
        if chunk is None or was_over:
            return None
        samples = self._chain.finish()
        if not self._is_held:  # its frames have been handed out
            end = chunk.frame_index + chunk.num_frames
            chunk = replace(chunk, frame_index=end, num_frames=0)
        return self._heard(chunk, samples) if len(samples) else None

    def _heard(self, chunk: AudioChunk, samples: np.ndarray) -> AudioChunk:
        rate, start_s = self.sample_rate, self._num_samples / self.sample_rate
        self._num_samples += len(samples)
        return replace(chunk, samples=to_int16(samples), sample_rate=rate, start_s=start_s)
