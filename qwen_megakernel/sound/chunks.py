"""Turns the engine's chunks into the chunks that a stream's reader receives."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from qwen_megakernel.audio import to_float32, to_int16
from qwen_megakernel.marking import MarkKey
from qwen_megakernel.records import AudioChunk, Manner
from qwen_megakernel.sound.chain import Chain, end_part, finish, new_chain, push
from qwen_megakernel.sound.watermark import Watermark
from qwen_megakernel.speech_options import SoundOptions


class HeardChunks:
    """Applies a stream's chain to its chunks, in the reader's thread.

    If the chain holds back all samples of a chunk, the reader gets no chunk, and the next chunk
    counts its frames, too. A pause is a separate chunk.

    Args:
        chain: the chain for the beginning of the stream.
        sample_rate: the sample rate of the returned chunks, in Hz.
        new_chain: creates the chain for a part after a pause, or with another speed or volume, from
            its manner, `is_first` and `is_after_pause`. None: the stream has no such parts.
        mark: the key of the watermark, the last step, which goes on from part to part; None: no
            watermark.
    """

    def __init__(
        self,
        chain: Chain,
        sample_rate: int,
        new_chain: Callable[..., Chain] | None = None,
        mark: MarkKey | None = None,
    ) -> None:
        self.sample_rate = sample_rate
        self._chain, self._new_chain = chain, new_chain
        self._watermark = Watermark(mark, sample_rate) if mark else None
        # Seconds of the engine's samples and pauses that were processed, seconds of samples that
        # the reader received for them, and perf_counter() at the first of these. The reader's
        # thread replaces all three at once, so other threads see a consistent state.
        self._progress: tuple[float, float, float | None] = 0.0, 0.0, None
        # The latest chunk of the engine, with the frames that the reader has not heard of yet.
        self._unheard: AudioChunk | None = None
        self._num_samples = 0  # samples that were returned so far
        self._heard_as: tuple[float, float] = 1.0, 0.0  # speed and volume of the chain's part
        self._is_after_pause = False  # whether no sound has followed the latest pause
        self._has_ended = False  # whether `_chain` has ended, so that the next sound needs another

    @property
    def has_parts(self) -> bool:
        """Whether the parts of the text have chains of their own."""
        return self._new_chain is not None

    def hear(self, chunk: AudioChunk) -> list[AudioChunk]:
        """Process a chunk of the engine, and return the chunks for the reader, perhaps none."""
        heard = [*self._turn(chunk), *self._take(chunk)]
        begun = self._progress[2] or (time.perf_counter() if self._num_samples else None)
        made_s = chunk.end_s + chunk.pause_s
        self._progress = made_s, self._num_samples / self.sample_rate, begun
        return heard

    def buffered_s(self, delivered_s: float, speed: float) -> float:
        """Return for how many seconds the reader can go on playing; -inf if it has nothing to play.

        Silence that the chain removes or holds back does not count. Chunks that the reader has not
        taken yet count in full. Any thread may call this, with the seconds of samples and pauses
        that the engine has delivered, and with the request's speed.
        """
        made_s, heard_s, begun = self._progress
        untaken_s = (delivered_s - made_s) / speed
        if begun is None:
            return untaken_s or -math.inf
        return heard_s + untaken_s - (time.perf_counter() - begun)

    def _take(self, chunk: AudioChunk) -> list[AudioChunk]:
        """Apply the chain to a chunk."""
        if chunk.pause_s:
            silence = np.zeros(round(chunk.pause_s * self.sample_rate), np.float32)
            return [self._heard(chunk, silence)]
        samples = np.empty(0, np.float32)
        if not self._has_ended:
            samples = push(self._chain, to_float32(chunk.samples))
        if (held := self._unheard) and held.num_frames:
            first, num_frames = held.frame_index, held.num_frames + chunk.num_frames
            drifts = held.drifts + chunk.drifts
            chunk = replace(chunk, frame_index=first, num_frames=num_frames, drifts=drifts)
        return list(self._with_frames(chunk, samples))

    def rest(self) -> AudioChunk | None:
        """Return the end of the sound, once, after the stream has ended; None if it has none."""
        if self._unheard is None or self._has_ended:
            return None
        self._has_ended = True
        return next(self._with_frames(self._unheard, finish(self._chain)), None)

    def _turn(self, chunk: AudioChunk) -> Iterator[AudioChunk]:
        """End the chain at a pause or a change of manner, and begin the next one after it."""
        if self._new_chain is None:
            return
        heard_as = chunk.manner.speed, chunk.manner.volume
        is_other = bool(chunk.num_frames) and heard_as != self._heard_as
        if (chunk.pause_s or is_other) and not self._has_ended:
            if self._unheard:
                rest = end_part(self._chain, is_before_pause=bool(chunk.pause_s))
                yield from self._with_frames(self._unheard, rest)
            self._has_ended = True
        self._is_after_pause = self._is_after_pause or bool(chunk.pause_s)
        if chunk.num_frames and self._has_ended:
            self._chain = self._new_chain(
                chunk.manner, is_first=self._unheard is None, is_after_pause=self._is_after_pause
            )
            self._heard_as, self._has_ended, self._is_after_pause = heard_as, False, False

    def _with_frames(self, chunk: AudioChunk, samples: np.ndarray) -> Iterator[AudioChunk]:
        """Yield samples with the unheard frames; without samples the frames stay unheard."""
        self._unheard = chunk
        if len(samples):
            end = chunk.frame_index + chunk.num_frames
            self._unheard = replace(chunk, frame_index=end, num_frames=0, drifts=())
            yield self._heard(chunk, samples)

    def _heard(self, chunk: AudioChunk, samples: np.ndarray) -> AudioChunk:
        rate, start_s = self.sample_rate, self._num_samples / self.sample_rate
        self._num_samples += len(samples)
        if self._watermark:
            samples = self._watermark.push(samples)
        return replace(chunk, samples=to_int16(samples), sample_rate=rate, start_s=start_s)


def new_chunks(
    options: SoundOptions,
    sample_rate: int,
    high_pass: float | None,
    mark: MarkKey | None = None,
    *,
    has_parts: bool,
) -> HeardChunks | None:
    """Return the object that applies a stream's chain; None if its samples stay as they are.

    With `has_parts`, parts of the text may follow a pause, or have a manner of their own.
    """

    def chain_of(manner: Manner, *, is_first: bool, is_after_pause: bool) -> Chain:
        leading = 0.0 if is_after_pause else options.leading_silence if is_first else None
        own = replace(manner.sound(options), leading_silence=leading)
        return new_chain(own, sample_rate, high_pass, may_pause=True)

    chain = new_chain(options, sample_rate, high_pass, may_pause=has_parts)
    if not chain and not mark:
        return None
    rate = options.sample_rate or sample_rate
    return HeardChunks(chain, rate, chain_of if has_parts else None, mark)
