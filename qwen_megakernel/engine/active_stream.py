"""What the engine's thread knows of a stream that is being spoken."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qwen_megakernel.engine.runaway_guard import RunawayGuard
from qwen_megakernel.engine.stream import StreamState, TextPart
from qwen_megakernel.records import FinishReason


@dataclass(slots=True, eq=False)
class Slot:
    """One stream being spoken: what only the worker thread knows about it."""

    index: int
    state: StreamState
    vocoder: Any  # its state in the vocoder
    lookahead: int  # frames the vocoder must see behind those it turns into audio
    chunk_frames: int  # of the chunk being filled; doubles up to the request's
    part: TextPart | None = None  # None: between parts
    part_open: bool = False  # its text goes on
    guard: RunawayGuard | None = None
    pending: list[np.ndarray] = field(default_factory=list)  # frames not yet turned into audio
    part_end: FinishReason | None = None  # the part is over; pending frames are its last
    finish: FinishReason = "eos"  # the first reason that was not eos, over all parts

    @property
    def num_frames(self) -> int:
        """Frames of this utterance so far, delivered or pending."""
        return len(self.state.codes) + len(self.pending)

    @property
    def frames_until_due(self) -> int:
        """Frames missing until the next chunk can leave."""
        return 0 if self.part_end else self.chunk_frames + self.lookahead - len(self.pending)

    @property
    def num_ready(self) -> int:
        """Pending frames that can be turned into audio."""
        return len(self.pending) - (0 if self.part_end else self.lookahead)
