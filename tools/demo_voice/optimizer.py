"""Muon updates the layers' matrices; torch's AdamW updates everything else."""

import math

import torch
from torch import Tensor

# Coefficients and number of the Newton-Schulz steps, from Muon (Keller Jordan et al., 2024); the
# scale of the update, which lets AdamW's learning rates carry over, from Moonlight (Liu et al.,
# 2025, arXiv:2502.16982).
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_NUM_STEPS = 5
_UPDATE_RMS = 0.2


class Muon:
    """Nesterov momentum, orthogonalised.

    Args:
        parameters: matrices, by name.
    """

    def __init__(
        self, parameters: dict[str, Tensor], momentum: float = 0.95, weight_decay: float = 0.02
    ):
        self._parameters, self._momentum, self._decay = parameters, momentum, weight_decay
        self.buffers = {name: torch.zeros_like(p) for name, p in parameters.items()}

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        for name, parameter in self._parameters.items():
            buffer = self.buffers[name].mul_(self._momentum).add_(parameter.grad)
            update = orthogonalize(parameter.grad + self._momentum * buffer)
            scale = learning_rate * _UPDATE_RMS * math.sqrt(max(parameter.shape))
            parameter.mul_(1 - learning_rate * self._decay).add_(update, alpha=-scale)


def orthogonalize(matrix: Tensor) -> Tensor:
    """Return the matrix with its singular values brought near one; float32."""
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.mT if is_tall else matrix).bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(_NUM_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return (x.mT if is_tall else x).float()
