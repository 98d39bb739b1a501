"""Turns drawn frames into chunks: runs the vocoder for the most urgent streams, and delivers.

On a GPU a chunk is started in one turn of the step loop and delivered in the next, while the
following frames are being drawn. On a CPU, decoder and vocoder share the cores, so each chunk, the
most urgent first, is delivered before the next one is begun.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.engine.slots import SlotTable
from qwen_megakernel.engine.stages import Stages, add_time
from qwen_megakernel.engine.stream_state import Phase, StreamState
from qwen_megakernel.gpu.cuda_graphs import download

# A further stream costs the decoder little, because streams share the weights that are read, but
# costs the vocoder as much as the first. While a stream has less than `LOW_BUFFER_S` left to play,
# the chunks of streams with more than `HIGH_BUFFER_S` wait: a chunk of ten frames is 0.8 s.
LOW_BUFFER_S, HIGH_BUFFER_S = 0.5, 2.0


class ChunkDelivery:
    """Turns pending frames into chunks and delivers them. Only the worker thread uses it.

    Args:
        table: holds the streams, and ends those that fail.
        spent_ms: milliseconds of each stage's work, to which the vocoder's are added.
    """

    def __init__(self, stages: Stages, table: SlotTable, spent_ms: dict[str, float]) -> None:
        self._stages, self._table, self._spent_ms = stages, table, spent_ms
        self.under_way: list[Callable[[], None]] = []  # each delivers chunks that were started

    def start_vocoder(self, drawing: Sequence[StreamState]) -> bool:
        """Start the vocoder on due frames; returns whether chunks of streams far ahead were left.

        Streams of equal chunk length share a batch.

        Args:
            drawing: the streams with frames being drawn; the reader of one of them may be about to
                run out of audio.
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
                if not self._stages.is_asynchronous:
                    self.deliver()
                continue
            for stream in streams:
                if stream.phase is Phase.DRAINING:
                    self._table.end_part(stream)
        return bool(deferred)

    def _start(self, streams: list[StreamState], num_ready: int) -> None:
        started = time.perf_counter()
        codes = torch.from_numpy(np.stack([np.stack(stream.pending) for stream in streams]))
        ahead = [codes[:, num_ready:]] if self._stages.vocoder.lookahead else []
        states = [stream.vocoder for stream in streams]
        wait = download(self._stages.vocoder.step(codes[:, :num_ready], states, *ahead))
        spent = add_time(self._spent_ms, "vocoder", started)
        taken = [stream.take_chunk() for stream in streams]
        self.under_way.append(partial(self._deliver, streams, taken, wait, spent))

    def deliver(self) -> None:
        """Wait for the chunks that have been started, and deliver them."""
        under_way, self.under_way = self.under_way, []
        for deliver in under_way:
            deliver()

    def _deliver(
        self,
        streams: Sequence[StreamState],
        taken: Sequence[list[np.ndarray]],
        wait: Callable[[], Tensor],
        spent: float,
    ) -> None:
        """Deliver a chunk of equally many frames of each stream.

        Args:
            taken: for each stream, [num_code_groups] for each frame.
            wait: returns the samples, [num_streams, num_samples] float32.
            spent: milliseconds that starting the vocoder took.
        """
        with self._table.ending_on_error(streams):
            started = time.perf_counter()
            pcm = wait().numpy()
            spent += add_time(self._spent_ms, "vocoder", started)
            for stream, codes, samples in zip(streams, taken, pcm, strict=True):
                if stream.is_over:
                    continue
                timings = stream.timings
                timings["vocoder"] = timings.get("vocoder", 0.0) + spent
                # Samples that are not numbers end only their own stream.
                with self._table.ending_on_error([stream]):
                    stream.deliver_frames(codes, samples)
        for stream in streams:
            if stream.phase is Phase.DRAINING:
                self._table.end_part(stream)
