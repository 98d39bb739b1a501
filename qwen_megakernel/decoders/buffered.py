"""The base class of the decoders whose slots are rows of tensors: the kernel and the graphs."""

from torch import Tensor

from qwen_megakernel.decoders.frame_decoder import FrameDecoder
from qwen_megakernel.decoders.slots import SlotState
from qwen_megakernel.speech_options import Sampling


class BufferedDecoder(FrameDecoder):
    """A decoder that allocates its buffers once; a slot stores its text rows in a ring."""

    # The subclass sets these; a slot is a row of each.
    _seen: Tensor  # [num_slots, ...] the code-0 tokens that were drawn
    _text: Tensor  # [num_slots, max_text_rows, hidden_size]
    _pad: Tensor  # [num_slots, hidden_size]

    def _new_state(self, slot: int, sampling: Sampling, seed: int, part: int) -> SlotState:
        self._seen[slot].zero_()
        return super()._new_state(slot, sampling, seed, part)

    def _write_text(self, slot: int, rows: Tensor) -> None:
        size = self.sizes.max_text_rows
        place = self._state(slot).num_text_rows % size
        before_end = min(len(rows), size - place)
        self._text[slot, place : place + before_end] = rows[:before_end]
        if before_end < len(rows):
            self._text[slot, : len(rows) - before_end] = rows[before_end:]
