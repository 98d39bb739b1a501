"""Muon updates the layers' matrices; torch's AdamW updates everything else."""

import math
from typing import Any

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
        parameters: matrices, and weights of convolutions, by name.
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
            update = orthogonalize((parameter.grad + self._momentum * buffer).flatten(1))
            scale = learning_rate * _UPDATE_RMS * math.sqrt(max(update.shape))
            parameter.mul_(1 - learning_rate * self._decay)
            parameter.add_(update.view_as(parameter), alpha=-scale)


class MuonAndAdamW:
    """Muon for matrices and AdamW for vectors, as one optimizer with torch's methods.

    Args:
        parameters: by name.
        learning_rate: AdamW's.
        muon_rate: Muon's learning rate over it.
    """

    def __init__(self, parameters: dict[str, Tensor], learning_rate: float, muon_rate: float):
        self._muon = Muon({name: p for name, p in parameters.items() if p.ndim > 1})
        vectors = [p for p in parameters.values() if p.ndim == 1]
        self._adamw = torch.optim.AdamW(vectors, learning_rate, (0.9, 0.99), weight_decay=0.0)
        self._parameters, self._muon_rate = list(parameters.values()), muon_rate

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._adamw.param_groups

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        self._muon.step(self._muon_rate * self.param_groups[0]["lr"])
        self._adamw.step()

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self._muon.buffers, "adamw": self._adamw.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state["muon"].items():
            self._muon.buffers[name].copy_(value)
        self._adamw.load_state_dict(state["adamw"])


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
