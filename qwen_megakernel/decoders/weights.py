"""The model of a decoder: its config and its tensors, some of which may be `Int8Matrix`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.decoders.int8 import Matrix

Weights = Mapping[str, Matrix]  # the keys are the official names without "talker."


class DecoderModel(Protocol):
    """The parts of a checkpoint that a decoder reads. `Checkpoint` and `QuantizedModel` are such
    models."""

    @property
    def config(self) -> ModelConfig:
        """The model's dimensions and ids."""

    @property
    def talker(self) -> Weights:
        """The tensors of talker and code predictor."""


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A model with some matrices in 8 bits, from `int8.quantize`."""

    config: ModelConfig
    talker: Weights


def tensor(weights: Weights, name: str) -> Tensor:
    """Return a tensor that `int8.quantize` leaves as it is, such as a norm or an embedding."""
    found = weights[name]
    assert isinstance(found, Tensor), name
    return found
