"""Weight-only int8: a matrix as bytes, with a scale for each output row or for 64 columns of it.

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

from qwen_megakernel.choices import Int8Format
from qwen_megakernel.errors import UsageError
from qwen_megakernel.native import cpu_threads

# The names of a stack's layers among a checkpoint's tensors begin with these.
PREFIXES = {"talker": "model.layers.", "predictor": "code_predictor.model.layers."}
HEADS = ("codec_head.", "code_predictor.lm_head.")
LARGEST = 127  # symmetric: -128 is not used
GROUP = 64  # columns that share a scale
BLOCK = 2**18  # values rounded at a time, so that intermediate results stay in caches


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """The matrix scales[row] * values[row], or scales[row, col // GROUP] * values[row, col]."""

    values: Tensor  # [out_features, in_features] int8
    scales: Tensor  # [out_features], or [out_features, num_groups], in the activations' dtype

    @property
    def in_groups(self) -> bool:
        """Whether each group of columns has its own scale."""
        return self.scales.ndim == 2

    @staticmethod
    def of(weight: Tensor, *, in_groups: bool = False) -> Int8Matrix:
        """Round `weight` [out_features, in_features] to the nearest values.

        The largest magnitude that shares a scale keeps its value. The scales of groups are bf16
        numbers: two bytes beside 64, and every product with an int8 is exact in float32.
        """
        rows = max(1, BLOCK // weight.shape[1])
        blocks = weight.split(rows)
        return Int8Matrix.cat([_nearest(block, in_groups=in_groups) for block in blocks])

    @staticmethod
    def cat(parts: list[Int8Matrix]) -> Int8Matrix:
        """Concatenate the rows of matrices."""
        values, scales = (torch.cat([getattr(p, n) for p in parts]) for n in ("values", "scales"))
        return Int8Matrix(values, scales)

    def to(self, *, device: torch.device, dtype: torch.dtype) -> Int8Matrix:
        """Return the matrix for activations of `dtype` on `device`."""
        return Int8Matrix(self.values.to(device), self.scales.to(device, dtype))

    def widened(self) -> Tensor:
        """Return [out_features, in_features], rounded to the dtype of the scales."""
        if not self.in_groups:
            return self.values.to(self.scales.dtype) * self.scales[:, None]
        scales = self.scales.repeat_interleave(GROUP, dim=1)[:, : self.values.shape[1]]
        return self.values.to(scales.dtype) * scales

    def linear(self, x: Tensor) -> Tensor:
        """Return x [..., in_features] @ weight^T.

        int8 is exact in bf16 and float32, so with a scale for each row this multiplies the values
        as they are and scales the sum. PyTorch has one operation for that in bf16 on a CPU;
        otherwise the matrix is widened first, which saves memory but no time.
        """
        if self.in_groups:
            return F.linear(x, self.widened().to(x.dtype))
        if x.device.type == "cpu" and x.dtype == torch.bfloat16:
            rows = x.reshape(-1, x.shape[-1])
            return torch._weight_int8pack_mm(rows, self.values, self.scales).view(*x.shape[:-1], -1)
        return F.linear(x, self.values.to(x.dtype)) * self.scales


def _nearest(weight: Tensor, *, in_groups: bool) -> Int8Matrix:
    """Return what `Int8Matrix.of` returns, for some of its rows."""
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


Matrix: TypeAlias = Tensor | Int8Matrix


def linear(x: Tensor, weight: Matrix) -> Tensor:
    """Return x [..., in_features] @ weight^T for a matrix of either kind."""
    return weight.linear(x) if isinstance(weight, Int8Matrix) else F.linear(x, weight)


def cat(parts: Sequence[Matrix]) -> Matrix:
    """Concatenate the rows of matrices, which are all of one kind."""
    quantized = [part for part in parts if isinstance(part, Int8Matrix)]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    assert not (quantized and tensors)
    return Int8Matrix.cat(quantized) if quantized else torch.cat(tensors)


def int8_stacks(talker: Mapping[str, Matrix]) -> tuple[str, ...]:
    """Return which of "talker" and "predictor" `quantize` has made int8."""
    return tuple(
        stack
        for stack, prefix in PREFIXES.items()
        if isinstance(talker[prefix + "0.self_attn.q_proj.weight"], Int8Matrix)
    )


def quantize(
    talker: Mapping[str, Tensor], weights: str, *, in_groups: bool = False
) -> dict[str, Matrix]:
    """Return the tensors of `Checkpoint.talker` with the layers' matrices as `Int8Matrix`.

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
    prefixes: tuple[str, ...]
    in_groups: bool

    @staticmethod
    def of(talker: Mapping[str, Tensor], weights: str, *, in_groups: bool) -> RoundedWeights:
        """Choose the matrices; the arguments are those of `quantize`."""
        wanted = Int8Format.parse(weights)
        prefixes = tuple(PREFIXES[stack] for stack in wanted.stacks)
        prefixes += HEADS if wanted.heads else ()
        return RoundedWeights(
            talker, prefixes, in_groups if wanted.in_groups is None else wanted.in_groups
        )

    def __getitem__(self, name: str) -> Matrix:
        tensor = self.talker[name]
        if name.startswith(self.prefixes) and tensor.ndim == 2:
            return Int8Matrix.of(tensor, in_groups=self.in_groups)
        return tensor

    def shape_of(self, name: str) -> Matrix:
        """Return a matrix of the form of `self[name]`, without its values if it is rounded."""
        tensor = self.talker[name]
        if not (name.startswith(self.prefixes) and tensor.ndim == 2):
            return tensor
        num_groups = (-(-tensor.shape[1] // GROUP),) if self.in_groups else ()
        values = torch.empty(tensor.shape, dtype=torch.int8, device="meta")
        return Int8Matrix(values, torch.empty(len(tensor), *num_groups, device="meta"))

    def __iter__(self) -> Iterator[str]:
        return iter(self.talker)

    def __len__(self) -> int:
        return len(self.talker)


def check_weights(weights: str | None, backend: str) -> None:
    """Raise UsageError if a backend does not run a format of int8.

    Args:
        weights: one of `choices.WEIGHTS`, or None.
        backend: "kernel", "graph", "cpu", "torch", "emulation" or "coreml".
    Raises:
        UsageError: the backend does not run the format; the hint names backends that do.
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
            f"weights is {weights!r}; backend {backend} takes one scale for each row only.",
            hint=f"Use {weights.removesuffix('-groups')!r}, or backend cpu, torch or graph.",
        )
