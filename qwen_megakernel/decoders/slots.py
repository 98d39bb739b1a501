"""What the host knows of a decoder's slots, and what it refuses before the device hears of it.

The kernel's decoder and that of the CUDA graphs differ in how they run a prompt and a launch; all
else that a caller sees of them is here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.errors import UsageError
from qwen_megakernel.records import Sampling, StepResult


@dataclass(slots=True)
class SlotState:
    """One stream; its keys, values and codes are on the device."""

    sampling: Sampling
    seed: int
    part: int
    position: int = 0  # where the next talker step writes
    frame: int = 0  # the next one to draw
    num_text_rows: int = 0
    is_filled: bool = False


class SlotBook:
    """The slots of one decoder.

    Args:
        config: names the vocabularies that forced codes must be from.
        num_slots: streams that can be open at once.
        max_positions: prompt positions plus frames of one stream.
        max_text_rows: trailing text rows that may wait for their frame; they lie in a ring.
    """

    def __init__(self, config: ModelConfig, num_slots: int, max_positions: int, max_text_rows: int):
        self._config = config
        self._slots: list[SlotState | None] = [None] * num_slots
        self._max_positions, self._max_text_rows = max_positions, max_text_rows

    def __getitem__(self, slot: int) -> SlotState:
        state = self._slots[slot]
        if state is None:
            raise UsageError(f"Slot {slot} has no stream; call begin first.")
        return state

    def begin(self, slot: int, sampling: Sampling, seed: int, part: int) -> None:
        """Make `slot` as new."""
        self._slots[slot] = SlotState(sampling, seed, part)

    def fill(self, slot: int, num_positions: int) -> None:
        """A prompt goes into `slot`.

        Raises:
            UsageError: it was not begun, or the prompt is empty or too long.
        """
        state = self[slot]
        if not 1 <= num_positions <= self._max_positions:
            raise UsageError(
                f"A prompt of {num_positions} positions does not fit a KV cache of "
                f"{self._max_positions} positions."
            )
        state.position, state.is_filled = num_positions, True

    def add_text(self, slot: int, num_rows: int) -> list[tuple[int, int, int]]:
        """Make room in the ring for text rows.

        Returns:
            (place in the ring, first row, number of rows) of each run to be copied.
        Raises:
            UsageError: more rows would wait for their frame than the ring holds.
        """
        state, size = self[slot], self._max_text_rows
        # Frame f reads row f - 1, so rows before frame - 1 are spent.
        waiting = state.num_text_rows + num_rows - max(state.frame - 1, 0)
        if waiting > size:
            raise UsageError(
                f"{waiting} text rows would wait in slot {slot}; its ring holds {size}."
            )
        place = state.num_text_rows % size
        before_end = min(num_rows, size - place)
        state.num_text_rows += num_rows
        runs = [(place, 0, before_end), (0, before_end, num_rows - before_end)]
        return [run for run in runs if run[2]]

    def check_step(self, slots: Sequence[int], num_frames: int, forced: Tensor | None) -> None:
        """Raise UsageError unless every slot is ready for `num_frames` more frames."""
        if num_frames < 1 or len(set(slots)) != len(slots) or not slots:
            raise UsageError(f"Cannot step slots {list(slots)} by {num_frames} frames.")
        for slot in slots:
            state = self[slot]
            if not state.is_filled:
                raise UsageError(f"Slot {slot} has no prompt; call prefill first.")
            end = state.position + num_frames - (state.frame == 0)
            if end > self._max_positions:
                raise UsageError(
                    f"Slot {slot} is at position {state.position}; {num_frames} more frames do not "
                    f"fit its {self._max_positions} positions."
                )
        if forced is None:
            return
        groups = self._config.talker.num_code_groups
        if tuple(forced.shape) != (len(slots), num_frames, groups):
            raise UsageError(
                f"forced is {list(forced.shape)}; need {[len(slots), num_frames, groups]}."
            )
        sizes = [self._config.talker.vocab_size]
        sizes += [self._config.predictor.vocab_size] * (groups - 1)
        if bool((forced < 0).any()) or bool((forced.cpu() >= forced.new_tensor(sizes).cpu()).any()):
            raise UsageError(f"forced has a code outside the vocabularies {sizes[:2]}.")

    def advance(self, slot: int, num_frames: int, ended: bool) -> None:
        """Account for what a step drew; every frame but a stream's first, and a drawn EOS, was
        preceded by a talker step."""
        state = self[slot]
        num_drawn = num_frames + ended
        state.position += num_drawn - (num_drawn > 0 and state.frame == 0)
        state.frame += num_frames

    def lose(self, slots: Sequence[int]) -> None:
        """These streams cannot go on."""
        for slot in slots:
            self._slots[slot] = None


class SlotDecoder(ABC):
    """Talker and code predictor over `num_slots` streams in buffers that are allocated once.

    Args:
        config: of the model.
        num_slots: streams that can be open at once.
        max_positions: prompt positions plus frames of one stream.
        max_text_rows: trailing text rows that may wait for their frame; they lie in a ring.
        device, dtype: where, and in what precision, to compute; bfloat16 or float32.
    Raises:
        UsageError: another dtype.
    """

    # Set by the subclass; a slot is a row of each.
    _seen: Tensor  # [num_slots, ...] the code-0 tokens that were drawn
    _text: Tensor  # [num_slots, max_text_rows, hidden_size]
    _pad: Tensor  # [num_slots, hidden_size]

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_slots: int,
        max_positions: int,
        max_text_rows: int,
        device: torch.device,
        dtype: torch.dtype,
    ):
        if dtype not in (torch.float32, torch.bfloat16):
            raise UsageError(f"dtype is {dtype}; this decoder computes in bfloat16 or float32.")
        self.config, self.device, self.dtype = config, torch.device(device), dtype
        self.max_positions = max_positions
        self._book = SlotBook(config, num_slots, max_positions, max_text_rows)

    def begin(self, slot: int, sampling: Sampling, seed: int, part: int) -> None:
        """Make `slot` as new, for one part of an utterance."""
        self._book.begin(slot, sampling, seed, part)
        self._seen[slot].zero_()

    @torch.inference_mode()
    def prefill(self, slot: int, embeds: Tensor, pad_embed: Tensor) -> None:
        """Run the prompt: its keys and values, and the hidden state of its last position, stay.

        Args:
            embeds: [num_positions, hidden_size].
            pad_embed: [hidden_size], added to a frame's embedding past the written text rows.
        Raises:
            UsageError: the slot was not begun, or the prompt does not fit it.
            KernelTimeout: the launch failed; the stream is lost, others not.
        """
        self._book.fill(slot, len(embeds))
        self._pad[slot] = pad_embed
        self._run_prompt(slot, embeds)

    @torch.inference_mode()
    def write_text(self, slot: int, rows: Tensor) -> None:
        """Append [n, hidden_size] text rows; row k is added to the embedding of frame k.

        Raises:
            UsageError: more rows would wait for their frame than the ring holds.
        """
        for place, first, count in self._book.add_text(slot, len(rows)):
            self._text[slot, place : place + count] = rows[first : first + count]

    @torch.inference_mode()
    def step(
        self,
        slots: Sequence[int],
        num_frames: int,
        forced: Tensor | None = None,
        taps: dict[str, Tensor] | None = None,
    ) -> StepResult:
        """Decode up to `num_frames` frames of every slot in `slots`; fewer after `cancel`.

        Args:
            forced: [len(slots), num_frames, num_code_groups] codes to go on with, whatever is
                drawn (teacher forcing); a drawn EOS does not end a forced stream.
            taps: filled with the raw logits: "talker" [rows, frames, vocab_size] and "predictor"
                [rows, frames, groups - 1, vocab_size], float32. For tests and validation.
        Raises:
            UsageError: a slot is not ready or has no room for the frames, or a bad forced code.
            KernelTimeout, GenerationError: a launch failed, or its logits were not finite; its
                streams are lost, others not.
        """
        self._book.check_step(slots, num_frames, forced)
        return self._step(slots, num_frames, forced, taps)

    @torch.inference_mode()
    def launch(self, slots: Sequence[int], num_frames: int) -> Callable[[], StepResult]:
        """Start a step of at most four frames; on a GPU this returns before they are drawn.

        Returns:
            A function that waits for the codes, to be called before anything else of this decoder.
        Raises:
            As `step`; the function too.
        """
        self._book.check_step(slots, num_frames, None)
        return self._launch(slots, num_frames)

    @abstractmethod
    def cancel(self) -> None:
        """End the running `step`, else the next one, before it begins another frame.

        From any thread, at any time; never waits. No stream loses anything: `step` returns the
        frames that are whole, perhaps none, and a later `step` goes on from there.
        """

    @abstractmethod
    def _run_prompt(self, slot: int, embeds: Tensor) -> None:
        """Positions 0 .. of a slot."""

    @abstractmethod
    def _step(
        self,
        slots: Sequence[int],
        num_frames: int,
        forced: Tensor | None,
        taps: dict[str, Tensor] | None,
    ) -> StepResult:
        """`step` of checked arguments."""

    @abstractmethod
    def _launch(self, slots: Sequence[int], num_frames: int) -> Callable[[], StepResult]:
        """`launch` of checked arguments."""
