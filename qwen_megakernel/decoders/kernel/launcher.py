"""Launches of the kernel: their parameters, the wait for them, and what they report.

Slots and their accounts are the decoder's (decoder.py); a launch knows rows.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.decoders.kernel.buffers import KernelBuffers
from qwen_megakernel.decoders.kernel.library import (
    MAX_STREAMS,
    ForwardParams,
    KernelLibrary,
    StepParams,
    Stream,
)
from qwen_megakernel.errors import GenerationError, KernelTimeout, LaunchError, QwenTTSError
from qwen_megakernel.gpu.cuda_graphs import HostCopy
from qwen_megakernel.gpu.launch_order import in_order
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

    A prompt is enqueued, and its outcome is read with that of the next step: a host that waits for
    a prompt leaves the GPU idle for the way to it and back.

    Args:
        library: compiled for the model.
        buffers: everything it reads and writes; kept until the last launch is over.
        num_blocks: blocks of the grid.
    """

    def __init__(self, library: KernelLibrary, buffers: KernelBuffers, num_blocks: int):
        self.num_blocks = num_blocks
        self.timeout_seconds = BARRIER_TIMEOUT_SECONDS  # of one grid barrier
        self._library, self._buffers = library, buffers
        self._prompts: dict[int, Any] = {}  # owners of prompts under way, by their control block
        self._failed: list[tuple[Any, GenerationError]] = []  # owners of those that failed
        self._steps: list[int] = []  # control blocks of the last step, until it was waited for

    def cancel(self) -> None:
        """End the running step launch, or the next, before another frame. From any thread."""
        self._buffers.cancel[0] = 1

    def clear_cancel(self) -> None:
        """The next step launch runs whatever was cancelled before."""
        self._buffers.cancel[0] = 0

    # ---- frames

    def start(
        self,
        groups: Sequence[Sequence[Stream]],
        num_frames: int,
        forced: Tensor | None = None,
        taps: dict[str, Tensor] | None = None,
    ) -> Callable[[], list[StepResult | QwenTTSError]]:
        """Start up to `num_frames` frames of every stream; fewer where EOS or `cancel` ends them.

        Args:
            groups: the streams of one launch each, at most `MAX_STREAMS`. All are enqueued here,
                one behind the other.
            forced, taps: as in `KernelDecoder.step`, rows in the order of the groups; every call
                appends its rows to the taps.
        Returns:
            A function that waits for all launches at once, to be called before the next one. For
            each group it returns what was drawn, or why its launch failed: half a frame is then in
            the KV caches.
        Raises:
            LaunchError: the grid was refused, and nothing was started.
        """
        buffers = self._buffers
        # For each group [num_done, ended] of every stream and the codes, then the error word of
        # every launch that is under way: one copy brings all of it back.
        words = 2 + num_frames * buffers.config.talker.num_code_groups
        ends = np.cumsum([words * len(streams) for streams in groups]).tolist()
        result = torch.zeros(
            ends[-1] + len(buffers.controls), dtype=torch.int32, device=buffers.device
        )
        if forced is not None:
            forced = forced.to(buffers.device, torch.int32).contiguous()
        for control in self._steps:  # of a step that a fault kept the caller from waiting for
            buffers.controls.give_back(control, is_clean=False)
        self._steps = []
        launches: list[int | QwenTTSError] = []
        logits: list[Tensor] = []
        first = 0
        for streams, end in zip(groups, ends, strict=True):
            place = result.data_ptr() + 4 * (end - words * len(streams))
            given = None if forced is None else forced[first : first + len(streams)].data_ptr()
            tapped = None if taps is None else self._room_for_logits(num_frames)
            try:
                control = self._take_control()
                params = self._step_params(streams, num_frames, place, given, tapped, control)
                with self._launching(control) as stream:
                    self._library.step(params, self.num_blocks, stream)
                launches.append(control)
                self._steps.append(control)
            except (LaunchError, GenerationError) as error:
                if not launches:
                    raise
                launches.append(error)  # the groups in front of it are under way
            if tapped is not None:
                logits.append(tapped[:, :, : len(streams)].permute(2, 0, 1, 3))
            first += len(streams)
        result[ends[-1] :] = buffers.controls.errors
        download, prompts = HostCopy(result), tuple(self._prompts)

        def wait() -> list[StepResult | QwenTTSError]:
            found = download.wait()
            self._steps = []
            errors = found[ends[-1] :].tolist()
            self._settle_prompts(prompts, errors)
            if taps is not None:
                self._collect_taps(taps, torch.cat(logits))
            outcomes: list[StepResult | QwenTTSError] = []
            for streams, end, launch in zip(groups, ends, launches, strict=True):
                error = self._settle(launch, errors[launch]) if isinstance(launch, int) else launch
                drawn = found[end - words * len(streams) : end].numpy()
                outcomes.append(error or _drawn(drawn, len(streams), num_frames))
            return outcomes

        return wait

    def _step_params(
        self,
        streams: Sequence[Stream],
        num_frames: int,
        result: int,
        forced: int | None,
        logits: Tensor | None,
        control: int,
    ) -> StepParams:
        """The parameters of one launch that has the control block `control`."""
        buffers, n = self._buffers, len(streams)
        params = StepParams(
            model=buffers.model,
            slots=buffers.slots,
            num_streams=n,
            num_frames=num_frames,
            num_done=result,
            ended=result + 4 * n,
            codes=result + 8 * n,
            forced=forced,
            timeout_ns=self._timeout_ns(),
        )
        params.streams[:n] = streams
        params.workspace = buffers.workspace_of(control)
        if logits is not None:
            params.workspace.logits = logits.data_ptr()
            params.logits_step = logits.stride(1)
        return params

    def _room_for_logits(self, num_frames: int) -> Tensor:
        """For the logits of every code of a launch, instead of one place for all of them."""
        talker, predictor = self._buffers.config.talker, self._buffers.config.predictor
        shape = (num_frames, talker.num_code_groups, MAX_STREAMS)
        vocab_size = max(talker.vocab_size, predictor.vocab_size)
        return torch.full((*shape, vocab_size), torch.nan, device=self._buffers.device)

    def _collect_taps(self, taps: dict[str, Tensor], logits: Tensor) -> None:
        """Append [rows, frames, groups, vocabulary] logits to `taps`."""
        config = self._buffers.config
        new = {
            "talker": logits[:, :, 0, : config.talker.vocab_size],
            "predictor": logits[:, :, 1:, : config.predictor.vocab_size],
        }
        for name, values in new.items():
            taps[name] = torch.cat((taps[name], values)) if name in taps else values.clone()

    # ---- rows

    def start_prompt(self, owner: Any, slot: int, embeds: Tensor) -> None:
        """Enqueue a prompt; its last hidden state becomes the one that the slot's frames start
        from. If it fails, `failed_prompts` has its owner behind the wait for a later step.

        Args:
            owner: what identifies the prompt in `failed_prompts`; any object.
            embeds: [n, hidden_size] float32, contiguous on the device.
        Raises:
            LaunchError: the grid was refused.
        """
        control = self._start_rows(
            self._buffers.prepared[: len(embeds)], embeds, slot=slot, keep_last=True
        )
        self._prompts[control] = owner

    def failed_prompts(self) -> list[tuple[Any, GenerationError]]:
        """Owners of prompts that failed, since this was last called, and why."""
        failed, self._failed = self._failed, []
        return failed

    def forward(
        self,
        tokens: Tensor,
        embeds: Tensor,
        rope_positions: Tensor | None,
        *,
        use_predictor: bool,
        **options: Any,
    ) -> Tensor:
        """Consecutive positions through one stack; tensors as `KernelDecoder.forward` checks them.

        Args:
            options: of `ForwardParams`.
        Returns:
            [n, hidden_size] float32 after the final norm.
        Raises:
            KernelTimeout: the launch failed.
        """
        buffers = self._buffers
        part = buffers.config.predictor if use_predictor else buffers.config.talker
        hidden = torch.empty((len(tokens), part.stack.hidden_size), device=buffers.device)
        control = self._start_rows(
            tokens,
            embeds,
            hidden=hidden.data_ptr(),
            rope_positions=None if rope_positions is None else rope_positions.data_ptr(),
            use_predictor=use_predictor,
            **options,
        )
        if error := self._settle(control, int(buffers.controls.errors[control])):
            raise error
        return hidden

    def _start_rows(self, tokens: Tensor, embeds: Tensor, **options: Any) -> int:
        """Enqueue one launch; returns its control block."""
        options = {"num_layers": self._buffers.model.talker.num_layers} | options
        control = self._take_control()
        params = ForwardParams(
            model=self._buffers.model,
            slots=self._buffers.slots,
            workspace=self._buffers.workspace_of(control),
            num_rows=len(tokens),
            tokens=tokens.data_ptr(),
            embeds=embeds.data_ptr(),
            timeout_ns=self._timeout_ns(),
            **options,
        )
        with self._launching(control) as stream:
            self._library.forward(params, self.num_blocks, stream)
        return control

    # ---- any launch

    @contextlib.contextmanager
    def _launching(self, control: int) -> Iterator[int]:
        """The address of the stream for one launch, behind the launches of other decoders.

        A launch that is refused within the block gives its control block back.
        """
        device = self._buffers.device
        try:
            with current(device), in_order(device) as stream:
                yield stream
        except BaseException:
            self._buffers.controls.give_back(control, is_clean=True)
            raise

    def _take_control(self) -> int:
        """A control block; where prompts have all of them, those are waited for."""
        controls = self._buffers.controls
        if not controls.free:
            self._settle_prompts(tuple(self._prompts), controls.errors.tolist())
        return controls.take()

    def _settle_prompts(self, prompts: Sequence[int], errors: Sequence[int]) -> None:
        """Prompts have ended, with these error words of all control blocks."""
        for control in prompts:
            owner = self._prompts.pop(control)
            if error := self._settle(control, errors[control]):
                self._failed.append((owner, error))

    def _settle(self, control: int, error: int) -> GenerationError | None:
        """A launch has ended with this error word: what it means, if anything; its control block
        may be used again."""
        self._buffers.controls.give_back(control, is_clean=not error)
        status, layer = error >> 24, error & 0xFFFF
        if not error or status == STATUS_CANCELLED:
            return None
        where = f"in stage {self._library.stage_name(error >> 16 & 0xFF)}, layer {layer}"
        if status == STATUS_TIMEOUT:
            return KernelTimeout(
                f"Grid barrier timed out after {self.timeout_seconds:g} s {where}; this stream "
                "ended with error.",
                "Next streams run on a fresh launch.",
            )
        if status == STATUS_BAD_LOGITS:
            return GenerationError(
                f"The logits of codebook {layer} are not finite ({where}).",
                "The weights, or what was computed from them, hold NaN or infinity.",
            )
        return GenerationError(f"The kernel reported unknown status {status} {where}.")

    def _timeout_ns(self) -> int:
        return int(self.timeout_seconds * 1e9)


def _drawn(result: np.ndarray, n: int, num_frames: int) -> StepResult:
    counts, ended = result[:n].tolist(), result[n : 2 * n].astype(bool).tolist()
    codes = result[2 * n :].reshape(n, num_frames, -1)
    for row, count in enumerate(counts):
        codes[row, count:] = 0
    return StepResult(codes, tuple(counts), tuple(ended))
