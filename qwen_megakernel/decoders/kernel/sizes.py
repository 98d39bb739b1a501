"""The dimensions that the kernel is compiled for; a `ModelConfig` has them among its fields."""

from typing import Protocol

from qwen_megakernel.checkpoint.config import StackConfig


class StackSizes(Protocol):
    """A stack of layers, and the vocabulary that its head draws from."""

    @property
    def stack(self) -> StackConfig:
        """Dimensions of the layers."""

    @property
    def vocab_size(self) -> int:
        """Number of rows of a head, and of an embedding."""


class TalkerSizes(StackSizes, Protocol):
    """The talker's layers and vocabulary, and the number of codes of a frame."""

    @property
    def num_code_groups(self) -> int:
        """Number of codes of a frame."""


class KernelSizes(Protocol):
    """Both stacks that a library of the kernel runs."""

    @property
    def talker(self) -> TalkerSizes:
        """The stack that runs prompts and frames."""

    @property
    def predictor(self) -> StackSizes:
        """The stack that runs the codes within a frame."""
