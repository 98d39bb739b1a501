"""One launch of the kernel: its parameters, the wait for it, and what it reports.

Slots and their accounts are the decoder's (decoder.py); a launch knows rows.
"""

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.decoders.kernel.buffers import KernelBuffers
from qwen_megakernel.decoders.kernel.library import (
    MAX_STREAMS,
    Control,
    ForwardParams,
    KernelLibrary,
    StepParams,
    Stream,
)
from qwen_megakernel.errors import GenerationError, KernelTimeout
from qwen_megakernel.gpu.cuda_graphs import HostCopy
from qwen_megakernel.records import StepResult

BARRIER_TIMEOUT_SECONDS = 2.0
# LaunchStatus of csrc/tts_kernel.h.
STATUS_TIMEOUT, STATUS_CANCELLED, STATUS_BAD_LOGITS = 1, 2, 3


def current(device: torch.device) -> contextlib.AbstractContextManager:
    """Make a GPU the thread's current one: the library asks and launches there, whatever stream it
    is given."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


class Launcher:
    """Starts the kernels of a library on a decoder's buffers.

    Args:
        library: compiled for the model.
        buffers: everything it reads and writes; kept until the last launch is over.
        num_blocks: blocks of the grid; 0: as many as fit.
    """

    def __init__(self, library: KernelLibrary, buffers: KernelBuffers, num_blocks: int):
        self.num_blocks = num_blocks
        self.timeout_seconds = BARRIER_TIMEOUT_SECONDS  # of one grid barrier
        self._library, self._buffers = library, buffers

    def cancel(self) -> None:
        """End the running step launch, or the next, before another frame. From any thread."""
        self._buffers.cancel[0] = 1

    def clear_cancel(self) -> None:
        """The next step launch runs whatever was cancelled before."""
        self._buffers.cancel[0] = 0

    def start(
        self,
        streams: Sequence[Stream],
        num_frames: int,
        forced: Tensor | None = None,
        taps: dict[str, Tensor] | None = None,
    ) -> Callable[[], StepResult]:
        """Start up to `num_frames` frames of every stream; fewer where EOS or `cancel` ends them.

        Args:
            forced, taps: as in `KernelDecoder.step`; every call appends its rows to the taps.
        Returns:
            A function that waits for the launch, to be called before the next one. It raises
            KernelTimeout or GenerationError where the launch failed; half a frame is then in the KV
            caches.
        Raises:
            LaunchError: the grid was refused.
        """
        buffers = self._buffers
        n, groups = len(streams), buffers.config.talker.num_code_groups
        # [num_done, ended] of every stream, the codes, the control: one copy brings all of it back.
        size = n * (2 + num_frames * groups)
        control_words = buffers.control.numel()
        result = torch.zeros(size + control_words, dtype=torch.int32, device=buffers.device)
        address = result.data_ptr()
        params = StepParams(
            model=buffers.model,
            slots=buffers.slots,
            workspace=buffers.workspace,
            num_streams=n,
            num_frames=num_frames,
            num_done=address,
            ended=address + 4 * n,
            codes=address + 8 * n,
            timeout_ns=self._timeout_ns(),
        )
        params.streams[:n] = streams
        if forced is not None:
            forced = forced.to(buffers.device, torch.int32).contiguous()
            params.forced = forced.data_ptr()
        logits = None
        if taps is not None:
            # Room for the logits of every code instead of one place for all of them.
            talker, predictor = buffers.config.talker, buffers.config.predictor
            shape = (
                *(num_frames, groups, MAX_STREAMS),
                max(talker.vocab_size, predictor.vocab_size),
            )
            logits = torch.full(shape, torch.nan, device=buffers.device)
            params.workspace.logits = logits.data_ptr()
            params.logits_step = logits.stride(1)
        with current(buffers.device):
            self._library.step(params, self.num_blocks, self._stream())
        result[size:] = buffers.control
        download = HostCopy(result)

        def wait() -> StepResult:
            found = download.wait()
            self._check_control(found[size:])
            if taps is not None and logits is not None:
                self._collect_taps(taps, logits[:, :, :n].permute(2, 0, 1, 3))
            return _drawn(found[:size].numpy(), n, num_frames)

        return wait

    def forward(
        self,
        tokens: Tensor,
        embeds: Tensor,
        rope_positions: Tensor | None,
        *,
        slot: int,
        first_position: int,
        num_layers: int,
        use_predictor: bool,
        keep_last: bool,
    ) -> Tensor:
        """Consecutive positions through one stack; tensors as `KernelDecoder.forward` checks them.

        Returns:
            [n, hidden_size] float32 after the final norm.
        Raises:
            KernelTimeout: the launch failed.
        """
        buffers = self._buffers
        part = buffers.config.predictor if use_predictor else buffers.config.talker
        hidden = torch.empty((len(tokens), part.stack.hidden_size), device=buffers.device)
        params = ForwardParams(
            model=buffers.model,
            slots=buffers.slots,
            workspace=buffers.workspace,
            use_predictor=use_predictor,
            num_layers=num_layers,
            slot=slot,
            first_position=first_position,
            num_rows=len(tokens),
            keep_last=keep_last,
            tokens=tokens.data_ptr(),
            embeds=embeds.data_ptr(),
            rope_positions=None if rope_positions is None else rope_positions.data_ptr(),
            hidden=hidden.data_ptr(),
            timeout_ns=self._timeout_ns(),
        )
        with current(buffers.device):
            self._library.forward(params, self.num_blocks, self._stream())
        self._check_control(buffers.control.cpu())
        return hidden

    def _collect_taps(self, taps: dict[str, Tensor], logits: Tensor) -> None:
        """Append [rows, frames, groups, vocabulary] logits to `taps`."""
        config = self._buffers.config
        new = {
            "talker": logits[:, :, 0, : config.talker.vocab_size],
            "predictor": logits[:, :, 1:, : config.predictor.vocab_size],
        }
        for name, values in new.items():
            taps[name] = torch.cat((taps[name], values)) if name in taps else values.clone()

    def _timeout_ns(self) -> int:
        return int(self.timeout_seconds * 1e9)

    def _stream(self) -> int:
        if self._buffers.device.type != "cuda":
            return 0
        return torch.cuda.current_stream(self._buffers.device).cuda_stream

    def _check_control(self, control: Tensor) -> None:
        """After a launch: raise what it reported, and make the next one possible."""
        error = Control.from_buffer_copy(control.numpy().tobytes()).error
        if not error:
            return
        self._buffers.control.zero_()
        self._buffers.tickets.zero_()
        status, layer = error >> 24, error & 0xFFFF
        where = f"in stage {self._library.stage_name(error >> 16 & 0xFF)}, layer {layer}"
        if status == STATUS_CANCELLED:
            return
        if status == STATUS_TIMEOUT:
            raise KernelTimeout(
                f"Grid barrier timed out after {self.timeout_seconds:g} s {where}; this stream "
                "ended with error.",
                "Next streams run on a fresh launch.",
            )
        if status == STATUS_BAD_LOGITS:
            raise GenerationError(
                f"The logits of codebook {layer} are not finite ({where}).",
                "The weights, or what was computed from them, hold NaN or infinity.",
            )
        raise GenerationError(f"The kernel reported unknown status {status} {where}.")


def _drawn(result: np.ndarray, n: int, num_frames: int) -> StepResult:
    counts, ended = result[:n].tolist(), result[n : 2 * n].astype(bool).tolist()
    codes = result[2 * n :].reshape(n, num_frames, -1)
    for row, count in enumerate(counts):
        codes[row, count:] = 0
    return StepResult(codes, tuple(counts), tuple(ended))
