"""The decoder on the CUDA kernel, or on the kernel's own source emulated on a CPU.

Python owns every buffer; the library allocates nothing. Every tensor is checked once, before the
library gets its address (library.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qwen_megakernel.decoders import quantization
from qwen_megakernel.decoders.frame_decoder import BufferedDecoder, Taps
from qwen_megakernel.decoders.kernel.buffers import KernelBuffers
from qwen_megakernel.decoders.kernel.launcher import Launcher
from qwen_megakernel.decoders.kernel.library import Stream
from qwen_megakernel.decoders.kernel.loading import load_library
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.decoders.weights import DecoderModel
from qwen_megakernel.errors import GenerationError
from qwen_megakernel.records import StepResult


class KernelDecoder(BufferedDecoder):
    """The decoder on the kernel: up to 16 slots share one launch; more slots take further ones.

    Args:
        model: weights, which `quantization.quantize` may have made 8-bit, and config.
        sizes: as `FrameDecoder` takes them. A GPU runs the kernel, the CPU its emulation; float32
            is exact, for tests and small models.
        num_blocks: blocks of the grid; 0: as many as fit now. The codes do not depend on it.
        defines: -D's of an experiment, for the compilation of the library (`build.Target`).
    Raises:
        UnsupportedModel, ArchError, BuildError, LaunchError, OutOfMemory: the kernel cannot run;
            the constructor raises this before any work on the GPU.
    """

    def __init__(
        self,
        model: DecoderModel,
        sizes: DecoderSizes,
        num_blocks: int = 0,
        defines: Mapping[str, int] | None = None,
    ):
        super().__init__(sizes)
        self.config = model.config
        self.library, most_blocks = load_library(
            model.config, sizes, int8_stacks=quantization.int8_stacks(model.talker), defines=defines
        )
        self._buffers = KernelBuffers(model, self.library.description, sizes)
        buffers = self._buffers
        self._seen, self._text, self._pad = buffers.seen, buffers.text_rows, buffers.pad_embed
        self.launcher = Launcher(self.library, buffers, num_blocks or most_blocks)
        self._failures: dict[int, GenerationError] = {}  # slot -> the error of its prompt
        self.embeddings = buffers.embeddings

    def cancel(self) -> None:
        self._buffers.cancel[0] = 1

    @torch.inference_mode()
    def forward(self, slot: int, *tensors: Tensor, **options: Any) -> Tensor:
        """Run `Launcher.forward`; a stream whose launch fails is lost."""
        try:
            return self.launcher.forward(slot, *tensors, **options)
        except GenerationError:
            self._lose([slot])
            raise

    # ---- launches

    def _run_prompt(self, slot: int, embeds: Tensor, pad_embed: Tensor) -> None:
        self._failures.pop(slot, None)  # an error of the slot's previous stream
        self._pad[slot] = pad_embed
        embeds = embeds.to(self.device, torch.float32).contiguous()
        self.launcher.start_prompt((slot, self._states[slot]), slot, embeds)

    def _step(
        self, slots: Sequence[int], num_frames: int, forced: Tensor | None, taps: Taps | None
    ) -> StepResult:
        return self._launch(slots, num_frames, forced, taps)()

    def _launch(
        self,
        slots: Sequence[int],
        num_frames: int,
        forced: Tensor | None = None,
        taps: Taps | None = None,
    ) -> Callable[[], StepResult]:
        try:
            streams = [self._native_stream(slot) for slot in slots]
            wait = self.launcher.start(streams, num_frames, forced, taps)
        except BaseException:
            self._buffers.cancel[0] = 0
            raise

        def collect() -> StepResult:
            try:
                result = wait()
            finally:
                self._buffers.cancel[0] = 0
            return self._collect(slots, result)

        return collect

    def _collect(self, slots: Sequence[int], result: StepResult) -> StepResult:
        """Add the failures of prompts to those of a step; advance the states of its slots."""
        for (slot, state), error in self.launcher.failed_prompts():
            if self._states[slot] is state:  # otherwise the slot has another stream by now
                self._failures[slot] = error
        counts, ended, failures = list(result.num_frames), list(result.ended), {**result.failures}
        for row, slot in enumerate(slots):
            if slot in self._failures:  # the prompt's error explains more than that of its frames
                failures[row] = self._failures.pop(slot)
            if row in failures:
                result.codes[row], counts[row], ended[row] = 0, 0, False
            else:
                self._state(slot).advance(counts[row], ended[row])
        # The caches of lost streams contain a part of a frame.
        self._buffers.forget([slots[row] for row in failures])
        found = StepResult(result.codes, tuple(counts), tuple(ended), failures)
        return self._settled(slots, found)

    def _native_stream(self, slot: int) -> Stream:
        state = self._state(slot)
        return Stream(
            slot=slot,
            position=state.position,
            frame=state.frame,
            part=state.part,
            num_text_rows=state.num_text_rows,
            seed_low=state.seed & 0xFFFFFFFF,
            seed_high=state.seed >> 32,
            **state.sampling_params,
        )
