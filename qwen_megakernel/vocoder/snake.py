"""The vocoder's activation as one operation of PyTorch.

A frame has 29 of them; with four small kernels each they would be a quarter of the kernels that a
frame starts on a GPU.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from qwen_megakernel.printable import get_logger

logger = get_logger(__name__)

CODE = """
template <typename T> T snake(T x, T frequency, T amplitude) {
  const T sine = sin(x * frequency);
  return x + sine * sine * amplitude;
}
"""
TOLERANCE = 1e-5  # for x and amplitudes up to 2, which float32 rounds to 1e-7


def plain_snake(x: Tensor, frequency: Tensor, amplitude: Tensor) -> Tensor:
    """Compute `snake` with four operations."""
    return torch.addcmul(x, torch.mul(x, frequency).sin_().square_(), amplitude)


@torch.library.custom_op("qwen_megakernel::snake", mutates_args=())
def snake(x: Tensor, frequency: Tensor, amplitude: Tensor) -> Tensor:
    """Return x + sin^2(x * frequency) * amplitude: x [..., channels], the others [channels]."""
    return plain_snake(x, frequency, amplitude)


@snake.register_fake
def _(x: Tensor, frequency: Tensor, amplitude: Tensor) -> Tensor:
    return torch.empty_like(x)


@snake.register_kernel("cuda")
def _(x: Tensor, frequency: Tensor, amplitude: Tensor) -> Tensor:
    return snake_on(x.device)(x, frequency, amplitude)


@cache
def snake_on(device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return `snake` as one kernel, which PyTorch compiles with NVRTC for a GPU.

    If that fails, it logs a warning and returns `plain_snake`. The first call waits for the device,
    so it must not happen while a graph is recorded.
    """
    compiled = torch.cuda.jiterator._create_jit_fn(CODE)
    channels = torch.linspace(-2, 2, 8, device=device)
    x = channels.flip(0).repeat(3, 1)
    try:
        error = compiled(x, channels, channels) - plain_snake(x, channels, channels)
        failure = "" if error.abs().max() < TOLERANCE else "that kernel's results differ"
    except (AssertionError, RuntimeError) as problem:
        failure = f"PyTorch could not compile that kernel ({problem})"
    if not failure:
        return compiled
    logger.warning("The vocoder's activation takes four kernels instead of one: %s.", failure)
    return plain_snake
