"""Drives csrc/probes.cu: every stage alone, on host memory, under emulation."""

import ctypes
from ctypes import c_int32, c_uint32, c_uint64, c_void_p
from typing import Any

import torch
from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.decoders.kernel.library import Stack, Workspace
from qwen_megakernel.decoders.layers import rope_tables
from qwen_megakernel.native.structs import SamplingParams, fields


class MatvecProbe(ctypes.Structure):
    _fields_ = [
        *fields(c_void_p, "packed scales x norm_weight y"),
        *fields(c_int32, "num_rows num_passes"),
    ]


class NormRopeProbe(ctypes.Structure):
    _fields_ = [
        ("stack", Stack),
        *fields(c_void_p, "out heads weight normed_row row row_weight"),
        ("num_heads", c_int32),
        ("positions", c_int32 * 3),
    ]


class AttentionProbe(ctypes.Structure):
    _fields_ = [
        ("stack", Stack),
        ("workspace", Workspace),
        ("head_norms", c_void_p),
        *((name, c_int32 * 16) for name in ("slots", "positions", "first_rows")),
        ("num_rows", c_int32),
    ]


class SamplingProbe(ctypes.Structure):
    _fields_ = [
        *fields(c_void_p, "logits seen tokens noise"),
        ("params", SamplingParams),
        *fields(c_int32, "vocab num_draws suppressed_from eos eos_banned"),
        *fields(c_uint32, "seed_low seed_high part codebook"),
    ]


class BarrierProbe(ctypes.Structure):
    _fields_ = [
        *fields(c_void_p, "control board errors synced"),
        *fields(c_int32, "num_rounds absent_block reporting_block pad"),
        ("timeout_ns", c_uint64),
    ]


class Probes:
    """The probe library of one model shape. Tensors stay alive for as long as this object."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float32):
        self.config, self.dtype = config, dtype
        # Built for matrices of both kinds; the caller says whether one is int8.
        precision = str(dtype).removeprefix("torch.")
        target = build.Target(None, precision, int8=("talker",), probes=True)
        self.library = ctypes.CDLL(str(build.build(config, target)))
        self._alive: list[Tensor] = []

    def address(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        assert tensor.is_contiguous() and tensor.data_ptr() % 16 == 0
        self._alive.append(tensor)
        return tensor.data_ptr()

    def launch(self, name: str, params: Any, *blocks: int) -> int:
        return getattr(self.library, f"probe_{name}")(ctypes.byref(params), *blocks)

    def stack(
        self, keys: Tensor | None = None, values: Tensor | None = None, name: str = "talker"
    ) -> Stack:
        """Return rope tables and, if given, caches [slots, kv heads, positions, dim]."""
        config = getattr(self.config, name).stack
        max_positions = config.max_positions if keys is None else keys.shape[2]
        cos, sin = rope_tables(config, max_positions)
        _, height_pairs, width_pairs = config.mrope_section or (0, 0, 0)
        return Stack(
            rope_cos=self.address(cos),
            rope_sin=self.address(sin),
            keys=self.address(keys),
            values=self.address(values),
            num_slots=0 if keys is None else len(keys),
            max_positions=max_positions,
            mrope_height_pairs=height_pairs,
            mrope_width_pairs=width_pairs,
            rms_norm_eps=config.rms_norm_eps,
        )


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def with_poisoned_tail(tensor: Tensor) -> Tensor:
    """Return the values followed by NaNs (int8: large values), which show a read past the end."""
    poison = torch.nan if tensor.is_floating_point() else 127
    padded = torch.full((tensor.numel() + 1024,), poison, dtype=tensor.dtype)
    padded[: tensor.numel()] = tensor.flatten()
    return padded
