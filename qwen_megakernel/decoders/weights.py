"""The model of a decoder: its config and its tensors, some of which may be `QuantizedMatrix`."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.decoders.quantization import Matrix

Weights = Mapping[str, Matrix]  # the keys are the official names without "talker."


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A model with some matrices in 8 bits, from `quantization.quantize`."""

    config: ModelConfig
    talker: Weights


DecoderModel = Checkpoint | QuantizedModel  # a decoder reads `config` and `talker` of either


def tensor(weights: Weights, name: str) -> Tensor:
    """Return a tensor that `quantize` leaves as it is, such as a norm or an embedding."""
    found = weights[name]
    assert isinstance(found, Tensor), name
    return found
