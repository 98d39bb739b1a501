"""Launches of the kernel: their parameters, the wait for them, and their results and errors.

The decoder keeps slots and their states (decoder.py); a launch has only rows.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from qwen_megakernel.checkpoint.config import StackConfig
from qwen_megakernel.decoders.kernel.buffers import LayerBuffers
from qwen_megakernel.decoders.kernel.library import (
    MAX_STREAMS,
    ForwardParams,
    KernelLibrary,
    Stack,
    StepParams,
    Stream,
    check_tensor,
)
from qwen_megakernel.decoders.sampling import not_finite
from qwen_megakernel.errors import (
    GenerationError,
    KernelTimeout,
    LaunchError,
    QwenTTSError,
    UsageError,
)
from qwen_megakernel.gpu.cuda_graphs import download
from qwen_megakernel.gpu.launch_order import in_order
from qwen_megakernel.records import StepResult

BARRIER_TIMEOUT_SECONDS = 2.0
# LaunchStatus of csrc/tts_kernel.h, and its kBadLogits, which is of a stream and not of a launch.
STATUS_TIMEOUT, STATUS_CANCELLED = 1, 2
BAD_LOGITS = 2


def current(device: torch.device) -> contextlib.AbstractContextManager:
    """Make a GPU the thread's current device, on which the library launches its kernels."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


class Launcher:
    """Starts the kernels of a library on a decoder's buffers, and keeps these until the last ends.

    A prompt is enqueued, and its outcome is read with that of the next step: if the host waited for
    a prompt, the GPU would be idle until the next launch reaches it.
    """

    def __init__(self, library: KernelLibrary, buffers: LayerBuffers, num_blocks: int):
        self.num_blocks = num_blocks
        self.timeout_seconds = BARRIER_TIMEOUT_SECONDS  # limit for one grid barrier
        self._library, self._buffers = library, buffers
        self._prompts: dict[int, Any] = {}  # owners of prompts under way, by their control block
        self._failed: list[tuple[Any, GenerationError]] = []  # owners of failed prompts
        self._steps: list[int] = []  # control blocks of the last step, until the wait for it

    # ---- frames

    def start(
        self,
        streams: Sequence[Stream],
        num_frames: int,
        forced: Tensor | None = None,
        taps: dict[str, Tensor] | None = None,
    ) -> Callable[[], StepResult]:
        """Start up to `num_frames` frames of every stream; EOS or `cancel` may end them earlier.

        All launches, of at most `MAX_STREAMS` streams each, are enqueued here, one after another.
        `forced` and `taps` are as in `FrameDecoder._step`.

        Returns:
            A function that waits for all launches at once; call it before the next launch. It
            returns the drawn frames; the failures are those of the launches and of single streams,
            and have left half a frame in the KV caches of their streams.
        Raises:
            LaunchError: the driver refused the grid, and nothing was started.
        """
        buffers, n = self._buffers, len(streams)
        num_codes = num_frames * buffers.config.talker.num_code_groups
        # Of every stream the frames drawn, whether it has ended, and its codes, then the error word
        # of every launch that is under way: one copy brings all of it to the host.
        result = torch.zeros(
            n * (2 + num_codes) + len(buffers.controls), dtype=torch.int32, device=buffers.device
        )
        place = result.data_ptr()
        if forced is not None:
            forced = forced.to(buffers.device, torch.int32).contiguous()
        for control in self._steps:  # a step may have failed before the caller waited for it
            buffers.controls.give_back(control, is_clean=False)
        self._steps = []
        launches: list[tuple[range, int | QwenTTSError]] = []  # rows, and control block or error
        logits: list[Tensor] = []
        for first in range(0, n, MAX_STREAMS):
            rows = range(first, min(first + MAX_STREAMS, n))
            tapped = None if taps is None else self._room_for_logits(num_frames)
            try:
                control = self._take_control()
                params = self._step_params(streams[first : rows.stop], num_frames, control, tapped)
                params.num_done = place + 4 * first
                params.ended = place + 4 * (n + first)
                params.codes = place + 4 * (2 * n + first * num_codes)
                params.forced = None if forced is None else forced[first:].data_ptr()
                with self._launching(control) as stream:
                    self._library.step(params, self.num_blocks, stream)
                launches.append((rows, control))
                self._steps.append(control)
            except (LaunchError, GenerationError) as error:
                if not launches:
                    raise
                launches.append((rows, error))  # earlier launches are under way
            if tapped is not None:
                logits.append(tapped[:, :, : len(rows)].permute(2, 0, 1, 3))
        result[n * (2 + num_codes) :] = buffers.controls.errors
        downloaded, prompts = download(result), tuple(self._prompts)

        def wait() -> StepResult:
            found = downloaded()
            self._steps = []
            ends, codes, words = found.split([2 * n, n * num_codes, len(buffers.controls)])
            errors = words.tolist()
            self._settle_prompts(prompts, errors)
            if taps is not None:
                whole = torch.cat(logits)  # [n, num_frames, num_code_groups, vocabulary]
                for name, its in (("talker", whole[:, :, 0]), ("predictor", whole[:, :, 1:])):
                    taps[name][:] = its[..., : taps[name].shape[-1]]
            failures: dict[int, QwenTTSError] = {}
            for rows, launch in launches:
                error = self._settle(launch, errors[launch]) if isinstance(launch, int) else launch
                if error:
                    failures |= dict.fromkeys(rows, error)
            counts, ended = ends.view(2, n).tolist()
            for row, end in enumerate(ended):
                if end >= BAD_LOGITS:
                    failures[row] = not_finite(end - BAD_LOGITS)
            drawn = codes.numpy().reshape(n, num_frames, -1)
            for row, count in enumerate(counts):
                drawn[row, count:] = 0
            return StepResult(drawn, tuple(counts), tuple(end == 1 for end in ended), failures)

        return wait

    def _step_params(
        self, streams: Sequence[Stream], num_frames: int, control: int, logits: Tensor | None
    ) -> StepParams:
        buffers = self._buffers
        params = StepParams(
            model=buffers.model,
            slots=buffers.slots,
            workspace=buffers.workspace_of(control),
            num_streams=len(streams),
            num_frames=num_frames,
            timeout_ns=int(self.timeout_seconds * 1e9),
        )
        params.streams[: len(streams)] = streams
        if logits is not None:
            params.workspace.logits = logits.data_ptr()
            params.logits_step = logits.stride(1)
        return params

    def _room_for_logits(self, num_frames: int) -> Tensor:
        """Allocate a place for the logits of every code of a launch, instead of one for all."""
        talker, predictor = self._buffers.config.talker, self._buffers.config.predictor
        shape = (num_frames, talker.num_code_groups, MAX_STREAMS)
        vocab_size = max(talker.vocab_size, predictor.vocab_size)
        return torch.full((*shape, vocab_size), torch.nan, device=self._buffers.device)

    # ---- rows

    def start_prompt(self, owner: Any, slot: int, embeds: Tensor) -> None:
        """Enqueue a prompt; the slot's first frame starts from its last hidden state.

        Args:
            owner: identifies the prompt in `failed_prompts`, which returns it if the prompt failed.
            embeds: [n, hidden_size] float32, contiguous on the device.
        """
        control = self._start_rows(
            self._buffers.prepared[: len(embeds)], embeds, slot=slot, keep_last=True
        )
        self._prompts[control] = owner

    def failed_prompts(self) -> list[tuple[Any, GenerationError]]:
        """Return the owners of prompts that failed since the last call, with their errors."""
        failed, self._failed = self._failed, []
        return failed

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
            slot: the slot whose KV cache is used; the predictor has one for each stream of a
                launch.
            tokens: [n] int32 ids of the codec embedding; -1 takes the row of `embeds` instead.
            embeds: [n, hidden_size], needed if a token is -1.
            first_position: position of row 0 in the cache; earlier positions are filled.
            rope_positions: [3, n] int32 time, height and width positions; None: the cache's.
            num_layers: None: all layers.
            stack: "talker" or "predictor".
            keep_last: the next frame of the slot starts from the last row's hidden state.
        Returns:
            [n, hidden_size] float32 after the final norm.
        Raises:
            UsageError: a position, an id or the number of layers is out of range, or the KV cache
                is too short.
            KernelTimeout, GenerationError: the launch failed; the slot's caches are zero.
        """
        buffers = self._buffers
        config: StackConfig = getattr(buffers.config, stack).stack
        native: Stack = getattr(buffers.model, stack)
        n, layers = len(tokens), config.num_layers if num_layers is None else num_layers
        if n < 1 or not 0 <= first_position <= native.max_positions - n:
            raise UsageError(
                f"Positions {first_position} .. {first_position + n - 1} do not fit a KV cache of "
                f"{native.max_positions} positions."
            )
        if not 1 <= layers <= config.num_layers:
            raise UsageError(f"num_layers is {layers}; the {stack} has {config.num_layers}.")
        vocab_size = buffers.config.talker.vocab_size
        if int(tokens.min()) < -1 or int(tokens.max()) >= vocab_size:
            raise UsageError(f"A token is outside -1 .. {vocab_size - 1}.")
        if embeds is None:
            if int(tokens.min()) < 0:
                raise UsageError("A token is -1, but there are no embeds.")
            embeds = torch.zeros(0)
        else:
            embeds = embeds.to(buffers.device, torch.float32).contiguous()
            check_tensor("embeds", embeds, (n, config.hidden_size), torch.float32)
        tokens = tokens.to(buffers.device, torch.int32).contiguous()
        if rope_positions is not None:
            if int(rope_positions.min()) < 0 or int(rope_positions.max()) >= native.max_positions:
                raise UsageError(f"A rope position is outside 0 .. {native.max_positions - 1}.")
            rope_positions = rope_positions.to(buffers.device, torch.int32).contiguous()
            check_tensor("rope_positions", rope_positions, (3, n), torch.int32)
        hidden = torch.empty((n, config.hidden_size), device=buffers.device)
        try:
            control = self._start_rows(
                tokens,
                embeds,
                slot=slot,
                first_position=first_position,
                num_layers=layers,
                use_predictor=stack == "predictor",
                keep_last=keep_last,
                hidden=hidden.data_ptr(),
                rope_positions=None if rope_positions is None else rope_positions.data_ptr(),
            )
            if error := self._settle(control, int(buffers.controls.errors[control])):
                raise error
        except GenerationError:
            buffers.forget([slot])
            raise
        return hidden

    def _start_rows(self, tokens: Tensor, embeds: Tensor, **options: Any) -> int:
        options = {"num_layers": self._buffers.model.talker.num_layers} | options
        control = self._take_control()
        params = ForwardParams(
            model=self._buffers.model,
            slots=self._buffers.slots,
            workspace=self._buffers.workspace_of(control),
            num_rows=len(tokens),
            tokens=tokens.data_ptr(),
            embeds=embeds.data_ptr(),
            timeout_ns=int(self.timeout_seconds * 1e9),
            **options,
        )
        with self._launching(control) as stream:
            self._library.forward(params, self.num_blocks, stream)
        return control

    # ---- any launch

    @contextlib.contextmanager
    def _launching(self, control: int) -> Iterator[int]:
        """Yield the address of the stream for one launch, after the launches of other decoders.

        If the launch is refused within the block, its control block is freed.
        """
        device = self._buffers.device
        try:
            with current(device), in_order(device) as stream:
                yield stream
        except BaseException:
            self._buffers.controls.give_back(control, is_clean=True)
            raise

    def _take_control(self) -> int:
        """Return a free control block; if prompts hold all of them, wait for these prompts."""
        controls = self._buffers.controls
        if not controls.free:
            self._settle_prompts(tuple(self._prompts), controls.errors.tolist())
        return controls.free.popleft()

    def _settle_prompts(self, prompts: Sequence[int], errors: Sequence[int]) -> None:
        for control in prompts:
            owner = self._prompts.pop(control)
            if error := self._settle(control, errors[control]):
                self._failed.append((owner, error))

    def _settle(self, control: int, error: int) -> GenerationError | None:
        """Free the control block of a launch that has ended; return the error of its error word."""
        self._buffers.controls.give_back(control, is_clean=not error)
        status, layer = error >> 24, error & 0xFFFF
        if not error or status == STATUS_CANCELLED:
            return None
        where = f"in stage {self._library.stage_name(error >> 16 & 0xFF)}, layer {layer}"
        if status == STATUS_TIMEOUT:
            return KernelTimeout(
                f"Grid barrier timed out after {self.timeout_seconds:g} s {where}; this stream "
                "ended with an error.",
                "Later streams run in a new launch.",
            )
        return GenerationError(f"The kernel reported the unknown status {status} {where}.")
