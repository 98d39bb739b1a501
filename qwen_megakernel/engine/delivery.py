"""From drawn frames to their readers: the vocoder is started, and waited for when it suits.

A chunk is started in one turn of the step loop and may be delivered in the next: on a GPU the
frames behind it are being drawn meanwhile.
"""

import time
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from qwen_megakernel.audio import to_int16
from qwen_megakernel.engine.slots import ActiveStream, SlotTable
from qwen_megakernel.engine.stages import FrameVocoder, StageTimes
from qwen_megakernel.gpu.cuda_graphs import HostCopy


@dataclass(frozen=True, slots=True)
class Chunk:
    """Frames of some slots on their way through the vocoder, all of the same number."""

    slots: list[ActiveStream]
    codes: list[list[np.ndarray]]  # by slot
    samples: HostCopy  # [num_slots, num_samples] float32
    spent_ms: float  # on starting it


class ChunkDelivery:
    """Turns pending frames into chunks and hands them over. Used by the worker thread alone.

    Args:
        vocoder: starts the work; it returns before a GPU is done.
        table: whose slots these are, and what becomes of a stream that fails.
        spent: where the vocoder's time is added.
    """

    def __init__(self, vocoder: FrameVocoder, table: SlotTable, spent: StageTimes):
        self._vocoder, self._table, self._spent = vocoder, table, spent
        self._under_way: list[Chunk] = []

    @property
    def is_under_way(self) -> bool:
        """Whether a chunk has been started that is not delivered yet."""
        return bool(self._under_way)

    def start_due(self) -> None:
        """Start the vocoder on due frames, slots of equal chunk length in one batch."""

        def length(slot: ActiveStream) -> tuple[int, int]:
            return slot.num_ready, len(slot.pending)

        due = [slot for slot in self._table.active() if slot.frames_until_due <= 0]
        due.sort(key=length)
        for (num_ready, _), group in groupby(due, key=length):
            slots = list(group)
            if num_ready:
                self._table.protect(slots, self._start, slots, num_ready)
                continue
            for slot in slots:
                if slot.part_end:
                    self._table.end_part(slot)

    def _start(self, slots: list[ActiveStream], num_ready: int) -> None:
        started = time.perf_counter()
        codes = torch.from_numpy(np.stack([np.stack(slot.pending) for slot in slots]))
        ahead = [codes[:, num_ready:]] if self._vocoder.lookahead else []
        states = [slot.vocoder for slot in slots]
        samples = HostCopy(self._vocoder.step(codes[:, :num_ready], states, *ahead))
        codes_by_slot = [slot.pending[:num_ready] for slot in slots]
        spent = self._spent.add("vocoder", started)
        self._under_way.append(Chunk(slots, codes_by_slot, samples, spent))
        for slot in slots:
            del slot.pending[:num_ready]
            slot.chunk_frames = min(2 * slot.chunk_frames, slot.state.request.chunk_frames)

    def hand_over(self) -> None:
        """Wait for the chunks that are on their way and deliver them."""
        chunks, self._under_way = self._under_way, []
        for chunk in chunks:
            self._table.protect(chunk.slots, self._deliver, chunk)
            for slot in chunk.slots:
                if slot.part_end and self._table.is_alive(slot):
                    self._table.end_part(slot)

    def _deliver(self, chunk: Chunk) -> None:
        started = time.perf_counter()
        pcm = chunk.samples.wait().numpy()
        spent = chunk.spent_ms + self._spent.add("vocoder", started)
        for slot, codes, samples in zip(chunk.slots, chunk.codes, pcm, strict=True):
            # Samples that are no numbers are their own stream's fault alone.
            self._table.protect([slot], self._deliver_to, slot, codes, samples, spent)

    def _deliver_to(
        self, slot: ActiveStream, codes: list[np.ndarray], samples: np.ndarray, spent: float
    ) -> None:
        if not self._table.is_alive(slot):
            return
        timings = slot.state.timings
        timings["vocoder"] = timings.get("vocoder", 0.0) + spent
        frames = samples.reshape(len(codes), -1)
        for index, frame in enumerate(frames):
            reason = slot.guard.check_audio(frame)
            if reason:
                slot.part_end, frames = reason, frames[:index]
                slot.pending.clear()
                break
        self._send(slot, codes[: len(frames)], frames)

    def _send(self, slot: ActiveStream, codes: list[np.ndarray], frames: np.ndarray) -> None:
        """Deliver [num_frames, samples_per_frame] audio of `codes`."""
        state = slot.state
        first = len(state.codes)
        state.codes.extend(codes)
        if len(frames):
            state.timings.setdefault("first_chunk", state.elapsed_ms())
            self._table.put(state, to_int16(frames.reshape(-1)), first, len(frames))
