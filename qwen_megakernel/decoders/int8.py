"""Weight-only int8: a matrix as bytes and one scale for each output row.

Decoding is bound by reading weights, so bytes are time. Activations, norms, embeddings, heads and
the projection between talker and predictor keep their precision; docs/precision.md tells the cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.choices import INT8_STACKS

# Where the layers of a stack are among a checkpoint's tensors.
PREFIXES = {"talker": "model.layers.", "predictor": "code_predictor.model.layers."}
LARGEST = 127  # symmetric: -128 is not used


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """scales[row] * values[row]."""

    values: Tensor  # [out_features, in_features] int8
    scales: Tensor  # [out_features], in the dtype of the activations

    @staticmethod
    def of(weight: Tensor) -> Int8Matrix:
        """The nearest one to `weight` [out_features, in_features], its rows' largest kept."""
        scales = weight.float().abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
        scales /= LARGEST
        return Int8Matrix((weight.float() / scales[:, None]).round().to(torch.int8), scales)

    @staticmethod
    def cat(parts: list[Int8Matrix]) -> Int8Matrix:
        """Rows under each other."""
        return Int8Matrix(
            *(torch.cat([getattr(p, n) for p in parts]) for n in ("values", "scales"))
        )

    def to(self, *, device: torch.device, dtype: torch.dtype) -> Int8Matrix:
        """The same for activations of `dtype` on `device`."""
        return Int8Matrix(self.values.to(device), self.scales.to(device, dtype))

    def linear(self, x: Tensor) -> Tensor:
        """x [..., in_features] @ weight^T.

        int8 is exact in bf16 and float32, so the values are multiplied as they are and the sum is
        scaled. A CPU has one operation for that in bf16; elsewhere the matrix is widened on its
        way, which saves memory but no time.
        """
        if x.device.type == "cpu" and x.dtype == torch.bfloat16:
            rows = x.reshape(-1, x.shape[-1])
            return torch._weight_int8pack_mm(rows, self.values, self.scales).view(*x.shape[:-1], -1)
        return F.linear(x, self.values.to(x.dtype)) * self.scales


def linear(x: Tensor, weight: Tensor | Int8Matrix) -> Tensor:
    """F.linear for either kind of matrix."""
    return weight.linear(x) if isinstance(weight, Int8Matrix) else F.linear(x, weight)


def cat(parts: list[Tensor] | list[Int8Matrix]) -> Tensor | Int8Matrix:
    """Matrices of one kind under each other."""
    return Int8Matrix.cat(parts) if isinstance(parts[0], Int8Matrix) else torch.cat(parts)


def int8_stacks(talker: dict[str, Tensor | Int8Matrix]) -> tuple[str, ...]:
    """The stacks whose layers `quantize` has made int8 in the tensors of `Checkpoint.talker`."""
    return tuple(
        stack
        for stack, prefix in PREFIXES.items()
        if isinstance(talker[prefix + "0.self_attn.q_proj.weight"], Int8Matrix)
    )


def quantize(talker: dict[str, Tensor], weights: str) -> dict[str, Tensor | Int8Matrix]:
    """The tensors of `Checkpoint.talker` with the layers' matrices as `Int8Matrix`.

    Args:
        weights: one of `choices.WEIGHTS`.
    """
    prefixes = tuple(PREFIXES[stack] for stack in INT8_STACKS[weights])
    return {
        name: Int8Matrix.of(tensor) if name.startswith(prefixes) and tensor.ndim == 2 else tensor
        for name, tensor in talker.items()
    }
