"""The decoder on the CUDA kernel, or on the kernel's own source emulated on a CPU.

Python owns every buffer; the library allocates nothing. Every tensor is checked once, before its
address crosses the border (kernel_library.py).
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel import build_tts
from qwen_megakernel.checkpoint import Checkpoint
from qwen_megakernel.config import StackConfig
from qwen_megakernel.errors import (
    ArchError,
    GenerationError,
    KernelTimeout,
    NoGPUError,
    UsageError,
)
from qwen_megakernel.kernel_buffers import KernelBuffers
from qwen_megakernel.kernel_library import (
    MAX_STREAMS,
    Control,
    ForwardParams,
    KernelLibrary,
    SamplingParams,
    Stack,
    StepParams,
    Stream,
    check_tensor,
)
from qwen_megakernel.utterance import Sampling, StepResult

BARRIER_TIMEOUT_SECONDS = 2.0
# LaunchStatus of csrc/tts_kernel.h.
STATUS_TIMEOUT, STATUS_CANCELLED, STATUS_BAD_LOGITS = 1, 2, 3


def check_device(device: torch.device) -> None:
    """Raise unless `device` can run the kernel and the kernel can be built for it.

    Raises:
        NoGPUError, ArchError, BuildError: what is missing, and the remedy.
    """
    if not torch.cuda.is_available():
        raise NoGPUError(
            f"--backend kernel needs an NVIDIA GPU; torch sees none (torch {torch.__version__}).",
            "Without the flag the CPU path is used.",
            "python demo_pipeline.py --backend torch ...",
        )
    name = torch.cuda.get_device_name(device)
    arch = build_tts.arch_of(torch.cuda.get_device_capability(device), name)
    built_for = torch.cuda.get_arch_list()
    if not any(arch[3:5] == each.split("_")[1][:2] for each in built_for):
        raise ArchError(
            f"{name} is {arch}; torch {torch.__version__} was built for {', '.join(built_for)}.",
            cure='pip install "torch>=2.7"',
        )
    build_tts.find_nvcc()
    build_tts.find_ninja()


@dataclass(slots=True)
class _Slot:
    """What the host knows of one stream; the rest is on the device."""

    sampling: Sampling
    seed: int
    part: int
    position: int = 0  # where the next talker step writes
    frame: int = 0  # the next one to draw
    num_text_rows: int = 0
    is_filled: bool = False


class KernelDecoder:
    """Talker and code predictor over `num_slots` streams, up to 16 of them in one weight pass.

    Args:
        checkpoint: weights and config.
        num_slots: streams that can be open at once.
        max_positions: prompt positions plus frames of one stream.
        max_text_rows: trailing text rows that may wait for their frame; they lie in a ring.
        device: a GPU runs the kernel, the CPU its emulation.
        dtype: bfloat16, or float32 (exact, for tests and small models).
        num_blocks: blocks of the grid; 0: as many as fit. Any number gives the same codes.
    Raises:
        UnsupportedModel, ArchError, BuildError, LaunchError, OutOfMemory: before anything runs.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        num_slots: int,
        max_positions: int,
        max_text_rows: int,
        device: torch.device,
        dtype: torch.dtype,
        num_blocks: int = 0,
    ):
        if dtype not in (torch.float32, torch.bfloat16):
            raise UsageError(f"dtype is {dtype}; the kernel computes in bfloat16 or float32.")
        self.config, self.device, self.dtype = checkpoint.config, torch.device(device), dtype
        self.num_blocks, self.max_positions, self.max_text_rows = (
            num_blocks,
            max_positions,
            max_text_rows,
        )
        self.timeout_seconds = BARRIER_TIMEOUT_SECONDS
        build_tts.check_config(self.config)
        arch = None
        if self.device.type == "cuda":
            check_device(self.device)
            arch = build_tts.arch_of(
                torch.cuda.get_device_capability(self.device),
                torch.cuda.get_device_name(self.device),
            )
        target = build_tts.Target(arch, str(dtype).removeprefix("torch."))
        self.library = KernelLibrary(build_tts.build(self.config, target), self.config)
        self.library.max_blocks()  # refuses here, not at the first frame
        self._slots: list[_Slot | None] = [None] * num_slots
        self._buffers = KernelBuffers(
            checkpoint,
            self.library.description,
            num_slots=num_slots,
            max_positions=max_positions,
            max_text_rows=max_text_rows,
            device=self.device,
            dtype=dtype,
        )
        self.embeddings = self._buffers.embeddings
        self._halted = threading.Event()

    # ---- the face that ReferenceDecoder shares

    def halt(self) -> None:
        """Draw no further frame until `go_on`; a running launch is finished. Any thread."""
        self._halted.set()

    def go_on(self) -> None:
        """Let steps draw frames again."""
        self._halted.clear()

    def begin(self, slot: int, sampling: Sampling, seed: int, part: int) -> None:
        """Make `slot` as new, for one part of an utterance."""
        self._slots[slot] = _Slot(sampling, seed, part)
        self._buffers.seen[slot].zero_()

    @torch.inference_mode()
    def prefill(self, slot: int, embeds: Tensor, pad_embed: Tensor) -> None:
        """Run the prompt: its keys and values, and the hidden state of its last position, stay.

        Args:
            embeds: [num_positions, hidden_size].
            pad_embed: [hidden_size], added to a frame's embedding past the written text rows.
        """
        state = self._begun(slot)
        self._buffers.pad_embed[slot] = pad_embed
        tokens = torch.full((len(embeds),), -1, dtype=torch.int32)
        self.forward(slot, tokens, embeds, first_position=0, keep_last=True)
        state.position, state.is_filled = len(embeds), True

    @torch.inference_mode()
    def write_text(self, slot: int, rows: Tensor) -> None:
        """Append [n, hidden_size] text rows; row k is added to the embedding of frame k.

        Raises:
            UsageError: more rows would wait for their frame than the ring holds.
        """
        state = self._begun(slot)
        # Frame f reads row f - 1, so rows before frame - 1 are spent.
        waiting = state.num_text_rows + len(rows) - max(state.frame - 1, 0)
        if waiting > self.max_text_rows:
            raise UsageError(
                f"{waiting} text rows would wait in slot {slot}; its ring holds "
                f"{self.max_text_rows}."
            )
        places = torch.arange(state.num_text_rows, state.num_text_rows + len(rows))
        self._buffers.text_rows[slot, (places % self.max_text_rows).to(self.device)] = rows.to(
            self._buffers.text_rows
        )
        state.num_text_rows += len(rows)

    @torch.inference_mode()
    def step(
        self,
        slots: Sequence[int],
        num_frames: int,
        forced: Tensor | None = None,
        taps: dict[str, Tensor] | None = None,
    ) -> StepResult:
        """Decode up to `num_frames` frames of every slot in `slots`, 16 slots in a launch.

        Args:
            forced: [len(slots), num_frames, num_code_groups] codes to go on with, whatever is
                drawn (teacher forcing); a drawn EOS does not end a forced stream.
            taps: filled with the raw logits: "talker" [rows, frames, vocab_size] and "predictor"
                [rows, frames, groups - 1, vocab_size], float32. For tests and validation.
        Raises:
            UsageError: a slot is not ready or has no room for the frames, or a bad forced code.
            KernelTimeout, GenerationError: the launch failed; its streams are lost, others not.
        """
        self._check_step(slots, num_frames, forced)
        parts = []
        for first in range(0, len(slots), MAX_STREAMS):
            some = slots[first : first + MAX_STREAMS]
            given = None if forced is None else forced[first : first + MAX_STREAMS]
            parts.append(self._launch_step(some, num_frames, given, taps))
        return StepResult(
            np.concatenate([part.codes for part in parts]),
            sum((part.num_frames for part in parts), ()),
            sum((part.ended for part in parts), ()),
        )

    # ---- driving the layers directly

    @torch.inference_mode()
    def forward(
        self,
        slot: int,
        tokens: Tensor,
        embeds: Tensor | None = None,
        *,
        first_position: int,
        rope_positions: Tensor | None = None,
        num_layers: int | None = None,
        stack: str = "talker",
        keep_last: bool = False,
    ) -> Tensor:
        """Run consecutive positions through the first `num_layers` layers of a stack.

        Args:
            slot: whose KV cache; the predictor has one for each stream of a launch.
            tokens: [n] int32 ids of the codec embedding; -1 takes the row of `embeds` instead.
            embeds: [n, hidden_size], needed where a token is -1.
            first_position: of row 0 in the cache; earlier positions are filled.
            rope_positions: [3, n] int32 time, height and width positions; None: the cache's.
            stack: "talker" or "predictor".
            keep_last: the last row becomes the hidden state that the next frame starts from.
        Returns:
            [n, hidden_size] float32 after the final norm.
        Raises:
            UsageError: a position, id or layer count out of range; KV cache too short.
        """
        config: StackConfig = getattr(self.config, stack).stack
        native: Stack = getattr(self._buffers.model, stack)
        n, layers = len(tokens), config.num_layers if num_layers is None else num_layers
        if n < 1 or not 0 <= first_position <= native.max_positions - n:
            raise UsageError(
                f"Positions {first_position} .. {first_position + n - 1} do not fit a KV cache of "
                f"{native.max_positions} positions."
            )
        if not 1 <= layers <= config.num_layers:
            raise UsageError(f"num_layers is {layers}; the {stack} has {config.num_layers}.")
        vocab_size = self.config.talker.vocab_size
        if int(tokens.min()) < -1 or int(tokens.max()) >= vocab_size:
            raise UsageError(f"A token is outside -1 .. {vocab_size - 1}.")
        if embeds is None:
            if int(tokens.min()) < 0:
                raise UsageError("A token is -1 but no embeds were given.")
            embeds = torch.zeros(0)
        else:
            embeds = embeds.to(self.device, torch.float32).contiguous()
            check_tensor("embeds", embeds, (n, config.hidden_size), torch.float32)
        tokens = tokens.to(self.device, torch.int32).contiguous()
        if rope_positions is not None:
            if int(rope_positions.min()) < 0 or int(rope_positions.max()) >= native.max_positions:
                raise UsageError(f"A rope position is outside 0 .. {native.max_positions - 1}.")
            rope_positions = rope_positions.to(self.device, torch.int32).contiguous()
            check_tensor("rope_positions", rope_positions, (3, n), torch.int32)
        hidden = torch.empty((n, config.hidden_size), device=self.device)
        params = ForwardParams(
            model=self._buffers.model,
            slots=self._buffers.slots,
            workspace=self._buffers.workspace,
            use_predictor=stack == "predictor",
            num_layers=layers,
            slot=slot,
            first_position=first_position,
            num_rows=n,
            keep_last=keep_last,
            tokens=tokens.data_ptr(),
            embeds=embeds.data_ptr(),
            rope_positions=None if rope_positions is None else rope_positions.data_ptr(),
            hidden=hidden.data_ptr(),
            timeout_ns=self._timeout_ns(),
        )
        self.library.forward(params, self.num_blocks, self._stream())
        self._check_control(self._buffers.control.cpu(), [slot])
        return hidden

    # ---- one launch

    def _begun(self, slot: int) -> _Slot:
        state = self._slots[slot]
        if state is None:
            raise UsageError(f"Slot {slot} has no stream; call begin first.")
        return state

    def _check_step(self, slots: Sequence[int], num_frames: int, forced: Tensor | None) -> None:
        if num_frames < 1 or len(set(slots)) != len(slots) or not slots:
            raise UsageError(f"Cannot step slots {list(slots)} by {num_frames} frames.")
        for slot in slots:
            state = self._begun(slot)
            if not state.is_filled:
                raise UsageError(f"Slot {slot} has no prompt; call prefill first.")
            end = state.position + num_frames - (state.frame == 0)
            if end > self.max_positions:
                raise UsageError(
                    f"Slot {slot} is at position {state.position}; {num_frames} more frames do not "
                    f"fit its {self.max_positions} positions."
                )
        if forced is None:
            return
        groups = self.config.talker.num_code_groups
        if tuple(forced.shape) != (len(slots), num_frames, groups):
            raise UsageError(
                f"forced is {list(forced.shape)}; need {[len(slots), num_frames, groups]}."
            )
        limits = [self.config.talker.vocab_size] + [self.config.predictor.vocab_size] * (groups - 1)
        if bool((forced < 0).any()) or bool((forced.cpu() >= torch.tensor(limits)).any()):
            raise UsageError(f"forced has a code outside the vocabularies {limits[:2]}.")

    def _launch_step(
        self,
        slots: Sequence[int],
        num_frames: int,
        forced: Tensor | None,
        taps: dict[str, Tensor] | None,
    ) -> StepResult:
        n, groups = len(slots), self.config.talker.num_code_groups
        if self._halted.is_set():
            nothing = np.zeros((n, num_frames, groups), dtype=np.int32)
            return StepResult(nothing, (0,) * n, (False,) * n)
        # [num_done, ended] of every stream, then the codes: one copy brings everything back.
        result = torch.zeros(n * (2 + num_frames * groups), dtype=torch.int32, device=self.device)
        address = result.data_ptr()
        params = StepParams(
            model=self._buffers.model,
            slots=self._buffers.slots,
            workspace=self._buffers.workspace,
            num_streams=n,
            num_frames=num_frames,
            num_done=address,
            ended=address + 4 * n,
            codes=address + 8 * n,
            timeout_ns=self._timeout_ns(),
        )
        for index, slot in enumerate(slots):
            params.streams[index] = self._native_stream(slot)
        keep = []  # alive until the launch is over
        if forced is not None:
            keep.append(forced.to(self.device, torch.int32).contiguous())
            params.forced = keep[0].data_ptr()
        kept = None
        if taps is not None:
            # Room for the logits of every code instead of one place for all of them.
            vocab = max(self.config.talker.vocab_size, self.config.predictor.vocab_size)
            shape = (num_frames, groups, MAX_STREAMS, vocab)
            kept = torch.full(shape, torch.nan, device=self.device)
            params.workspace.logits = kept.data_ptr()
            params.logits_step = MAX_STREAMS * vocab
        self.library.step(params, self.num_blocks, self._stream())
        control, result = self._buffers.control.cpu(), result.cpu().numpy()
        self._check_control(control, slots)
        del keep
        if taps is not None and kept is not None:
            self._collect_taps(taps, kept[:, :, :n].permute(2, 0, 1, 3))
        counts, ended = result[:n].tolist(), result[n : 2 * n].astype(bool).tolist()
        codes = result[2 * n :].reshape(n, num_frames, groups)
        for index, slot in enumerate(slots):
            codes[index, counts[index] :] = 0
            state = self._begun(slot)
            # Every frame but a stream's first is preceded by a talker step, a drawn EOS too.
            state.position += counts[index] + ended[index] - (state.frame == 0)
            state.frame += counts[index]
        return StepResult(codes, tuple(counts), tuple(ended))

    def _collect_taps(self, taps: dict[str, Tensor], kept: Tensor) -> None:
        """Append [rows, frames, groups, vocabulary] logits to `taps`."""
        talker, predictor = self.config.talker.vocab_size, self.config.predictor.vocab_size
        new = {"talker": kept[:, :, 0, :talker], "predictor": kept[:, :, 1:, :predictor]}
        for name, logits in new.items():
            taps[name] = torch.cat((taps[name], logits)) if name in taps else logits.clone()

    def _native_stream(self, slot: int) -> Stream:
        state = self._begun(slot)
        s = state.sampling
        talker = (s.temperature, s.top_p, s.repetition_penalty, s.top_k, s.do_sample)
        predictor = (s.subtalker_temperature, s.subtalker_top_p, 1.0)
        predictor += (s.subtalker_top_k, s.subtalker_do_sample)
        return Stream(
            slot,
            state.position,
            state.frame,
            state.part,
            state.num_text_rows,
            state.seed & 0xFFFFFFFF,
            state.seed >> 32,
            SamplingParams(*talker),
            SamplingParams(*predictor),
        )

    def _timeout_ns(self) -> int:
        return int(self.timeout_seconds * 1e9)

    def _stream(self) -> int:
        if self.device.type != "cuda":
            return 0
        return torch.cuda.current_stream(self.device).cuda_stream

    def _check_control(self, control: Tensor, slots: Sequence[int]) -> None:
        """After a launch: raise what it reported, and make the next one possible."""
        error = Control.from_buffer_copy(control.numpy().tobytes()).error
        if not error:
            return
        self._buffers.control.zero_()
        self._buffers.tickets.zero_()
        for slot in slots:  # half a frame is in their caches
            self._slots[slot] = None
        status, stage, layer = (
            error >> 24,
            self.library.stage_name(error >> 16 & 0xFF),
            error & 0xFFFF,
        )
        where = f"in stage {stage}, layer {layer}"
        if status == STATUS_TIMEOUT:
            raise KernelTimeout(
                f"Grid barrier timed out after {self.timeout_seconds:g} s {where}; this stream "
                "ended with error.",
                "Next streams run on a fresh launch.",
            )
        if status == STATUS_CANCELLED:
            raise GenerationError(f"The launch was cancelled {where}.")
        if status == STATUS_BAD_LOGITS:
            raise GenerationError(
                f"The logits of codebook {layer} are not finite ({where}).",
                "The weights, or what was computed from them, hold NaN or infinity.",
            )
        raise GenerationError(f"The kernel reported unknown status {status} {where}.")
