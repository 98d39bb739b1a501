"""What every decoder is made for, and the account of one of its slots."""

from dataclasses import dataclass

import torch

from qwen_megakernel.records import Sampling


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """How much a decoder holds, where, and in what precision it computes."""

    num_slots: int  # streams that can be open at once
    max_positions: int  # prompt positions plus frames of one stream
    max_text_rows: int  # trailing text rows that may wait for their frame
    device: torch.device
    dtype: torch.dtype  # of the talker, and of everything that is not said to be another
    max_frames: int | None = None  # of one part of an utterance; None: as many as positions
    # Of the code predictor's layers, heads and projection; None: dtype. The tables of codes, which
    # both parts read, keep dtype.
    predictor_dtype: torch.dtype | None = None

    @property
    def max_prompt(self) -> int:
        """Positions that a prompt may have."""
        return self.max_positions - (self.max_frames or 0)


@dataclass(slots=True)
class SlotState:
    """The account of one stream; its keys, values and codes are the backend's."""

    sampling: Sampling
    seed: int
    part: int
    text_open: bool = True  # more text rows will come
    num_text_rows: int = 0
    position: int = 0  # where the next talker step writes; 0: the prompt has not run
    frame: int = 0  # the next one to draw

    def advance(self, num_frames: int, ended: bool) -> None:
        """Count what a step drew.

        Every frame but a stream's first, and a drawn EOS, was preceded by a talker step.
        """
        num_drawn = num_frames + ended
        self.position += num_drawn - (num_drawn > 0 and self.frame == 0)
        self.frame += num_frames
