"""Reads a model's tensors by their names."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class WeightReader:
    """The tensors whose names begin with a prefix, on a device and in one dtype.

    16-bit tensors are converted before any computation reads them. Those that a converted model's
    file holds packed have a shape and no values.
    """

    weights: Mapping[str, Any]  # tensors; of a decoder, some may be `QuantizedMatrix`
    device: torch.device
    dtype: torch.dtype
    prefix: str = ""

    def at(self, name: str) -> Self:
        """Return a reader of the names that go on with `name` and a dot."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def matrix(self, name: str) -> Any:
        """Return a tensor, or a matrix that may be in 8 bits."""
        return self.weights[self.prefix + name].to(device=self.device, dtype=self.dtype)

    def __getitem__(self, name: str) -> Tensor:
        found = self.weights[self.prefix + name]
        assert isinstance(found, Tensor), self.prefix + name
        return found.to(found.device if found.is_meta else self.device, self.dtype)
