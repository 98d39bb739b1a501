"""The native CPU decoder and the plain one on the same weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qwen_megakernel.decoders.cpu.decoder import CpuDecoder
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.records import Prefill


def sizes(num_slots: int = 1, dtype: torch.dtype = torch.float32) -> DecoderSizes:
    return DecoderSizes(num_slots, 256, torch.device("cpu"), dtype, max_frames=100)


@pytest.fixture(scope="session")
def native() -> Callable[..., CpuDecoder]:
    """native(checkpoint, num_slots, num_threads) returns the decoder under test."""
    return lambda checkpoint, num_slots=1, num_threads=2: CpuDecoder(
        checkpoint, sizes(num_slots), num_threads
    )


@pytest.fixture(scope="session")
def plain() -> Callable[..., PlainDecoder]:
    return lambda checkpoint, num_slots=1: PlainDecoder(checkpoint, sizes(num_slots))


@pytest.fixture(scope="session")
def prompt() -> Callable[..., Prefill]:
    """prompt(checkpoint, seed=, ...) returns a prompt of random embeddings, with text after it."""

    def make(checkpoint: Any, seed: int = 0, num_positions: int = 12, num_text: int = 6) -> Prefill:
        generator = torch.Generator().manual_seed(seed)
        hidden = checkpoint.config.talker.stack.hidden_size
        rows = torch.randn(num_positions + num_text + 1, hidden, generator=generator)
        return Prefill(rows[:num_positions], rows[num_positions:-1], rows[-1])

    return make
