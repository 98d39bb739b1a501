"""Both decoders on the same weights; compiled kernels that outlive the run."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qwen_megakernel.kernels import KernelDecoder
from qwen_megakernel.reference import ReferenceDecoder

CPU = torch.device("cpu")


@pytest.fixture(scope="session", autouse=True)
def build_cache() -> Iterator[Path]:
    """Compiled kernels outlive the run: a change of sources or flags makes new ones."""
    folder = Path(__file__).parents[2] / "build" / "kernels"
    with pytest.MonkeyPatch.context() as patch:
        if "QWEN_MEGAKERNEL_BUILD_CACHE" not in os.environ:
            patch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def make_decoder() -> Callable[..., Any]:
    """make_decoder(kind, checkpoint, dtype, **options): one of the two decoders, on the CPU."""

    def make(kind: type, checkpoint: Any, dtype: torch.dtype = torch.float32, **options: Any):
        options = {"num_slots": 4, "max_positions": 160, "max_text_rows": 16} | options
        return kind(checkpoint, device=CPU, dtype=dtype, **options)

    return make


@pytest.fixture(scope="session")
def both(make_decoder: Callable[..., Any]) -> Callable[..., tuple[KernelDecoder, ReferenceDecoder]]:
    """both(checkpoint, **options): the kernel and the reference on the same weights."""
    return lambda checkpoint, **options: (
        make_decoder(KernelDecoder, checkpoint, **options),
        make_decoder(
            ReferenceDecoder,
            checkpoint,
            **{name: value for name, value in options.items() if name != "num_blocks"},
        ),
    )
