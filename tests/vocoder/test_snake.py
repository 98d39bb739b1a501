"""The vocoder's activation as one operation (snake.py)."""

import logging
import os

import pytest
import torch
from tolerances import SNAKE_F64

from qwen_megakernel.vocoder.snake import plain_snake, snake, snake_on

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def operands(*shape: int, device: str = "cpu") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(shape))
    shapes = (shape, shape[-1:], shape[-1:])
    return [torch.randn(each, generator=generator).to(device) for each in shapes]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU; torch sees none")
    return request.param


@pytest.mark.parametrize("shape", [(5,), (1, 1, 3), (4, 1, 8), (480, 2, 6)])
def test_it_is_the_official_formula(device, shape):
    x, frequency, amplitude = operands(*shape, device=device)
    before = x.clone()
    found = snake(x, frequency, amplitude)
    expected = x.double() + amplitude.double() * (x.double() * frequency.double()).sin().square()
    assert found.dtype == torch.float32 and (found - expected).abs().max() < SNAKE_F64
    assert torch.equal(x, before)


def test_without_values_it_has_a_shape():
    with torch.device("meta"):
        found = snake(torch.empty(4, 2, 8), torch.empty(8), torch.empty(8))
    assert found.device.type == "meta" and found.shape == (4, 2, 8)


def test_what_cannot_be_compiled_is_four_operations_and_the_log_says_so(caplog):
    """PyTorch compiles only for GPUs, so it fails on a CPU as on a GPU without NVRTC."""
    with caplog.at_level(logging.WARNING):
        assert snake_on(torch.device("cpu")) is plain_snake
    assert "takes four kernels instead of one" in caplog.text
    assert "CUDA" in caplog.text  # PyTorch's message differs on a machine with a GPU


def test_a_wrong_result_is_not_taken(monkeypatch, caplog):
    for compiled, chosen in ((lambda x, *_: x, plain_snake), (plain_snake, None)):
        snake_on.cache_clear()
        monkeypatch.setattr(torch.cuda.jiterator, "_create_jit_fn", lambda _, it=compiled: it)
        assert snake_on(torch.device("cpu")) is (chosen or compiled)
    assert caplog.text.count("that kernel's results differ") == 1
    snake_on.cache_clear()


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or "QWEN_MEGAKERNEL_FAKE_GPU" in os.environ,
    reason="needs an NVIDIA GPU; torch sees none",
)
def test_a_gpu_has_one_kernel_for_it():
    assert snake_on(torch.device("cuda", 0)) is not plain_snake
