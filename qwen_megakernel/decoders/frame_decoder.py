"""The base class of all decoders: it checks every call and counts each slot's text and frames.

A backend implements how a prompt runs, where text rows are stored and how frames are drawn. All
other methods of a decoder are in this class, so that no backend draws a frame before its text row
has arrived.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.decoders.embeddings import Embeddings
from qwen_megakernel.decoders.slots import DecoderSizes, SlotState, check_dtypes
from qwen_megakernel.errors import GenerationError, QwenTTSError, TextTooLong, UsageError
from qwen_megakernel.records import Prefill, StepResult
from qwen_megakernel.speech_options import Sampling

State = TypeVar("State", bound=SlotState)
Taps = dict[str, Tensor]  # raw logits, as `FrameDecoder.step` fills them


class FrameDecoder(ABC):
    """The talker and the code predictor with their slots, which do not influence each other.

    Raises:
        UsageError: a dtype of `sizes` is neither bfloat16 nor float32.
    """

    num_threads: int | None = None  # number of decoding threads, if the decoder has its own
    instruction_set: str | None = None  # of its native code, such as "avx2"; None: it has none
    # What a backend of Qwen3-TTS sets: its model, and what prompts are built from.
    config: ModelConfig
    embeddings: Embeddings

    def __init__(self, sizes: DecoderSizes):
        self.predictor_dtype = sizes.predictor_dtype or sizes.dtype
        check_dtypes(sizes.dtype, self.predictor_dtype)
        self.sizes = sizes
        self.num_slots, self.max_positions = sizes.num_slots, sizes.max_positions
        self.max_frames = sizes.most_frames
        self.device, self.dtype = sizes.device, sizes.dtype
        self._states: list[SlotState | None] = [None] * sizes.num_slots

    @property
    def is_asynchronous(self) -> bool:
        """Whether the device draws frames while the host does something else."""
        has_own_launch = type(self)._launch is not FrameDecoder._launch
        return has_own_launch and self.device.type == "cuda"

    # ---- what the engine calls ------------------------------------------------------------------

    @torch.inference_mode()
    def prefill(
        self,
        slot: int,
        prefill: Prefill,
        sampling: Sampling,
        *,
        seed: int,
        part: int,
        text_open: bool = False,
    ) -> None:
        """Start one part of an utterance in `slot`; it replaces any stream there.

        Args:
            prefill: the prompt; its keys, values and last hidden state stay in the slot.
            seed, part: together with frame and codebook, the address of the random numbers.
            text_open: more text rows will come. Until they do, frames that need them are not
                drawn; no frame gets the pad embedding.
        Raises:
            TextTooLong: the prompt, or its trailing text, has more rows than a slot holds.
            UsageError: the prompt does not fit the KV cache.
            GenerationError: the prompt failed. This stream is lost; other streams continue. A
                decoder that only enqueues the prompt reports this in the next `step` or `launch` of
                the slot.
        """
        num_positions = len(prefill.embeds)
        self._check_prompt(num_positions)
        state = self._states[slot] = self._new_state(slot, sampling, seed, part)
        try:
            self._run_prompt(slot, prefill.embeds, prefill.pad_embed)
        except GenerationError:
            self._lose([slot])
            raise
        state.position, state.text_open = num_positions, text_open
        self.add_text(slot, prefill.trailing_text)

    @torch.inference_mode()
    def add_text(self, slot: int, rows: Tensor) -> None:
        """Append text rows [n, hidden_size]; row k is added to the embedding of frame k.

        Raises:
            TextTooLong: the part would have more text rows than `max_frames`.
        """
        state = self._state(slot)
        num_rows = state.num_text_rows + len(rows)
        if num_rows > self.max_frames:
            raise TextTooLong(
                f"The text has {num_rows} rows; this engine draws at most {self.max_frames} frames "
                "for one part.",
                hint="Raise max_frames, or leave split on.",
            )
        if len(rows):
            self._write_text(slot, rows)
            state.num_text_rows = num_rows

    def close_text(self, slot: int) -> None:
        """Declare the text complete: frames past the written rows get the pad embedding."""
        self._state(slot).text_open = False

    def frames_ready(self, slot: int) -> int:
        """Return the number of frames that can be drawn now, limited by `max_frames` and the text.

        Frame k needs text row k - 1. While the text is open, the stream waits for its rows, because
        the pad embedding signals the end of the text to the model.
        """
        state = self._state(slot)
        ready = self.max_frames - state.frame
        if state.text_open:
            ready = min(ready, state.num_text_rows + 1 - state.frame)
        return ready

    @torch.inference_mode()
    def step(
        self,
        slots: Sequence[int],
        num_frames: int,
        forced: Tensor | None = None,
        taps: Taps | None = None,
    ) -> StepResult:
        """Draw up to `num_frames` frames in every slot of `slots`; fewer after `cancel`.

        Args:
            forced: [len(slots), num_frames, num_code_groups] integer codes; each stream continues
                with these instead of the drawn ones (teacher forcing), and a drawn EOS does not end
                it.
            taps: filled with the raw logits: "talker" [rows, frames, vocab_size] and "predictor"
                [rows, frames, groups - 1, vocab_size], float32; the logits of frames that were not
                drawn have no meaning. For tests and validation.
        Returns:
            The frames. Streams whose logits were not finite are lost and listed in `failures`; the
            other streams continue.
        Raises:
            UsageError: a slot is not ready or has no room for the frames, or a forced code is bad.
            KernelTimeout, GenerationError: a launch failed, or its logits were not finite, and no
                stream of `slots` is left. If some are left, `StepResult.failures` lists the others.
        """
        self._check_step(slots, num_frames)
        if forced is not None:
            self._check_forced(forced, len(slots), num_frames)
        if taps is not None:
            taps |= self._empty_taps(len(slots), num_frames)
        return self._step(slots, num_frames, forced, taps)

    @torch.inference_mode()
    def launch(self, slots: Sequence[int], num_frames: int) -> Callable[[], StepResult]:
        """Start a step of a few frames; an asynchronous decoder returns before they are drawn.

        Returns:
            A function that waits for the codes; call it before any other method of this decoder.
        Raises:
            The errors of `step`, here or from the returned function.
        """
        self._check_step(slots, num_frames)
        return self._launch(slots, num_frames)

    @abstractmethod
    def cancel(self) -> None:
        """End the running `step`, or else the next one, before it begins another frame.

        Any thread may call this at any time; it never waits. `step` returns the finished frames,
        perhaps none. No stream loses anything, and a later `step` continues. A caller that ends a
        stream first marks it (the loop reads the mark after `step`), then cancels.
        """

    # ---- what a backend implements --------------------------------------------------------------

    @abstractmethod
    def _run_prompt(self, slot: int, embeds: Tensor, pad_embed: Tensor) -> None:
        """Run a prompt from position 0 of a slot.

        Args:
            embeds: [num_positions, hidden_size].
            pad_embed: [hidden_size], added to a frame's embedding past the written text rows.
        """

    @abstractmethod
    def _write_text(self, slot: int, rows: Tensor) -> None:
        """Store text rows [n, hidden_size] after the slot's first `num_text_rows`."""

    @abstractmethod
    def _step(
        self, slots: Sequence[int], num_frames: int, forced: Tensor | None, taps: Taps | None
    ) -> StepResult:
        """Do what `step` does, with checked arguments, and advance the states of the slots.

        The step fills the tensors of `taps`, if there are any, which are those of `_empty_taps`.
        """

    def _launch(self, slots: Sequence[int], num_frames: int) -> Callable[[], StepResult]:
        """Do what `launch` does, with checked arguments."""
        result = self._step(slots, num_frames, None, None)
        return lambda: result

    def _new_state(self, slot: int, sampling: Sampling, seed: int, part: int) -> SlotState:
        """Return the state of a stream that begins in `slot`, and clear what the last one left."""
        return SlotState(sampling, seed, part)

    def _empty_taps(self, num_rows: int, num_frames: int) -> Taps:
        """Return tensors for the logits of a step, full of NaN until a frame fills its part."""
        talker, predictor = self.config.talker, self.config.predictor
        codes = (talker.num_code_groups - 1, predictor.vocab_size)
        shapes = {"talker": (talker.vocab_size,), "predictor": codes}
        return {
            name: torch.full((num_rows, num_frames, *shape), torch.nan, device=self.device)
            for name, shape in shapes.items()
        }

    # ---- states of slots ------------------------------------------------------------------------

    def _state(self, slot: int) -> SlotState:
        state = self._states[slot]
        if state is None:
            raise UsageError(f"Slot {slot} has no stream; call prefill first.")
        return state

    def _lose(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._states[slot] = None

    def _settled(self, slots: Sequence[int], result: StepResult) -> StepResult:
        """Lose the streams of a step that failed; raise the error of the first if none is left."""
        self._lose([slots[row] for row in result.failures])
        if len(result.failures) == len(slots):
            raise result.failures[0]
        return result

    def _check_prompt(self, num_positions: int) -> None:
        limit = self.max_positions - (self.sizes.max_frames or 0)
        if self.sizes.max_frames and num_positions > limit:
            raise TextTooLong(
                f"The prompt has {num_positions} positions; the limit is {limit}.",
                "Text in the prefill and reference frames count one position each.",
                "Use a shorter reference, or leave split on.",
            )
        if not 1 <= num_positions <= self.max_positions:
            raise UsageError(
                f"A prompt of {num_positions} positions does not fit a KV cache of "
                f"{self.max_positions} positions."
            )

    def _check_step(self, slots: Sequence[int], num_frames: int) -> None:
        if num_frames < 1 or len(set(slots)) != len(slots) or not slots:
            raise UsageError(f"Cannot step slots {list(slots)} by {num_frames} frames.")
        for slot in slots:
            state = self._state(slot)
            end = state.position + num_frames - (state.frame == 0)
            if end > self.max_positions:
                raise UsageError(
                    f"Slot {slot} is at position {state.position}; {num_frames} more frames do not "
                    f"fit its {self.max_positions} positions."
                )
            if num_frames > (ready := self.frames_ready(slot)):
                raise UsageError(f"Slot {slot} can draw {ready} frames now, not {num_frames}.")

    def _check_forced(self, forced: Tensor, num_rows: int, num_frames: int) -> None:
        groups = self.config.talker.num_code_groups
        needed = [num_rows, num_frames, groups]
        if list(forced.shape) != needed:
            raise UsageError(f"forced has shape {list(forced.shape)}; it must have {needed}.")
        sizes = [self.config.talker.vocab_size]
        sizes += [self.config.predictor.vocab_size] * (groups - 1)
        if bool((forced < 0).any()) or bool((forced.cpu() >= forced.new_tensor(sizes).cpu()).any()):
            raise UsageError(
                f"forced has a code outside the vocabularies, which have {sizes[0]} codes in group "
                f"0 and {sizes[-1]} in the others."
            )


class OneByOneDecoder(FrameDecoder, Generic[State]):
    """A decoder that draws the frames of one slot after another.

    Other streams therefore never change a bit of a stream.
    """

    num_code_groups: int  # the backend sets it
    _cancelled = False

    @abstractmethod
    def _frame(
        self, slot: int, forced: Tensor | None, taps: Taps | None
    ) -> Tensor | list[int] | None:
        """Draw one frame.

        Args:
            forced: [num_code_groups] codes to continue with, if any.
            taps: [vocab_size] and [groups - 1, vocab_size], which this frame's logits fill.
        Returns:
            [num_code_groups] drawn codes; None: EOS was drawn.
        """

    def cancel(self) -> None:
        self._cancelled = True

    def _state(self, slot: int) -> State:
        return cast(State, super()._state(slot))  # of the backend's `_new_state`

    def _step(
        self, slots: Sequence[int], num_frames: int, forced: Tensor | None, taps: Taps | None
    ) -> StepResult:
        codes = np.zeros((len(slots), num_frames, self.num_code_groups), dtype=np.int32)
        counts, ended = [0] * len(slots), [False] * len(slots)
        failures: dict[int, QwenTTSError] = {}
        for index in range(num_frames):
            if self._cancelled:
                break
            for row, slot in enumerate(slots):
                if ended[row] or row in failures:
                    continue
                given = None if forced is None else forced[row, index]
                at = taps and {name: logits[row, index] for name, logits in taps.items()}
                try:
                    frame = self._frame(slot, given, at)
                except GenerationError as error:
                    failures[row] = error
                    continue
                if frame is None:
                    ended[row] = True
                else:
                    codes[row, index] = frame
                    counts[row] += 1
                self._state(slot).advance(int(frame is not None), frame is None)
        self._cancelled = False
        return self._settled(slots, StepResult(codes, tuple(counts), tuple(ended), failures))


class BufferedDecoder(FrameDecoder):
    """A decoder whose slots are rows of tensors, allocated once."""

    # The subclass sets these; a slot is a row of each.
    _seen: Tensor  # [num_slots, ...] the code-0 tokens that were drawn
    _text: Tensor  # [num_slots, max_frames, hidden_size]
    _pad: Tensor  # [num_slots, hidden_size]

    def _new_state(self, slot: int, sampling: Sampling, seed: int, part: int) -> SlotState:
        self._seen[slot].zero_()
        return super()._new_state(slot, sampling, seed, part)

    def _write_text(self, slot: int, rows: Tensor) -> None:
        place = self._state(slot).num_text_rows
        self._text[slot, place : place + len(rows)] = rows
