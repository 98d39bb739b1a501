"""The C interface of the kernel's library (csrc/tts_kernel.h), mirrored with ctypes.

`KernelLibrary` compares the sizes of these structs and the model's dimensions with those that the
library reports.
"""

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from operator import attrgetter
from pathlib import Path

import torch
from torch import Tensor

from qwen_megakernel.decoders.kernel.build import KernelSizes
from qwen_megakernel.errors import BuildError, GenerationError, LaunchError, UsageError
from qwen_megakernel.native.compiling import load
from qwen_megakernel.native.structs import SamplingParams, fields

MAX_STREAMS = 16  # for one launch: the size of StepParams.streams

# cudaError_t values that mean "this grid cannot be resident here".
LAUNCH_REFUSED = {720, 801}  # CooperativeLaunchTooLarge, NotSupported


class Control(ctypes.Structure):
    _fields_ = [
        ("arrived", c_uint32),
        ("pad", c_uint32 * 31),
        ("left", c_uint32),
        ("error", c_uint32),
    ]


class Stack(ctypes.Structure):
    _fields_ = [
        *fields(c_void_p, "layers final_norm rope_cos rope_sin keys values"),
        *fields(c_int32, "num_layers num_slots max_positions"),
        *fields(c_int32, "mrope_height_pairs mrope_width_pairs"),
        ("rms_norm_eps", c_float),
    ]


class Model(ctypes.Structure):
    _fields_ = [
        ("talker", Stack),
        ("predictor", Stack),
        *fields(c_void_p, "codec_head lm_heads projection projection_bias"),
        *fields(c_void_p, "frame_table predictor_table"),
        *fields(c_int32, "codec_eos_id suppressed_from min_frames"),
    ]


class SlotBuffers(ctypes.Structure):
    _fields_ = [
        *fields(c_void_p, "hidden codes seen text_rows pad_embed"),
        ("max_text_rows", c_int32),
    ]


class Workspace(ctypes.Structure):
    _fields_ = fields(
        c_void_p,
        "x hidden qkv attention mlp logits attention_partials attention_tickets control cancel "
        "stage_times",
    )


class Stream(ctypes.Structure):
    _fields_ = [
        *fields(c_int32, "slot position frame part num_text_rows"),
        *fields(c_uint32, "seed_low seed_high"),
        ("talker", SamplingParams),
        ("predictor", SamplingParams),
    ]


class StepParams(ctypes.Structure):
    _fields_ = [
        ("model", Model),
        ("slots", SlotBuffers),
        ("workspace", Workspace),
        ("streams", Stream * MAX_STREAMS),
        *fields(c_int32, "num_streams num_frames"),
        *fields(c_void_p, "forced codes num_done ended"),
        ("logits_step", c_int64),
        ("timeout_ns", c_uint64),
    ]


class ForwardParams(ctypes.Structure):
    _fields_ = [
        ("model", Model),
        ("slots", SlotBuffers),
        ("workspace", Workspace),
        *fields(c_int32, "use_predictor num_layers slot first_position"),
        *fields(c_int32, "num_rows keep_last"),
        *fields(c_void_p, "tokens embeds rope_positions hidden"),
        ("timeout_ns", c_uint64),
    ]


class Description(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", c_int32 * 3),
        *fields(c_int32, "max_rows max_forward_rows num_threads max_splits weights_f32"),
        ("max_stage_records", c_int32),
        ("talker", c_int32 * 7),
        ("predictor", c_int32 * 7),
    ]


def check_tensor(name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return `tensor` if the kernel can read it at its address, or raise UsageError with its name.

    It must have this shape and dtype, and be contiguous and 16-byte aligned.
    """
    actual = f"{list(tensor.shape)} {tensor.dtype}".replace("torch.", "")
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
        expected = f"{list(shape)} {dtype}".replace("torch.", "")
        raise UsageError(f"{name} is {actual}; the kernel needs {expected}.")
    if not tensor.is_contiguous() or tensor.data_ptr() % 16:
        raise UsageError(f"{name} ({actual}) must be contiguous and 16-byte aligned.")
    return tensor


class KernelLibrary:
    """One compiled library and its entry points, for the dimensions in `config`.

    Raises:
        BuildError: the library does not load, describes another model, or has other structs.
    """

    def __init__(self, path: Path, config: KernelSizes):
        self._library = load(path)
        self._library.qwen_tts_error_string.restype = ctypes.c_char_p
        self._library.qwen_tts_stage_name.restype = ctypes.c_char_p
        self.description = Description()
        self._library.qwen_tts_describe(ctypes.byref(self.description))
        ours = [ctypes.sizeof(each) for each in (StepParams, ForwardParams, Control)]
        names = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")
        dims = [
            [*attrgetter(*names)(part.stack), part.vocab_size, config.talker.num_code_groups]
            for part in (config.talker, config.predictor)
        ]
        theirs = [list(self.description.talker), list(self.description.predictor)]
        if list(self.description.struct_bytes) != ours or theirs != dims:
            raise BuildError(
                f"{path} was built from other sources or for another model.",
                f"Its structs have {list(self.description.struct_bytes)} bytes, ours {ours}; its "
                f"dimensions are {theirs}, the model's {dims}.",
                f"Remove {path.parent}; the next run compiles it again.",
            )

    def max_blocks(self) -> int:
        """Return how many blocks can be resident on the current device, or raise LaunchError.

        Call it once for each device before the first launch there: it also prepares the device.
        """
        count = c_int32()
        self._check(self._library.qwen_tts_max_blocks(ctypes.byref(count)), 1)
        return count.value

    def step(self, params: StepParams, num_blocks: int, stream: int) -> None:
        launch = self._library.qwen_tts_step
        self._check(launch(ctypes.byref(params), num_blocks, c_void_p(stream)), num_blocks)

    def forward(self, params: ForwardParams, num_blocks: int, stream: int) -> None:
        launch = self._library.qwen_tts_forward
        self._check(launch(ctypes.byref(params), num_blocks, c_void_p(stream)), num_blocks)

    def _check(self, error: int, num_blocks: int) -> None:
        if not error:
            return
        text = self._library.qwen_tts_error_string(error).decode()
        if error in LAUNCH_REFUSED:
            blocks = f"{num_blocks} block{'s' * (num_blocks > 1)}"
            raise LaunchError(
                f"The cooperative grid ({blocks}) was refused: another process, MIG or MPS holds "
                "the SMs, or the driver does not support such launches.",
                f"CUDA error {error}: {text}.",
                "Use --backend graph.",
            )
        raise GenerationError(f"The kernel could not be launched (CUDA error {error}: {text}).")

    def stage_name(self, stage: int) -> str:
        """Return the name of a stage in the table of csrc/README.md."""
        return self._library.qwen_tts_stage_name(stage).decode()
