"""A checkpoint's weights in the layout that csrc/weights.cuh and csrc/layer.cuh read.

A matrix is cut into tiles of 8 rows x 64 columns, stored row of tiles by row of tiles; columns that
fill up the last tile are zero. A tile is cut into pieces of 16 bytes, one for each lane of a warp,
then the next one for each lane: in bf16, lane 4g+t has the eight columns 8t .. of row g, then the
eight columns 32 + 8t ..; in int8 both in one piece; in float32 the four columns 4t .., 16 + 4t ..,
32 + 4t .. and 48 + 4t ... A layer is contiguous: four matrices, then the scales of all their rows
if they are int8, the norm vectors, and the bias of q, k and v if the model has one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.config import StackConfig
from qwen_megakernel.checkpoint.weight_reader import WeightReader
from qwen_megakernel.decoders import quantization
from qwen_megakernel.decoders.quantization import Matrix, QuantizedMatrix

TILE_ROWS = 8
TILE_COLS = 64
PIECE_BYTES = 16
# A register holds four columns of int8 as magnitudes and signs: byte i the magnitude of column
# INT8_MAGNITUDES[i] and, above it, the sign of column INT8_SIGNS[i]. A mask makes two bf16 of the
# columns 0 and 1, a rotation and a mask of the columns 2 and 3.
INT8_MAGNITUDES, INT8_SIGNS = [0, 3, 1, 2], [2, 0, 3, 1]
INT8_UNIT = 2.0**-6  # the kernel's value of an int8 of 1 (csrc/common.cuh, widen_int8)


def pack(weight: Tensor) -> Tensor:
    """Return a matrix in tile order: [num_rows, num_cols] -> one dimension, filled up with zeros.

    num_rows must be a multiple of 8 (`build.check_config`).
    """
    piece = PIECE_BYTES // weight.itemsize
    tiles = F.pad(weight, (0, -weight.shape[1] % TILE_COLS))
    tiles = tiles.unflatten(1, (-1, TILE_COLS // (4 * piece), 4 * piece))
    return tiles.unflatten(0, (-1, TILE_ROWS)).permute(0, 2, 3, 1, 4).reshape(-1)


def pack_int8(values: Tensor) -> Tensor:
    """Return the bytes of an int8 matrix [num_rows, num_cols] in tile order.

    num_rows must be a multiple of 8; no value may be -128 (`quantization.LARGEST`).
    """
    values = F.pad(values, (0, -values.shape[1] % TILE_COLS)).unflatten(1, (-1, 4))
    magnitudes = values.abs().view(torch.uint8)[..., INT8_MAGNITUDES]
    signs = (values < 0).to(torch.uint8)[..., INT8_SIGNS]
    # A piece has eight columns of the left half of a tile and eight of the right one.
    halves = (2, 4, PIECE_BYTES // 2)
    tiles = (magnitudes | signs << 7).reshape(len(values) // TILE_ROWS, TILE_ROWS, -1, *halves)
    return tiles.permute(0, 2, 1, 4, 3, 5).reshape(-1)


def interleave(gate: Tensor, up: Tensor) -> Tensor:
    """Return the rows gate 0, up 0, gate 1, up 1, ...: [n, ...], [n, ...] -> [2n, ...].

    One thread of the kernel then holds both factors of a SwiGLU element.
    """
    return torch.stack((gate, up), dim=1).flatten(0, 1)


def pack_stack(read: WeightReader, config: StackConfig) -> Tensor:
    """Return the layers of a stack, converted one by one to save memory: [num_layers, layer size].

    The result has the reader's dtype; if the matrices are int8, it is bytes.
    """

    def layer(index: int) -> Tensor:
        at = read.at(f"layers.{index}")

        def matrix(name: str) -> Matrix:
            weight = read.weights[f"{at.prefix}{name}.weight"]
            # Scales keep their precision: no tensor core multiplies them.
            is_int8 = isinstance(weight, QuantizedMatrix)
            return weight.to(device=read.device, dtype=torch.float32 if is_int8 else read.dtype)

        matrices = [
            quantization.cat([matrix(f"self_attn.{name}_proj") for name in "qkv"]),
            matrix("self_attn.o_proj"),
            _interleave_matrices(matrix("mlp.gate_proj"), matrix("mlp.up_proj")),
            matrix("mlp.down_proj"),
        ]
        names = ["input_layernorm.weight", "post_attention_layernorm.weight"]
        if config.qk_norm:
            names += ["self_attn.q_norm.weight", "self_attn.k_norm.weight"]
        if config.qkv_bias:
            names += [f"self_attn.{name}_proj.bias" for name in "qkv"]
        vectors = [at[name] for name in names]
        quantized = [each for each in matrices if isinstance(each, QuantizedMatrix)]
        if not quantized:
            packed = [pack(each) for each in matrices if isinstance(each, Tensor)]
            return torch.cat([*packed, *vectors])
        assert len(quantized) == len(matrices)
        parts = [pack_int8(each.values) for each in quantized]
        parts += [each.scales / INT8_UNIT for each in quantized]
        return torch.cat([part.view(torch.uint8) for part in (*parts, *vectors)])

    first = layer(0)
    packed = torch.empty((config.num_layers, first.numel()), device=read.device, dtype=first.dtype)
    packed[0] = first
    for index in range(1, config.num_layers):
        packed[index] = layer(index)
    return packed


def _interleave_matrices(gate: Matrix, up: Matrix) -> Matrix:
    if isinstance(gate, QuantizedMatrix) and isinstance(up, QuantizedMatrix):
        values, scales = interleave(gate.values, up.values), interleave(gate.scales, up.scales)
        return QuantizedMatrix(values, scales)
    assert isinstance(gate, Tensor) and isinstance(up, Tensor)
    return interleave(gate, up)
