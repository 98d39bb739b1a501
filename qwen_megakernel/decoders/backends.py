"""The choice of a decoder: what this machine can run, and what replaces it where it fails."""

import contextlib
import logging
import platform
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.choices import BACKENDS, DTYPES_BY_PART, WEIGHTS
from qwen_megakernel.decoders import int8
from qwen_megakernel.decoders.frame_decoder import FrameDecoder
from qwen_megakernel.decoders.kernel.build import MIN_CAPABILITY
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import (
    GenerationError,
    OutOfMemory,
    QwenTTSError,
    SetupError,
    UnsupportedModel,
    UsageError,
)
from qwen_megakernel.gpu.driver import find_device, no_gpu, too_old
from qwen_megakernel.records import plain_number

logger = logging.getLogger(__name__)

# Positions kept for prompts beside `max_frames`: a 60 s reference is 750 frames, its transcript and
# a part of text are some 270 rows more.
MAX_PROMPT_POSITIONS = 1024

MIN_MACOS = 15  # of coreml, whose models have states

# Why talker and code predictor have one dtype there.
_ONE_DTYPE = {
    "kernel": "is one program, compiled for one kind of weights",
    "emulation": "runs the kernel, which is compiled for one kind of weights",
    "cpu": "computes in float32, whatever the weights are stored in",
    "coreml": "computes in float16",
}


@dataclass(frozen=True, slots=True)
class Backend:
    """Which decoder runs, where, and why it was chosen."""

    name: str  # kernel | graph | cpu | torch | emulation | coreml
    device: torch.device
    why: str
    may_change: bool = False  # "auto" chose it: what fails while it is built is replaced


def choose_backend(
    requested: str,
    device: str | torch.device | None = None,
    weights: str | None = None,
    dtype: str | torch.dtype | None = None,
) -> Backend:
    """Pick the decoder before any weight is read.

    Args:
        requested: one of `BACKENDS`; an explicit name never falls back to another.
        device: "cpu", "cuda", "cuda:1"; None picks a GPU where the backend can use one.
        weights: one of `WEIGHTS`; None: as the checkpoint stores them.
        dtype: as `TTSEngine` takes it; one of `DTYPES_BY_PART` limits the choice.
    Raises:
        UsageError: unknown backend or weights, or a device or dtype the backend cannot use.
        NoGPUError, DriverError: the kernel, or a CUDA device, was demanded and torch sees no GPU.
    """
    if requested not in BACKENDS:
        raise UsageError(f"backend is {requested!r}; known: {', '.join(BACKENDS)}.")
    if weights not in (None, *WEIGHTS):
        raise UsageError(f"weights is {weights!r}; known: {', '.join(WEIGHTS)}.")
    has_gpu = torch.cuda.is_available()
    if requested == "kernel" and not has_gpu:
        raise no_gpu("--backend kernel")
    if requested == "coreml" and not has_core_ml():
        raise SetupError(
            f"--backend coreml needs macOS {MIN_MACOS}; this is {platform.platform()}.",
            hint="Convert here with `qwen-megakernel export coreml`, and run it on a Mac.",
        )
    is_of_cpu = requested in ("cpu", "emulation", "coreml")
    wanted = find_device("cpu" if is_of_cpu and device is None else device)
    if (requested, wanted.type) == ("kernel", "cpu") or (is_of_cpu and wanted.type == "cuda"):
        raise UsageError(f"backend {requested} does not run on device {wanted}.")
    by_part = dtype in DTYPES_BY_PART
    if by_part and requested in _ONE_DTYPE:
        raise UsageError(
            f"dtype is {dtype!r}; backend {requested} {_ONE_DTYPE[requested]}.",
            hint="Use backend torch or graph.",
        )
    if requested == "auto" and by_part:
        name = "graph" if wanted.type == "cuda" else "torch"
        return Backend(name, wanted, "talker and code predictor have dtypes of their own")
    if requested != "auto":
        int8.check_weights(weights, requested)
        return Backend(requested, wanted, "asked for")
    if wanted.type == "cpu":
        why = "no GPU is visible" if not has_gpu else "device cpu was asked for"
        if device is None and (error := too_old()):
            logger.warning("%s", error)
            why = error.what
        return Backend("cpu", wanted, why, may_change=True)
    try:
        from qwen_megakernel.decoders.kernel.decoder import check_device

        check_device(wanted)
    except SetupError as error:
        return without_kernel(wanted, error)
    int8.check_weights(weights, "kernel")
    why = f"{torch.cuda.get_device_name(wanted)} runs the kernel"
    return Backend("kernel", wanted, why, may_change=True)


def has_core_ml() -> bool:
    """Whether this machine runs Core ML models that have states."""
    version = platform.mac_ver()[0]
    return bool(version) and int(version.split(".")[0]) >= MIN_MACOS


def without_kernel(device: torch.device, error: QwenTTSError) -> Backend:
    """What `auto` takes on a GPU where the kernel cannot be built or started."""
    logger.warning("%s", error)
    return Backend("graph", device, f"the kernel cannot run here: {error.what}")


def without_native_code(backend: Backend, error: QwenTTSError) -> Backend:
    """What `auto` takes on a CPU where the native decoder cannot be built or run the model."""
    logger.warning("%s Decoding by PyTorch instead, which takes 3 to 10 times as long.", error)
    return Backend("torch", backend.device, f"{backend.why}; no native code: {error.what}")


def default_dtype(checkpoint: Checkpoint, backend: Backend) -> torch.dtype:
    """What a backend computes in unless it is told.

    The native CPU decoder computes in float32, Core ML in float16, without which nothing runs on
    Apple's Neural Engine. Elsewhere it is bf16 on a GPU that computes in it, and on a CPU only
    where weights are too large for its caches: PyTorch reads every weight once a pass, so a large
    checkpoint is faster in half the bytes, while a small one is bound by the overhead of calls.
    """
    if backend.name in ("cpu", "coreml"):
        return torch.float32 if backend.name == "cpu" else torch.float16
    stored = checkpoint.talker["codec_head.weight"].dtype
    if backend.device.type == "cuda":
        # Before sm_80 bf16 is emulated: what `ArchError` announces there is float32.
        has_bf16 = torch.cuda.get_device_capability(backend.device) >= MIN_CAPABILITY
        return torch.bfloat16 if has_bf16 else torch.float32
    num_weights = sum(
        weight.numel() for name, weight in checkpoint.talker.items() if ".layers." in name
    )
    large = num_weights > 64e6
    return torch.bfloat16 if large and stored == torch.bfloat16 else torch.float32


def load_decoder(
    checkpoint: Checkpoint,
    backend: Backend,
    *,
    num_slots: int = 1,
    max_frames: int = 1000,
    dtype: torch.dtype | None = None,
    predictor_dtype: torch.dtype | None = None,
    weights: str | None = None,
    num_threads: int | None = None,
) -> tuple[FrameDecoder, Backend]:
    """Make the decoder of a backend, or of the one that replaces it where it cannot start.

    Args:
        checkpoint: weights and config.
        backend: from `choose_backend`.
        num_slots: streams that can be open at once.
        max_frames: frames one part of an utterance may have.
        dtype: None picks `default_dtype`, or what suits Core ML.
        predictor_dtype: of the code predictor; None: dtype.
        weights: one of `WEIGHTS`; None: as the checkpoint stores them.
        num_threads: of the native CPU decoder; None: by the model's size and the cores.
    Returns:
        The decoder, and the backend that it is in the end.
    Raises:
        UsageError: the sizes can never work.
        SetupError, UnsupportedModel: the backend, which was asked for, cannot run here.
        OutOfMemory: the model or the slots do not fit. Nothing replaces a backend for that: fewer
            slots or smaller weights hint it, and another decoder would hide it behind slow speech.
    """
    num_slots = plain_number(int, "num_slots", num_slots)
    max_frames = plain_number(int, "max_frames", max_frames)
    if num_slots < 1 or max_frames < 1:
        raise UsageError(f"num_slots is {num_slots}, max_frames {max_frames}; need 1 or more.")
    limit = checkpoint.config.talker.stack.max_positions
    if MAX_PROMPT_POSITIONS + max_frames > limit:
        raise UsageError(
            f"max_frames is {max_frames}; this model has {limit} positions, of which "
            f"{MAX_PROMPT_POSITIONS} are kept for prompts.",
            hint=f"Set max_frames to {limit - MAX_PROMPT_POSITIONS} or less.",
        )
    if backend.name == "cpu" and backend.may_change and dtype not in (None, torch.float32):
        why = f"{backend.why}; in {dtype} only PyTorch computes on a CPU"
        backend = Backend("torch", backend.device, why)
    sizes = DecoderSizes(
        num_slots=num_slots,
        max_positions=MAX_PROMPT_POSITIONS + max_frames,
        max_text_rows=max_frames,
        device=backend.device,
        dtype=dtype or default_dtype(checkpoint, backend),
        max_frames=max_frames,
        predictor_dtype=predictor_dtype,
    )
    try:
        decoder = make_decoder(checkpoint, backend, sizes, weights, num_threads)
        if backend.may_change and backend.name != "cpu":
            _try_a_launch(decoder)
    except (SetupError, UnsupportedModel, GenerationError) as error:
        if not backend.may_change:
            raise
        if backend.name == "cpu":
            backend = without_native_code(backend, error)
            sizes = replace(sizes, dtype=default_dtype(checkpoint, backend))
        else:
            backend = without_kernel(backend.device, error)
        decoder = make_decoder(checkpoint, backend, sizes, weights)
    if backend.name == "cpu":
        backend = replace(backend, why=f"{backend.why}; {decoder.instruction_set}")
    return decoder, backend


def make_decoder(
    checkpoint: Checkpoint,
    backend: Backend,
    sizes: DecoderSizes,
    weights: str | None = None,
    num_threads: int | None = None,
) -> FrameDecoder:
    """The decoder of exactly this backend, of any sizes."""
    options: dict[str, Any] = {}
    if backend.name == "coreml":  # which has 8-bit weights of its own
        options["weights"] = weights
    elif weights:
        talker = int8.quantize(checkpoint.talker, weights, in_groups=backend.name == "cpu")
        checkpoint = replace(checkpoint, talker=talker)
    if backend.name == "torch":
        from qwen_megakernel.decoders.plain import PlainDecoder as Decoder
    elif backend.name == "graph":
        from qwen_megakernel.decoders.graph.decoder import GraphDecoder as Decoder
    elif backend.name == "cpu":
        from qwen_megakernel.decoders.cpu.decoder import CpuDecoder as Decoder

        options["num_threads"] = num_threads
    elif backend.name == "coreml":
        from qwen_megakernel.decoders.coreml.decoder import CoreMLDecoder as Decoder
    else:
        from qwen_megakernel.decoders.kernel.decoder import KernelDecoder as Decoder
    with memory_for(
        f"The model and {sizes.num_slots} slots of {sizes.max_positions} positions",
        hint="Use the 0.6B model, fewer slots, or a smaller max_frames.",
    ):
        decoder = Decoder(checkpoint, sizes, **options)
    if backend.name == "cpu":
        from qwen_megakernel.native.cpu_library import return_free_memory

        checkpoint = talker = None  # the packed weights are a copy
        return_free_memory()
    return decoder


@contextlib.contextmanager
def memory_for(what: str, *, hint: str) -> Iterator[None]:
    """Raise `OutOfMemory`, with a hint, where the GPU has no memory for what the block makes."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise OutOfMemory(f"{what} do not fit: {error}.", hint=hint) from error


def _try_a_launch(decoder: Any) -> None:
    """Run one layer of the kernel: whether a cooperative grid is let in shows only then (MIG, MPS).

    It writes position 0 of slot 0, which no stream has yet.
    """
    decoder.forward(0, torch.zeros(1, dtype=torch.int32), first_position=0, num_layers=1)
