"""The dimensions that the kernel is compiled for: those of a speech model, or of a text model."""

from dataclasses import dataclass

from qwen_megakernel.checkpoint.config import (
    ModelConfig,
    PredictorConfig,
    StackConfig,
    TalkerConfig,
)


@dataclass(frozen=True, slots=True)
class TextStack:
    """A text model's layers in the place of the talker's; its other sizes are the smallest."""

    stack: StackConfig
    vocab_size: int = 1056  # 1024 control ids and one row of tiles
    num_code_groups: int = 2


@dataclass(frozen=True, slots=True)
class TextSizes:
    """The dimensions that the kernel is compiled for to run a text model."""

    talker: TextStack
    predictor: PredictorConfig  # never runs


KernelSizes = ModelConfig | TextSizes
StackSizes = TalkerConfig | TextStack | PredictorConfig
