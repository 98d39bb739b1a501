"""A checkpoint's weights in the layout that csrc/weights.cuh and csrc/layer.cuh read.

A matrix is cut into tiles of 8 rows x 64 columns, stored row of tiles by row of tiles; columns that
fill up the last tile are zero. A tile is cut into pieces of 16 bytes, one for each lane of a warp,
then the next one for each lane: of bf16, lane 4g+t has the eight columns 8t .. of row g, then the
eight columns 32 + 8t ..; of int8 both in one piece; of float32 the four columns 4t .., 16 + 4t ..,
32 + 4t .. and 48 + 4t ... A layer is one run: four matrices, behind them the scales of all their
rows if they are int8, the norm vectors, and the bias of q, k and v where the model has one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig, StackConfig
from qwen_megakernel.decoders.int8 import Int8Matrix

TILE_ROWS = 8
TILE_COLS = 64
PIECE_BYTES = 16
# A register holds four columns of int8 as magnitudes and signs: byte i the magnitude of column
# INT8_MAGNITUDES[i] and, above it, the sign of column INT8_SIGNS[i]. With a mask the columns 0 and
# 1 are then two bf16, with a rotation and a mask the columns 2 and 3.
INT8_MAGNITUDES, INT8_SIGNS = [0, 3, 1, 2], [2, 0, 3, 1]
INT8_UNIT = 2.0**-6  # what the kernel makes of an int8 of 1 (csrc/common.cuh, widen_int8)


def pack(weight: Tensor) -> Tensor:
    """[num_rows, num_cols] -> [num_rows * num_cols, filled up] in tile order.

    num_rows must be a multiple of 8 (`build.check_config`).
    """
    piece = PIECE_BYTES // weight.itemsize
    tiles = F.pad(weight, (0, -weight.shape[1] % TILE_COLS))
    tiles = tiles.unflatten(1, (-1, TILE_COLS // (4 * piece), 4 * piece))
    return tiles.unflatten(0, (-1, TILE_ROWS)).permute(0, 2, 3, 1, 4).reshape(-1)


def pack_int8(values: Tensor) -> Tensor:
    """[num_rows, num_cols] int8 -> the bytes of its tiles in order.

    num_rows must be a multiple of 8; -128 has no magnitude here (`int8.LARGEST`).
    """
    values = F.pad(values, (0, -values.shape[1] % TILE_COLS)).unflatten(1, (-1, 4))
    magnitudes = values.abs().view(torch.uint8)[..., INT8_MAGNITUDES]
    signs = (values < 0).to(torch.uint8)[..., INT8_SIGNS]
    # A piece has eight columns of the left half of a tile and eight of the right one.
    halves = (2, 4, PIECE_BYTES // 2)
    tiles = (magnitudes | signs << 7).reshape(len(values) // TILE_ROWS, TILE_ROWS, -1, *halves)
    return tiles.permute(0, 2, 1, 4, 3, 5).reshape(-1)


def pack_scales(scales: Tensor) -> Tensor:
    """[num_rows] float32 of an `Int8Matrix`, in the kernel's unit; a power of two, so exact."""
    return scales / INT8_UNIT


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """[n, ...], [n, ...] -> [2n, ...]: rows gate 0, up 0, gate 1, up 1, ...

    One thread of the kernel then holds both factors of a SwiGLU element.
    """
    return torch.stack((gate, up), dim=1).flatten(0, 1)


def pack_stack(
    weights: dict[str, Tensor | Int8Matrix],
    prefix: str,
    config: StackConfig,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """[num_layers, layer size] of `prefix`'s layers, converted layer by layer to save memory.

    In `dtype`; bytes where the matrices are int8.
    """

    def layer(index: int) -> Tensor:
        def load(name: str, kind: str = "weight") -> Tensor | Int8Matrix:
            weight = weights[f"{prefix}layers.{index}.{name}.{kind}"]
            # Scales keep their precision: they are not multiplied on tensor cores.
            is_int8 = isinstance(weight, Int8Matrix)
            return weight.to(device=device, dtype=torch.float32 if is_int8 else dtype)

        q, k, v, o = (load(f"self_attn.{name}_proj") for name in "qkvo")
        gate, up, down = (load(f"mlp.{name}_proj") for name in ("gate", "up", "down"))
        vectors = [load("input_layernorm"), load("post_attention_layernorm")]
        if config.qk_norm:
            vectors += [load("self_attn.q_norm"), load("self_attn.k_norm")]
        if config.qkv_bias:
            vectors += [load(f"self_attn.{name}_proj", "bias") for name in "qkv"]
        if not isinstance(q, Int8Matrix):
            matrices = (torch.cat((q, k, v)), o, interleave(gate, up), down)
            return torch.cat([*(pack(m) for m in matrices), *vectors])
        gate_up = Int8Matrix(interleave(gate.values, up.values), interleave(gate.scales, up.scales))
        matrices = (Int8Matrix.cat([q, k, v]), o, gate_up, down)
        parts = (
            [pack_int8(m.values) for m in matrices]
            + [pack_scales(m.scales) for m in matrices]
            + vectors
        )
        return torch.cat([part.view(torch.uint8) for part in parts])

    first = layer(0)
    packed = torch.empty((config.num_layers, first.numel()), device=device, dtype=first.dtype)
    packed[0] = first
    for index in range(1, config.num_layers):
        packed[index] = layer(index)
    return packed


def pack_lm_heads(
    weights: dict[str, Tensor], config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """[num_code_groups - 1, vocab_size * hidden_size] of the predictor's heads."""
    names = [
        f"code_predictor.lm_head.{group}.weight"
        for group in range(config.talker.num_code_groups - 1)
    ]
    return torch.stack([pack(weights[name].to(device=device, dtype=dtype)) for name in names])


def project_table(table: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`small_to_mtp_projection` of every embedding row, once, instead of once for every code."""
    return F.linear(table.float(), weight.float(), bias.float()).to(table.dtype)


def rope_tables(
    config: StackConfig, num_positions: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin [num_positions, head_dim / 2] float32 of position * inverse frequency."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    inv_freq = 1.0 / config.rope_theta**exponents
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inv_freq
    return angles.cos().to(device), angles.sin().to(device)
