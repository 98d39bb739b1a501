"""The choice of a decoder that this machine can run, and of its replacement if it cannot start."""

import contextlib
import gc
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.choices import BACKENDS, DTYPES_BY_PART, WEIGHTS
from qwen_megakernel.decoders import quantization
from qwen_megakernel.decoders.frame_decoder import FrameDecoder
from qwen_megakernel.decoders.kernel.build import MIN_CAPABILITY
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.decoders.weights import QuantizedModel
from qwen_megakernel.errors import (
    GenerationError,
    ModelFilesError,
    OutOfMemory,
    QwenTTSError,
    SetupError,
    UnsupportedModel,
    UsageError,
    check_choice,
    check_counts,
)
from qwen_megakernel.gpu.driver import find_device, no_gpu, too_old
from qwen_megakernel.printable import get_logger

logger = get_logger(__name__)

# Positions reserved for prompts beside `max_frames`: a reference of 60 s is 750 frames, and its
# transcript and a part of text are some 270 rows more.
MAX_PROMPT_POSITIONS = 1024

# Up to this number of slots `auto` chooses the kernel, which runs 16 streams in a launch; for more
# it chooses the graphs, which decode all at once. On an H200, 32 take the same time on both.
KERNEL_SLOTS = 32

MIN_MACOS = 15  # the first version whose Core ML models can have states

# Backends on which talker and code predictor must have the same dtype, and the reason.
_ONE_DTYPE = {
    "kernel": "is one program, compiled for one kind of weights",
    "emulation": "runs the kernel, which is compiled for one kind of weights",
    "cpu": "computes in float32, whatever the weights are stored in",
    "coreml": "computes in float16",
}


@dataclass(frozen=True, slots=True)
class Backend:
    """The decoder that runs, its device, and the reason for the choice."""

    name: str  # kernel | graph | cpu | torch | emulation | coreml
    device: torch.device
    why: str
    may_change: bool = False  # "auto" chose it, so another one replaces it if it cannot start


def choose_backend(
    requested: str,
    device: str | torch.device | None = None,
    weights: str | None = None,
    dtype: str | torch.dtype | None = None,
) -> Backend:
    """Choose the decoder, with the reason for it, before any weight is read.

    Args:
        requested: one of `BACKENDS`; a name other than "auto" never falls back to another.
        device: "cpu", "cuda", "cuda:1"; None picks a GPU if the backend can use one.
        weights: one of `WEIGHTS`; None: as the checkpoint stores them.
        dtype: as `TTSEngine` takes it; one of `DTYPES_BY_PART` limits the choice.
    Raises:
        UsageError: the backend or the weights are unknown, or the backend cannot use the device or
            the dtype.
        SetupError: "coreml" was requested, and this machine is not a Mac with macOS 15.
        NoGPUError, DriverError: the kernel, or a CUDA device, was requested and torch sees no GPU.
    """
    check_choice("backend", requested, BACKENDS)
    if weights is not None:
        check_choice("weights", weights, WEIGHTS)
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
    if requested != "auto":
        chosen = Backend(requested, wanted, "requested")
    elif by_part:
        name = "graph" if wanted.type == "cuda" else "torch"
        chosen = Backend(name, wanted, "talker and code predictor have dtypes of their own")
    elif wanted.type == "cuda":
        chosen = _choose_on_gpu(wanted)
    else:
        why = "no GPU is visible" if not has_gpu else "device cpu was requested"
        if device is None and (error := too_old()):
            logger.warning("%s", error)
            why = error.what
        chosen = Backend("cpu", wanted, why, may_change=True)
    quantization.check_weights(weights, chosen.name)
    return chosen


def _choose_on_gpu(device: torch.device) -> Backend:
    """Choose the kernel, or the graphs if this GPU cannot run it."""
    from qwen_megakernel.decoders.kernel.loading import check_device

    try:
        check_device(device)
    except SetupError as error:
        return without_kernel(device, error)
    why = f"{torch.cuda.get_device_name(device)} runs the kernel"
    return Backend("kernel", device, why, may_change=True)


def check_form(checkpoint: Checkpoint, backend: str, weights: str | None) -> str | None:
    """Return the form of the weights that a backend reads; raise an error if it cannot.

    Args:
        checkpoint: its matrices may be stored packed, in a form of their own.
        weights: the form that the user wants; None: as the checkpoint stores them.
    """
    form, name = checkpoint.form, checkpoint.files.name
    if form is None:
        return weights
    if backend != "cpu":
        raise UsageError(
            f"{name} was converted for the native CPU decoder; backend {backend} cannot read it.",
            hint=f"Use backend cpu, or the model that it was converted from, {form.source}.",
        )
    if weights not in (None, form.weights):
        raise UsageError(
            f"weights is {weights!r}; {name} was converted "
            + (f"to {form.weights!r}." if form.weights else "with the weights as they were."),
            hint=f"Leave weights out, or convert {form.source} once more.",
        )
    from qwen_megakernel.decoders.cpu.packing import packed_names

    if form.parts != {each.name: list(each.parts) for each in packed_names(checkpoint.config)}:
        raise ModelFilesError(
            f"The packed matrices of {name} are not those of its config.",
            hint=f"Convert {form.source} once more.",
        )
    return form.weights


def has_core_ml() -> bool:
    version = platform.mac_ver()[0]
    return bool(version) and int(version.split(".")[0]) >= MIN_MACOS


def without_kernel(device: torch.device, error: QwenTTSError) -> Backend:
    """Log why the kernel cannot be built or started; return the backend that replaces it."""
    logger.warning("%s", error)
    return Backend("graph", device, f"the kernel cannot run here: {error.what}")


def default_dtype(checkpoint: Checkpoint, backend: Backend) -> torch.dtype:
    """Return the dtype in which a backend computes if the user names none.

    The native CPU decoder computes in float32. Core ML computes in float16, the only format of
    Apple's Neural Engine. The others compute in bf16 on a GPU that has it, and on a CPU if the
    weights are too large for its caches: PyTorch reads every weight once in each pass, so a large
    checkpoint is faster in half the bytes, while the overhead of calls limits a small one.
    """
    if backend.name in ("cpu", "coreml"):
        return torch.float32 if backend.name == "cpu" else torch.float16
    stored = checkpoint.talker["codec_head.weight"].dtype
    if backend.device.type == "cuda":
        return gpu_dtype(backend.device)
    num_weights = sum(
        weight.numel() for name, weight in checkpoint.talker.items() if ".layers." in name
    )
    large = num_weights > 64e6
    return torch.bfloat16 if large and stored == torch.bfloat16 else torch.float32


def gpu_dtype(device: torch.device) -> torch.dtype:
    """Return bf16 for a GPU that has it, and otherwise float32, which `ArchError` announces."""
    has_bf16 = torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
    return torch.bfloat16 if has_bf16 else torch.float32


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
    """Make the decoder of a backend, or of another backend if this one cannot start.

    Args:
        max_frames: maximum number of frames of one part of an utterance.
        dtype: dtype of the computation; None: `default_dtype`.
        predictor_dtype: dtype of the code predictor; None: dtype.
        weights: one of `WEIGHTS`; None: as the checkpoint stores them.
        num_threads: threads of the native CPU decoder; None: chosen by model size and cores.
    Returns:
        The decoder, and its backend, which may differ from `backend`.
    Raises:
        UsageError: a size is below 1, or the frames do not fit the model's positions.
        SetupError, UnsupportedModel: the user named the backend, and it cannot run here.
        OutOfMemory: the model or the slots do not fit. No other backend replaces this one then:
            fewer slots or smaller weights solve it, and slow speech would hide it.
    """
    check_counts(num_slots=num_slots, max_frames=max_frames)
    num_slots, max_frames = int(num_slots), int(max_frames)
    limit = checkpoint.config.talker.stack.max_positions
    if MAX_PROMPT_POSITIONS + max_frames > limit:
        raise UsageError(
            f"max_frames is {max_frames}; this model has {limit} positions, of which "
            f"{MAX_PROMPT_POSITIONS} are reserved for prompts.",
            hint=f"Set max_frames to {limit - MAX_PROMPT_POSITIONS} or less.",
        )
    if backend.name == "cpu" and backend.may_change and dtype not in (None, torch.float32):
        why = f"{backend.why}; in {dtype} only PyTorch computes on a CPU"
        backend = Backend("torch", backend.device, why)
    if backend.name == "kernel" and backend.may_change and num_slots > KERNEL_SLOTS:
        why = f"{num_slots} slots, more than {KERNEL_SLOTS}: graphs decode all of them at once"
        backend = Backend("graph", backend.device, why)
    sizes = DecoderSizes(
        num_slots=num_slots,
        max_positions=MAX_PROMPT_POSITIONS + max_frames,
        device=backend.device,
        dtype=dtype or default_dtype(checkpoint, backend),
        max_frames=max_frames,
        predictor_dtype=predictor_dtype,
    )
    decoder: FrameDecoder | None = None
    try:
        decoder = make_decoder(checkpoint, backend, sizes, weights, num_threads)
        if backend.may_change and backend.name != "cpu":
            _try_a_launch(decoder)
    except (SetupError, UnsupportedModel, GenerationError) as error:
        if not backend.may_change or checkpoint.form:
            raise
        if backend.name == "cpu":
            logger.warning("%s PyTorch decodes instead, which takes 3 to 10 times as long.", error)
            why = f"{backend.why}; no native code, see the warning"
            backend = Backend("torch", backend.device, why)
            sizes = replace(sizes, dtype=default_dtype(checkpoint, backend))
        else:
            backend = without_kernel(backend.device, error)
        decoder = None
    if decoder is None:
        gc.collect()  # the error's traceback may hold the first decoder, which fills the GPU
        decoder = make_decoder(checkpoint, backend, sizes, weights)
    if decoder.instruction_set:
        backend = replace(backend, why=f"{backend.why}; {decoder.instruction_set}")
    if checkpoint.form:
        kind = f"{checkpoint.form.weights} weights" if checkpoint.form.weights else "weights"
        backend = replace(backend, why=f"{backend.why}; {kind} mapped from the file")
    return decoder, backend


def make_decoder(
    checkpoint: Checkpoint,
    backend: Backend,
    sizes: DecoderSizes,
    weights: str | None = None,
    num_threads: int | None = None,
) -> FrameDecoder:
    """Make the decoder of exactly this backend, of any sizes; no other backend replaces it."""
    kind: Callable[..., FrameDecoder]
    weights = check_form(checkpoint, backend.name, weights)
    options: dict[str, Any] = {}
    model: Any = checkpoint  # a DecoderModel; Core ML takes the whole checkpoint
    if backend.name == "coreml":  # this backend quantises the weights itself
        options["weights"] = weights
    elif weights:
        # The CPU decoder packs each matrix once it is rounded, and needs no second copy of all.
        rounded = quantization.RoundedWeights.of if backend.name == "cpu" else quantization.quantize
        talker = rounded(checkpoint.talker, weights, in_groups=backend.name == "cpu")
        model = QuantizedModel(checkpoint.config, talker)
        del talker
    if backend.name == "torch":
        from qwen_megakernel.decoders.plain import PlainDecoder

        kind = PlainDecoder
    elif backend.name == "graph":
        from qwen_megakernel.decoders.graph.decoder import GraphDecoder

        kind = GraphDecoder
    elif backend.name == "cpu":
        from qwen_megakernel.decoders.cpu.decoder import CpuDecoder

        kind = CpuDecoder
        options["num_threads"] = num_threads
    elif backend.name == "coreml":
        from qwen_megakernel.decoders.coreml.decoder import CoreMLDecoder

        kind = CoreMLDecoder
    else:
        from qwen_megakernel.decoders.kernel.decoder import KernelDecoder

        kind = KernelDecoder
    with memory_for(
        f"The model and {sizes.num_slots} slots of {sizes.max_positions} positions",
        hint="Use the 0.6B model, fewer slots, or a smaller max_frames.",
    ):
        decoder = kind(model, sizes, **options)
    if backend.name == "cpu":
        from qwen_megakernel.native.cpu_library import return_free_memory

        return_free_memory()
    return decoder


@contextlib.contextmanager
def memory_for(what: str, *, hint: str) -> Iterator[None]:
    """Raise `OutOfMemory`, with a hint, if the GPU's memory does not suffice for the block."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise OutOfMemory(f"{what} do not fit: {error}.", hint=hint) from error


def _try_a_launch(decoder: Any) -> None:
    """Run one layer of the kernel: only a launch shows whether MIG or MPS admits its grid.

    It writes position 0 of slot 0, which no stream holds yet.
    """
    decoder.forward(0, torch.zeros(1, dtype=torch.int32), first_position=0, num_layers=1)
