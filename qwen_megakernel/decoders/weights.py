"""The model that a decoder is made of: a config, and tensors of which some may be `Int8Matrix`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.decoders.int8 import Matrix

Weights = Mapping[str, Matrix]  # by the official names, without "talker."


class DecoderModel(Protocol):
    """What a decoder reads of a checkpoint. `Checkpoint` and `QuantizedModel` are such models."""

    @property
    def config(self) -> ModelConfig:
        """The model's dimensions and ids."""

    @property
    def talker(self) -> Weights:
        """The tensors of talker and code predictor."""


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A model some of whose matrices `int8.quantize` has made 8-bit."""

    config: ModelConfig
    talker: Weights


def tensor(weights: Weights, name: str) -> Tensor:
    """Return a tensor that `int8.quantize` leaves as it is, such as a norm or an embedding."""
    found = weights[name]
    assert isinstance(found, Tensor), name
    return found
