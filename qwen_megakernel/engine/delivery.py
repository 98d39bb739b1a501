"""From drawn frames to their readers: the vocoder is started, and waited for when it suits.

A chunk is started in one turn of the step loop and may be delivered in the next: on a GPU the
frames behind it are being drawn meanwhile.
"""

import time
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from qwen_megakernel.engine.slots import ActiveStream, Phase, SlotTable
from qwen_megakernel.engine.stages import FrameVocoder, StageTimes
from qwen_megakernel.gpu.cuda_graphs import HostCopy


@dataclass(frozen=True, slots=True)
class Chunk:
    """Frames of some streams on their way through the vocoder, all of the same number."""

    streams: list[ActiveStream]
    codes: list[list[np.ndarray]]  # of each stream, [num_code_groups] a frame
    samples: HostCopy  # [num_streams, num_samples] float32
    spent_ms: float  # on starting it


class ChunkDelivery:
    """Turns pending frames into chunks and hands them over. Used by the worker thread alone.

    Args:
        vocoder: starts the work; it returns before a GPU is done.
        table: the streams, and what becomes of one that fails.
        spent: where the vocoder's time is added.
    """

    def __init__(self, vocoder: FrameVocoder, table: SlotTable, spent: StageTimes):
        self._vocoder, self._table, self._spent = vocoder, table, spent
        self._under_way: list[Chunk] = []

    @property
    def is_under_way(self) -> bool:
        """Whether a chunk has been started that is not delivered yet."""
        return bool(self._under_way)

    def start_vocoder(self) -> None:
        """Start the vocoder on due frames, streams of equal chunk length in one batch."""

        def length(stream: ActiveStream) -> tuple[int, int]:
            return stream.num_ready, len(stream.pending)

        due = [stream for stream in self._table.active() if stream.frames_until_due <= 0]
        due.sort(key=length)
        for (num_ready, _), group in groupby(due, key=length):
            streams = list(group)
            if num_ready:
                with self._table.ending_on_error(streams):
                    self._start(streams, num_ready)
                continue
            for stream in streams:
                if stream.phase is Phase.DRAINING:
                    self._table.end_part(stream)

    def _start(self, streams: list[ActiveStream], num_ready: int) -> None:
        started = time.perf_counter()
        codes = torch.from_numpy(np.stack([np.stack(stream.pending) for stream in streams]))
        ahead = [codes[:, num_ready:]] if self._vocoder.lookahead else []
        states = [stream.vocoder for stream in streams]
        samples = HostCopy(self._vocoder.step(codes[:, :num_ready], states, *ahead))
        spent = self._spent.add("vocoder", started)
        taken = [stream.take_chunk() for stream in streams]
        self._under_way.append(Chunk(streams, taken, samples, spent))

    def deliver(self) -> None:
        """Wait for the chunks that are on their way and deliver them."""
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
            timings = stream.state.timings
            timings["vocoder"] = timings.get("vocoder", 0.0) + spent
            # Samples that are no numbers are their own stream's fault alone.
            with self._table.ending_on_error([stream]):
                stream.deliver(codes, samples)
