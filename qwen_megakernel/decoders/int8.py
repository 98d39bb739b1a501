"""Weight-only int8: a matrix as bytes, with a scale for each output row or for 64 columns of it.

Decoding is bound by reading weights, so bytes are time. Activations, norms, the projections and the
embeddings keep their precision, the text embedding's 311 million values, too, which no frame reads;
and so do heads unless they are asked for. docs/precision.md tells the cost. This file owns the
format: every backend takes its numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.choices import Int8Format
from qwen_megakernel.errors import UsageError

# Where the layers of a stack are among a checkpoint's tensors.
PREFIXES = {"talker": "model.layers.", "predictor": "code_predictor.model.layers."}
HEADS = ("codec_head.", "code_predictor.lm_head.")
LARGEST = 127  # symmetric: -128 is not used
GROUP = 64  # columns that share a scale
BLOCK = 2**18  # values that are rounded at a time, so that what is between stays in caches


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """scales[row] * values[row], or scales[row, column // GROUP] * values[row, column]."""

    values: Tensor  # [out_features, in_features] int8
    scales: Tensor  # [out_features], or [out_features, number of groups]; as the activations

    @property
    def in_groups(self) -> bool:
        """Whether groups of columns have scales of their own."""
        return self.scales.ndim == 2

    @staticmethod
    def of(weight: Tensor, *, in_groups: bool = False) -> Int8Matrix:
        """The nearest one to `weight` [out_features, in_features], the largest of a scale kept.

        The scales of groups are bf16 numbers: two bytes beside 64, and every product with an int8
        is exact in float32.
        """
        rows = max(1, BLOCK // weight.shape[1])
        blocks = weight.split(rows)
        return Int8Matrix.cat([_nearest(block, in_groups=in_groups) for block in blocks])

    @staticmethod
    def cat(parts: list[Int8Matrix]) -> Int8Matrix:
        """Rows under each other."""
        return Int8Matrix(
            *(torch.cat([getattr(p, n) for p in parts]) for n in ("values", "scales"))
        )

    def to(self, *, device: torch.device, dtype: torch.dtype) -> Int8Matrix:
        """The same for activations of `dtype` on `device`."""
        return Int8Matrix(self.values.to(device), self.scales.to(device, dtype))

    def widened(self) -> Tensor:
        """[out_features, in_features] in the dtype of the scales, in which groups are rounded."""
        if not self.in_groups:
            return self.values.to(self.scales.dtype) * self.scales[:, None]
        scales = self.scales.repeat_interleave(GROUP, dim=1)[:, : self.values.shape[1]]
        return self.values.to(scales.dtype) * scales

    def linear(self, x: Tensor) -> Tensor:
        """x [..., in_features] @ weight^T.

        int8 is exact in bf16 and float32, so with a scale for each row the values are multiplied as
        they are and the sum is scaled. A CPU has one operation for that in bf16; elsewhere the
        matrix is widened on its way, which saves memory but no time.
        """
        if self.in_groups:
            return F.linear(x, self.widened().to(x.dtype))
        if x.device.type == "cpu" and x.dtype == torch.bfloat16:
            rows = x.reshape(-1, x.shape[-1])
            return torch._weight_int8pack_mm(rows, self.values, self.scales).view(*x.shape[:-1], -1)
        return F.linear(x, self.values.to(x.dtype)) * self.scales


def _nearest(weight: Tensor, *, in_groups: bool) -> Int8Matrix:
    """What `Int8Matrix.of` returns, for some of its rows."""
    weight, shape = weight.float(), weight.shape
    if in_groups:
        weight = F.pad(weight, (0, -shape[1] % GROUP)).unflatten(1, (-1, GROUP))
    scales = weight.abs().amax(dim=-1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
    if in_groups:
        scales = scales.bfloat16().float().clamp(min=torch.finfo(torch.bfloat16).tiny)
    values = (weight / scales[..., None]).round().clamp(-LARGEST, LARGEST).to(torch.int8)
    if in_groups:
        values = values.flatten(1)[:, : shape[1]].contiguous()
    return Int8Matrix(values, scales)


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


def quantize(
    talker: dict[str, Tensor], weights: str, *, in_groups: bool = False
) -> dict[str, Tensor | Int8Matrix]:
    """The tensors of `Checkpoint.talker` with the layers' matrices as `Int8Matrix`.

    Args:
        weights: one of `choices.WEIGHTS`.
        in_groups: whether groups of columns have scales where `weights` does not say.
    """
    wanted = Int8Format.parse(weights)
    prefixes = tuple(PREFIXES[stack] for stack in wanted.stacks) + (HEADS if wanted.heads else ())
    in_groups = in_groups if wanted.in_groups is None else wanted.in_groups
    return {
        name: Int8Matrix.of(tensor, in_groups=in_groups)
        if name.startswith(prefixes) and tensor.ndim == 2
        else tensor
        for name, tensor in talker.items()
    }


def check_weights(weights: str | None, backend: str) -> None:
    """Refuse a form of int8 that a backend does not run.

    Args:
        weights: one of `choices.WEIGHTS`, or None.
        backend: "kernel", "graph", "cpu", "torch", "emulation" or "coreml".
    Raises:
        UsageError: names the backends that run it.
    """
    if weights is None or backend in ("cpu", "torch"):
        return
    wanted = Int8Format.parse(weights)
    if wanted.heads:
        raise UsageError(
            f"weights is {weights!r}; backend {backend} does not run 8-bit heads.",
            hint=f"Use {weights.removesuffix('-heads')!r}, or backend cpu or torch.",
        )
    if wanted.in_groups and backend != "graph":
        raise UsageError(
            f"weights is {weights!r}; backend {backend} takes one scale for each row.",
            hint=f"Use {weights.removesuffix('-groups')!r}, or backend cpu, torch or graph.",
        )
