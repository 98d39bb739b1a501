"""The decoder on the CUDA kernel, or on the kernel's own source emulated on a CPU.

Python owns every buffer; the library allocates nothing. Every tensor is checked once, before its
address crosses the border (library.py).
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.checkpoint.config import StackConfig
from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.decoders import int8
from qwen_megakernel.decoders.buffered import BufferedDecoder
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.decoders.kernel.buffers import KernelBuffers
from qwen_megakernel.decoders.kernel.launcher import Launcher, current
from qwen_megakernel.decoders.kernel.library import (
    MAX_STREAMS,
    KernelLibrary,
    SamplingParams,
    Stack,
    Stream,
    check_tensor,
)
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import ArchError, GenerationError, UsageError
from qwen_megakernel.gpu.driver import is_built_for, no_gpu
from qwen_megakernel.native.compiling import find_ninja
from qwen_megakernel.records import StepResult


def check_device(device: torch.device) -> None:
    """Raise unless `device` can run the kernel and the kernel can be built for it.

    Raises:
        NoGPUError, DriverError, ArchError, BuildError: what is missing, and the remedy.
    """
    if not torch.cuda.is_available():
        raise no_gpu("--backend kernel")
    name = torch.cuda.get_device_name(device)
    capability = torch.cuda.get_device_capability(device)
    arch, built_for = build.arch_of(capability, name), torch.cuda.get_arch_list()
    if not is_built_for(capability, built_for):
        raise ArchError(
            f"{name} is {arch}; torch {torch.__version__} was built for {', '.join(built_for)}.",
            hint='pip install "torch>=2.7"',
        )
    build.find_nvcc()
    find_ninja()


class KernelDecoder(BufferedDecoder):
    """The kernel with up to 16 slots in one weight pass, and more in further launches.

    Args:
        checkpoint: weights, perhaps of `int8.quantize`, and config.
        sizes: as `FrameDecoder` takes them. A GPU runs the kernel, the CPU its emulation; float32
            is exact, for tests and small models.
        num_blocks: blocks of the grid; 0: as many as fit. Any number gives the same codes.
    Raises:
        UnsupportedModel, ArchError, BuildError, LaunchError, OutOfMemory: before anything runs.
    """

    def __init__(self, checkpoint: Checkpoint, sizes: DecoderSizes, num_blocks: int = 0):
        super().__init__(checkpoint.config, sizes)
        build.check_config(self.config)
        arch = None
        if self.device.type == "cuda":
            check_device(self.device)
            arch = build.arch_of(
                torch.cuda.get_device_capability(self.device),
                torch.cuda.get_device_name(self.device),
            )
        target = build.Target(
            arch, str(self.dtype).removeprefix("torch."), int8=int8.int8_stacks(checkpoint.talker)
        )
        self.library = KernelLibrary(build.build(self.config, target), self.config)
        with current(self.device):
            self.library.max_blocks()  # refuses here, not at the first frame
        self._buffers = KernelBuffers(checkpoint, self.library.description, sizes)
        buffers = self._buffers
        self._seen, self._text, self._pad = buffers.seen, buffers.text_rows, buffers.pad_embed
        self.launcher = Launcher(self.library, buffers, num_blocks)
        self.embeddings = buffers.embeddings

    def cancel(self) -> None:
        """End the running step; on a GPU it ends within the milliseconds of a frame."""
        self.launcher.cancel()

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
        try:
            return self.launcher.forward(
                tokens,
                embeds,
                rope_positions,
                slot=slot,
                first_position=first_position,
                num_layers=layers,
                use_predictor=stack == "predictor",
                keep_last=keep_last,
            )
        except GenerationError:
            self._lose([slot])
            raise

    # ---- launches

    def _run_prompt(self, slot: int, embeds: Tensor, pad_embed: Tensor) -> None:
        self._pad[slot] = pad_embed
        tokens = torch.full((len(embeds),), -1, dtype=torch.int32)
        self.forward(slot, tokens, embeds, first_position=0, keep_last=True)

    def _step(
        self,
        slots: Sequence[int],
        num_frames: int,
        forced: Tensor | None,
        taps: dict[str, Tensor] | None,
    ) -> StepResult:
        return self._launch(slots, num_frames, forced, taps)()

    def _launch(
        self,
        slots: Sequence[int],
        num_frames: int,
        forced: Tensor | None = None,
        taps: dict[str, Tensor] | None = None,
    ) -> Callable[[], StepResult]:
        """Launches for up to `MAX_STREAMS` slots each; all but the last are waited for here."""
        parts: list[StepResult] = []
        cuts = range(0, len(slots), MAX_STREAMS)
        try:
            for first in cuts:
                some = slots[first : first + MAX_STREAMS]
                given = None if forced is None else forced[first : first + MAX_STREAMS]
                streams = [self._native_stream(slot) for slot in some]
                wait = self.launcher.start(streams, num_frames, given, taps)
                if first != cuts[-1]:
                    parts.append(self._collect(some, wait))
        except BaseException:
            self.launcher.clear_cancel()
            raise

        def collect() -> StepResult:
            try:
                parts.append(self._collect(some, wait))
            finally:
                self.launcher.clear_cancel()
            return StepResult(
                np.concatenate([part.codes for part in parts]),
                tuple(count for part in parts for count in part.num_frames),
                tuple(ended for part in parts for ended in part.ended),
            )

        return collect

    def _collect(self, slots: Sequence[int], wait: Callable[[], StepResult]) -> StepResult:
        """What a launch drew, and the accounts of its slots after it."""
        try:
            drawn = wait()
        except GenerationError:
            self._lose(slots)  # half a frame is in their caches
            raise
        for slot, count, ended in zip(slots, drawn.num_frames, drawn.ended, strict=True):
            self._states[slot].advance(count, ended)
        return drawn

    def _native_stream(self, slot: int) -> Stream:
        state = self._state(slot)
        s = state.sampling
        return Stream(
            slot=slot,
            position=state.position,
            frame=state.frame,
            part=state.part,
            num_text_rows=state.num_text_rows,
            seed_low=state.seed & 0xFFFFFFFF,
            seed_high=state.seed >> 32,
            talker=SamplingParams(
                temperature=s.temperature,
                top_p=s.top_p,
                repetition_penalty=s.repetition_penalty,
                top_k=s.top_k,
                do_sample=s.do_sample,
            ),
            predictor=SamplingParams(
                temperature=s.subtalker_temperature,
                top_p=s.subtalker_top_p,
                repetition_penalty=1.0,
                top_k=s.subtalker_top_k,
                do_sample=s.subtalker_do_sample,
            ),
        )
