"""Two decoders on the same weights.

Tests that drive a whole decoder run three times: the kernel by emulation, nvcc's PTX of it on this
CPU (`ptx`, slow), and on a GPU (marker `gpu`, skipped if there is none). Tests of one stage
(probes.cu) run by emulation.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qwen_megakernel.decoders.graph.decoder import GraphDecoder
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.slots import DecoderSizes
from tools.kernel_study.ptx.build import instead_of_emulation

CPU = torch.device("cpu")

# Tests with faults that only the emulation can plant.
EMULATION_ONLY = {
    "test_a_grid_that_cannot_be_resident_is_refused_and_does_not_hang": "sets the number of SMs",
    "test_cancel_at_any_moment_loses_no_frame": "chooses the moment",
    "test_the_order_of_threads_and_blocks_does_not_matter": "chooses the order",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deselect the GPU variant of tests in `EMULATION_ONLY`; skip others if there is no GPU.

    Deselect the PTX variant of tests that run no kernel, too.
    """
    has_gpu = torch.cuda.is_available()
    kept = []
    for item in items:
        if item.get_closest_marker("gpu") and "[gpu" in item.name:
            if item.originalname in EMULATION_ONLY:
                continue
            if not has_gpu:
                item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU; torch sees none"))
        if "[ptx" in item.name and (
            item.path.parent.name == "graph" or item.callspec.params.get("kind") is GraphDecoder
        ):
            continue
        kept.append(item)
    items[:] = kept


class _TapsOnCpu:
    """A decoder on the GPU with its logits on the CPU, where the tests compare them."""

    def step(self, slots, num_frames, forced=None, taps=None):
        result = super().step(slots, num_frames, forced, taps)
        for name in taps or ():
            taps[name] = taps[name].cpu()
        return result


class KernelOnGpu(_TapsOnCpu, KernelDecoder):
    def forward(self, *args: Any, **options: Any) -> torch.Tensor:
        return super().forward(*args, **options).cpu()


class GraphsOnGpu(_TapsOnCpu, GraphDecoder):
    pass


class KernelOfPtx(KernelDecoder):
    """The kernel as compiled for an H100 or H200; the CPU interprets its instructions."""

    def __init__(self, *args: Any, **options: Any):
        with instead_of_emulation("sm_90a"):
            super().__init__(*args, **options)


ON_GPU = {KernelDecoder: KernelOnGpu, GraphDecoder: GraphsOnGpu}


@pytest.fixture(
    scope="session",
    params=[
        "emulation",
        pytest.param("ptx", marks=pytest.mark.slow),
        pytest.param("gpu", marks=pytest.mark.gpu),
    ],
)
def make_decoder(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """make_decoder(kind, checkpoint, dtype, **options) returns one of the decoders.

    The test's variant decides where the kernel and the graphs run; the plain decoder runs on the
    CPU.
    """

    def make(kind: type, checkpoint: Any, dtype: torch.dtype = torch.float32, **options: Any):
        options = {"num_slots": 4, "max_positions": 160} | options
        device = CPU
        if request.param == "gpu" and kind in ON_GPU:
            kind, device = ON_GPU[kind], torch.device("cuda")
        if request.param == "ptx" and kind is KernelDecoder:
            kind = KernelOfPtx
        num_blocks = options.pop("num_blocks", None)
        blocks = {"num_blocks": num_blocks} if num_blocks and kind is not PlainDecoder else {}
        return kind(checkpoint, DecoderSizes(device=device, dtype=dtype, **options), **blocks)

    return make


@pytest.fixture(scope="session")
def both(make_decoder: Callable[..., Any]) -> Callable[..., tuple[KernelDecoder, PlainDecoder]]:
    """both(checkpoint, **options) returns the kernel and the plain decoder on the same weights."""
    return lambda checkpoint, **options: tuple(
        make_decoder(kind, checkpoint, **options) for kind in (KernelDecoder, PlainDecoder)
    )
