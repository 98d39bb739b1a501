"""The sizes of a decoder, and the state of one of its slots."""

from dataclasses import asdict, dataclass

import torch

from qwen_megakernel.errors import UsageError
from qwen_megakernel.native.structs import SamplingParams
from qwen_megakernel.speech_options import Sampling


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """The sizes, the device and the precision of a decoder."""

    num_slots: int  # streams that can be open at once
    max_positions: int  # prompt positions plus frames of one stream
    device: torch.device
    dtype: torch.dtype  # for the talker, and for all parts without a dtype of their own
    max_frames: int | None = None  # for each part of an utterance; None: as many as positions
    # The dtype of the code predictor's layers, heads and projection; None: `dtype`. The tables of
    # codes, which both parts read, have `dtype`.
    predictor_dtype: torch.dtype | None = None

    @property
    def most_frames(self) -> int:
        """The largest number of frames of a part, and of its text rows: one for each frame."""
        return self.max_frames or self.max_positions


def check_dtypes(*dtypes: torch.dtype) -> None:
    for dtype in dtypes:
        if dtype not in (torch.float32, torch.bfloat16):
            raise UsageError(f"dtype is {dtype}; this decoder computes in bfloat16 or float32.")


@dataclass(slots=True)
class SlotState:
    """The counts of one stream; the backend keeps its keys, values and codes."""

    sampling: Sampling
    seed: int
    part: int
    text_open: bool = True  # more text rows will come
    num_text_rows: int = 0
    position: int = 0  # the next talker step writes here; 0: the prompt has not run
    frame: int = 0  # index of the next frame

    @property
    def sampling_params(self) -> dict[str, SamplingParams]:
        """The members "talker" and "predictor" of a C struct."""
        return {of: SamplingParams(**values) for of, values in asdict(self.sampling).items()}

    def advance(self, num_frames: int, ended: bool) -> None:
        """Count the frames that a step drew, and whether it drew EOS after them.

        A talker step precedes every draw of code 0 except a stream's first, a drawn EOS included.
        """
        num_drawn = num_frames + ended
        self.position += num_drawn - (num_drawn > 0 and self.frame == 0)
        self.frame += num_frames
