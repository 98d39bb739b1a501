"""Turns drawn frames into chunks: runs the vocoder for the most urgent streams, and delivers.

On a GPU a chunk is started in one turn of the step loop and delivered in the next, while the
following frames are being drawn. On a CPU, decoder and vocoder share the cores, so each chunk, the
most urgent first, is delivered before the next one is begun.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from qwen_megakernel.engine.slots import SlotTable
from qwen_megakernel.engine.stages import FrameVocoder, StageTimes
from qwen_megakernel.engine.stream_state import Phase, StreamState
from qwen_megakernel.gpu.cuda_graphs import HostCopy

# A further stream costs the decoder little, because streams share the weights that are read, but
# costs the vocoder as much as the first. While a stream has less than `LOW_BUFFER_S` left to play,
# the chunks of streams with more than `HIGH_BUFFER_S` wait: a chunk of ten frames is 0.8 s.
LOW_BUFFER_S, HIGH_BUFFER_S = 0.5, 2.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Frames that the vocoder turns into audio: equally many of each stream."""

    streams: list[StreamState]
    codes: list[list[np.ndarray]]  # for each stream, [num_code_groups] for each frame
    samples: HostCopy  # [num_streams, num_samples] float32
    spent_ms: float  # time that starting the vocoder took


class ChunkDelivery:
    """Turns pending frames into chunks and delivers them. Only the worker thread uses it.

    Args:
        vocoder: turns frames into samples.
        table: holds the streams, and ends those that fail.
        spent: collects the vocoder's time.
        is_asynchronous: the vocoder returns before the device is done.
    """

    def __init__(
        self, vocoder: FrameVocoder, table: SlotTable, spent: StageTimes, *, is_asynchronous: bool
    ):
        self._vocoder, self._table, self._spent = vocoder, table, spent
        self._is_asynchronous = is_asynchronous
        self._under_way: list[Chunk] = []

    @property
    def is_under_way(self) -> bool:
        """Whether a chunk has been started and not yet delivered."""
        return bool(self._under_way)

    def start_vocoder(self, drawing: Sequence[StreamState]) -> bool:
        """Start the vocoder on due frames; streams of equal chunk length share a batch.

        Args:
            drawing: the streams with frames being drawn; the reader of one of them may be about to
                run out of audio.
        Returns:
            Whether chunks of streams that are far ahead were left for a later turn.
        """
        due = [stream for stream in self._table.active() if stream.frames_until_due <= 0]
        buffered = {stream: stream.buffered_s() for stream in {*due, *drawing}}
        deferred: list[StreamState] = []
        if min(buffered.values(), default=math.inf) < LOW_BUFFER_S:
            deferred = [stream for stream in due if buffered[stream] > HIGH_BUFFER_S]
        batches: dict[tuple[int, int], list[StreamState]] = {}
        for stream in sorted(due, key=buffered.__getitem__):
            if stream not in deferred:
                length = stream.num_ready, len(stream.pending)
                batches.setdefault(length, []).append(stream)
        for (num_ready, _), streams in batches.items():
            if num_ready:
                with self._table.ending_on_error(streams):
                    self._start(streams, num_ready)
                if not self._is_asynchronous:
                    self.deliver()
                continue
            for stream in streams:
                if stream.phase is Phase.DRAINING:
                    self._table.end_part(stream)
        return bool(deferred)

    def _start(self, streams: list[StreamState], num_ready: int) -> None:
        started = time.perf_counter()
        codes = torch.from_numpy(np.stack([np.stack(stream.pending) for stream in streams]))
        ahead = [codes[:, num_ready:]] if self._vocoder.lookahead else []
        states = [stream.vocoder for stream in streams]
        samples = HostCopy(self._vocoder.step(codes[:, :num_ready], states, *ahead))
        spent = self._spent.add("vocoder", started)
        taken = [stream.take_chunk() for stream in streams]
        self._under_way.append(Chunk(streams, taken, samples, spent))

    def deliver(self) -> None:
        """Wait for the chunks that have been started, and deliver them."""
        chunks, self._under_way = self._under_way, []
        for chunk in chunks:
            with self._table.ending_on_error(chunk.streams):
                self._deliver(chunk)
            for stream in chunk.streams:
                if stream.phase is Phase.DRAINING:
                    self._table.end_part(stream)

    def _deliver(self, chunk: Chunk) -> None:
        started = time.perf_counter()
        pcm = chunk.samples.wait().numpy()
        spent = chunk.spent_ms + self._spent.add("vocoder", started)
        for stream, codes, samples in zip(chunk.streams, chunk.codes, pcm, strict=True):
            if stream.is_over:
                continue
            timings = stream.timings
            timings["vocoder"] = timings.get("vocoder", 0.0) + spent
            # Samples that are not numbers end only their own stream.
            with self._table.ending_on_error([stream]):
                stream.deliver_frames(codes, samples)
