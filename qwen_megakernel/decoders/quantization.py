"""Weights in 8, 6 or 4 bits: a matrix of small integers, with a scale for each output row, or for
64 columns of it, or 32 in 6 and 4 bits.

Reading weights takes most of the time of decoding, so fewer bytes make it faster. Activations,
norms, projections and embeddings keep their precision (no frame reads the 311 million values of the
text embedding); the heads keep it, too, unless the user names a format with heads. The cost is in
docs/precision.md. This file defines the format: every backend takes its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.choices import WeightsForm
from qwen_megakernel.errors import UsageError
from qwen_megakernel.native import cpu_threads

# The names of a stack's layers among a checkpoint's tensors begin with these.
PREFIXES = {"talker": "model.layers.", "predictor": "code_predictor.model.layers."}
HEADS = ("codec_head.", "code_predictor.lm_head.")
LARGEST = 127  # of 8 bits; symmetric: -128 is not used
GROUPS = {8: 64, 6: 32, 4: 32}  # columns that share a scale, by bits
BLOCK = 2**18  # values rounded at a time, so that intermediate results stay in caches


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """The matrix scales[row] * values[row], or scales[row, col // group] * values[row, col]."""

    values: Tensor  # [out_features, in_features] int8; -32 to 31 with 6 bits, -8 to 7 with 4
    scales: Tensor  # [out_features], or [out_features, num_groups], in the activations' dtype
    bits: int = 8  # 8, 6 or 4

    @property
    def group(self) -> int:
        """Number of columns that share a scale; 0: each row has one scale."""
        return GROUPS[self.bits] if self.scales.ndim == 2 else 0

    @staticmethod
    def of(weight: Tensor, *, in_groups: bool = False, bits: int = 8) -> QuantizedMatrix:
        """Round `weight` [out_features, in_features] to the nearest values.

        In 8 bits the largest magnitude that shares a scale keeps its value; in 6 and 4 bits,
        always in groups, the scale has the least squared error. The scales of groups are bf16
        numbers: two bytes beside 64 values, and every product with an int8 is exact in float32.
        """
        rows = max(1, BLOCK // weight.shape[1])
        blocks = weight.split(rows)
        if bits < 8:
            return QuantizedMatrix.cat([_fitted(block, bits) for block in blocks])
        return QuantizedMatrix.cat([_nearest(block, in_groups=in_groups) for block in blocks])

    @staticmethod
    def cat(parts: list[QuantizedMatrix]) -> QuantizedMatrix:
        values, scales = (torch.cat([getattr(p, n) for p in parts]) for n in ("values", "scales"))
        return QuantizedMatrix(values, scales, parts[0].bits)

    def to(self, *, device: torch.device, dtype: torch.dtype) -> QuantizedMatrix:
        """Return the matrix for activations of `dtype` on `device`."""
        return QuantizedMatrix(self.values.to(device), self.scales.to(device, dtype), self.bits)

    def widened(self) -> Tensor:
        """Return [out_features, in_features], rounded to the dtype of the scales."""
        if not self.group:
            return self.values.to(self.scales.dtype) * self.scales[:, None]
        scales = self.scales.repeat_interleave(self.group, dim=1)[:, : self.values.shape[1]]
        return self.values.to(scales.dtype) * scales

    def linear(self, x: Tensor) -> Tensor:
        """Return x [..., in_features] @ weight^T.

        int8 is exact in bf16 and float32, so with a scale for each row this multiplies the values
        as they are and scales the sum. PyTorch has one operation for that in bf16 on a CPU;
        otherwise the matrix is widened first, which saves memory but no time.
        """
        if self.group:
            return F.linear(x, self.widened().to(x.dtype))
        if x.device.type == "cpu" and x.dtype == torch.bfloat16:
            rows = x.reshape(-1, x.shape[-1])
            return torch._weight_int8pack_mm(rows, self.values, self.scales).view(*x.shape[:-1], -1)
        return F.linear(x, self.values.to(x.dtype)) * self.scales


def _nearest(weight: Tensor, *, in_groups: bool) -> QuantizedMatrix:
    """Return what `QuantizedMatrix.of` returns, for some of its rows."""
    weight, shape = weight.float(), weight.shape
    if in_groups:
        weight = _in_groups(weight, GROUPS[8])
    scales = weight.abs().amax(dim=-1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
    if in_groups:
        scales = scales.bfloat16().float().clamp(min=torch.finfo(torch.bfloat16).tiny)
    values = (weight / scales[..., None]).round().clamp(-LARGEST, LARGEST).to(torch.int8)
    if in_groups:
        values = values.flatten(1)[:, : shape[1]].contiguous()
    return QuantizedMatrix(values, scales)


def _fitted(weight: Tensor, bits: int) -> QuantizedMatrix:
    """Return what `QuantizedMatrix.of` returns in 6 or 4 bits, for some of its rows.

    The largest magnitude of a group becomes the largest value, or the least. Then the scale is the
    one with the least squared error for these values, and the values are rounded again. What is
    best of all tried is kept, so no group is worse than with the scale of its largest magnitude.
    """
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    shape, weight = weight.shape, _in_groups(weight.float(), GROUPS[bits])
    largest = weight.gather(-1, weight.abs().argmax(-1, keepdim=True))
    best = torch.full_like(largest, torch.inf)
    scales, values = torch.zeros_like(largest), torch.zeros_like(weight)
    for level in (most, least):
        scale = _bf16(largest / level)
        for _ in range(2):
            rounded = (weight / scale).round().clamp(least, most)
            fitted = _bf16((weight * rounded).sum(-1, True) / rounded.square().sum(-1, True))
            for tried in (scale, fitted):
                error = (weight - rounded * tried).square().sum(-1, True)
                is_better = error < best
                best = torch.where(is_better, error, best)
                scales = torch.where(is_better, tried, scales)
                values = torch.where(is_better, rounded, values)
            scale = fitted
    values = values.to(torch.int8).flatten(1)[:, : shape[1]].contiguous()
    return QuantizedMatrix(values, scales.squeeze(-1), bits)


def _bf16(scales: Tensor) -> Tensor:
    """Round scales to bf16. Groups of zeros get a scale, too: nothing is divided by zero."""
    rounded = scales.nan_to_num(0.0).bfloat16().float()
    return rounded.where(rounded != 0, torch.finfo(torch.bfloat16).tiny)


def _in_groups(weight: Tensor, group: int) -> Tensor:
    """Return [out_features, num_groups, group], with zeros behind the last columns."""
    return F.pad(weight, (0, -weight.shape[1] % group)).unflatten(1, (-1, group))


Matrix: TypeAlias = Tensor | QuantizedMatrix


def linear(x: Tensor, weight: Matrix) -> Tensor:
    """Return x [..., in_features] @ weight^T for a matrix of either kind."""
    return weight.linear(x) if isinstance(weight, QuantizedMatrix) else F.linear(x, weight)


def cat(parts: Sequence[Matrix]) -> Matrix:
    """Concatenate the rows of matrices, which are all of one kind."""
    quantized = [part for part in parts if isinstance(part, QuantizedMatrix)]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    assert not (quantized and tensors)
    return QuantizedMatrix.cat(quantized) if quantized else torch.cat(tensors)


def int8_stacks(talker: Mapping[str, Matrix]) -> tuple[str, ...]:
    """Return which of "talker" and "predictor" `quantize` has made int8."""
    return tuple(
        stack
        for stack, prefix in PREFIXES.items()
        if isinstance(talker[prefix + "0.self_attn.q_proj.weight"], QuantizedMatrix)
    )


def quantize(
    talker: Mapping[str, Tensor], weights: str, *, in_groups: bool = False
) -> dict[str, Matrix]:
    """Return the tensors of `Checkpoint.talker` with the layers' matrices as `QuantizedMatrix`.

    Args:
        weights: one of `choices.WEIGHTS`.
        in_groups: whether groups of columns have their own scales if `weights` does not decide it.
    """
    rounded = RoundedWeights.of(talker, weights, in_groups=in_groups)
    with cpu_threads.single_threads(torch.get_num_threads()) as threads:
        return dict(zip(rounded, threads.map(rounded.__getitem__, rounded), strict=True))


@dataclass(frozen=True, slots=True)
class RoundedWeights(Mapping[str, Matrix]):
    """What `quantize` returns, with each matrix rounded anew whenever it is read.

    A decoder that reads every matrix once has only that one in memory.
    """

    talker: Mapping[str, Tensor]
    bits: dict[str, int]  # by the beginning of the names of matrices that are rounded
    in_groups: bool

    @staticmethod
    def of(talker: Mapping[str, Tensor], weights: str, *, in_groups: bool) -> RoundedWeights:
        wanted = WeightsForm.parse(weights)
        bits = {PREFIXES[stack]: num_bits for stack, num_bits in wanted.bits.items()}
        bits |= dict.fromkeys(HEADS if wanted.heads else (), 8)
        return RoundedWeights(
            talker, bits, in_groups if wanted.in_groups is None else wanted.in_groups
        )

    def bits_of(self, name: str) -> int | None:
        """Return the bits of a weight of a matrix; None: it is not rounded."""
        if self.talker[name].ndim != 2:
            return None
        return next((bits for begin, bits in self.bits.items() if name.startswith(begin)), None)

    def __getitem__(self, name: str) -> Matrix:
        tensor, bits = self.talker[name], self.bits_of(name)
        return QuantizedMatrix.of(tensor, in_groups=self.in_groups, bits=bits) if bits else tensor

    def shape_of(self, name: str) -> Matrix:
        """Return a matrix of the form of `self[name]`, without its values if it is rounded."""
        tensor, bits = self.talker[name], self.bits_of(name)
        if not bits:
            return tensor
        num_groups = (-(-tensor.shape[1] // GROUPS[bits]),) if self.in_groups else ()
        values = torch.empty(tensor.shape, dtype=torch.int8, device="meta")
        return QuantizedMatrix(values, torch.empty(len(tensor), *num_groups, device="meta"), bits)

    def __iter__(self) -> Iterator[str]:
        return iter(self.talker)

    def __len__(self) -> int:
        return len(self.talker)


def check_weights(weights: str | None, backend: str) -> None:
    """Raise a UsageError, whose hint names other backends, if a backend does not run one of
    `choices.WEIGHTS`."""
    if weights is None or backend in ("cpu", "torch"):
        return
    wanted = WeightsForm.parse(weights)
    if min(wanted.bits.values()) < 8:
        raise UsageError(
            f"weights is {weights!r}; backend {backend} does not run weights of 6 or 4 bits.",
            hint="Use 'int8', or backend cpu or torch.",
        )
    if wanted.heads:
        raise UsageError(
            f"weights is {weights!r}; backend {backend} does not run 8-bit heads.",
            hint=f"Use {weights.removesuffix('-heads')!r}, or backend cpu or torch.",
        )
    if wanted.in_groups and backend != "graph":
        raise UsageError(
            f"weights is {weights!r}; backend {backend} takes one scale for each row only.",
            hint=f"Use {weights.removesuffix('-groups')!r}, or backend cpu, torch or graph.",
        )
