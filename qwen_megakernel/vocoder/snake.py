"""The vocoder's activation as one operation of PyTorch.

A frame has 29 of them, and on a GPU four small kernels each are a quarter of all that it starts.
"""

import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

CODE = """
template <typename T> T snake(T x, T frequency, T amplitude) {
  const T sine = sin(x * frequency);
  return x + sine * sine * amplitude;
}
"""
TOLERANCE = 1e-5  # of x and amplitudes up to 2, where float32 rounds to 1e-7


def plain_snake(x: Tensor, frequency: Tensor, amplitude: Tensor) -> Tensor:
    """`snake` as four operations."""
    return torch.addcmul(x, torch.mul(x, frequency).sin_().square_(), amplitude)


@torch.library.custom_op("qwen_megakernel::snake", mutates_args=())
def snake(x: Tensor, frequency: Tensor, amplitude: Tensor) -> Tensor:
    """x + sin^2(x * frequency) * amplitude: x [..., channels], the others [channels]."""
    return plain_snake(x, frequency, amplitude)


@snake.register_fake
def _(x: Tensor, frequency: Tensor, amplitude: Tensor) -> Tensor:
    return torch.empty_like(x)


@snake.register_kernel("cuda")
def _(x: Tensor, frequency: Tensor, amplitude: Tensor) -> Tensor:
    return snake_on(x.device)(x, frequency, amplitude)


@cache
def snake_on(device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """One kernel, which PyTorch compiles with NVRTC; where that fails `plain_snake`, and the log
    says so.

    Waits for the device, so not first of all while a graph is recorded.
    """
    compiled = torch.cuda.jiterator._create_jit_fn(CODE)
    channels = torch.linspace(-2, 2, 8, device=device)
    x = channels.flip(0).repeat(3, 1)
    try:
        error = compiled(x, channels, channels) - plain_snake(x, channels, channels)
        failure = "" if error.abs().max() < TOLERANCE else "its results are others"
    except (AssertionError, RuntimeError) as problem:
        failure = str(problem)
    if not failure:
        return compiled
    logger.warning(
        "The vocoder's activation takes four kernels instead of one: PyTorch compiled none (%s).",
        failure,
    )
    return plain_snake
