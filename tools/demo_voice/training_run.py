"""A run of training that saves its state and can go on: of the vocoder, or of the encoder."""

import argparse
import math
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from qwen_megakernel.output_files import replacing
from tools.demo_voice import recipe
from tools.demo_voice.optimizer import MuonAndAdamW

WARMUP_STEPS = 50
MIN_RATE = 0.02
MAX_GRADIENT_NORM = 3.0

Pair = tuple[Tensor, ...]  # samples of whole frames, then tensors with a row for each frame


class TrainingRun:
    """Network and optimizer of one run, and how far it has come.

    Args:
        args: the options of `run_options`, and `steps`, `batch` and `segment`.
        network: what is trained, and what is saved.
        training: what it learns from.
        optimizer: updates the network's parameters.
    """

    figures: ClassVar[tuple[str, ...]]  # what `losses` returns; the first is minimised

    def __init__(
        self,
        args: argparse.Namespace,
        network: nn.Module,
        training: list[Pair],
        optimizer: torch.optim.Optimizer | MuonAndAdamW,
    ):
        self.args, self.device = args, torch.device(args.device)
        self.network, self.optimizer, self.training = network, optimizer, training
        self.rng = np.random.default_rng(args.seed)
        shares = np.array([len(pair[1]) for pair in training], float)
        self.shares = shares / shares.sum()
        self.step = 0
        self.history: list[dict[str, float]] = []

    def losses(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the `figures` of random segments, [n, ...] each."""
        raise NotImplementedError

    def test(self) -> dict[str, float]:
        """Return figures of whole sentences that were not trained on."""
        raise NotImplementedError

    def run(self) -> None:
        """Train to the end, saving at intervals."""
        args, recent, saved = self.args, [], time.monotonic()
        for _ in (bar := tqdm(range(self.step, args.steps), initial=self.step, total=args.steps)):
            recent.append(self.train_step())
            is_over = self.step == args.steps
            if is_over or time.monotonic() - saved > 60 * args.save_minutes:
                figures = dict(zip(self.figures, np.mean(recent, axis=0).tolist(), strict=True))
                self.history.append({"step": self.step} | figures | self.test())
                bar.write(" ".join(f"{k} {v:.4g}" for k, v in self.history[-1].items()))
                self.save(args.output)
                recent, saved = [], time.monotonic()

    def train_step(self) -> list[float]:
        """Make one update on random segments; return the `figures`."""
        parts = zip(*(self._segment() for _ in range(self.args.batch)), strict=True)
        losses = self.losses(tuple(torch.stack(part).to(self.device) for part in parts))
        self.optimizer.zero_grad()
        losses[0].backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), MAX_GRADIENT_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        self.optimizer.step()
        self.step += 1
        return [loss.item() for loss in losses]

    def autocast(self) -> torch.autocast:
        """Return the context in which the network computes."""
        is_reduced = self.args.dtype == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=is_reduced)

    def rate(self) -> float:
        """Return the learning rate now: it rises, stays constant, then falls by half a cosine."""
        done, hold = self.step / self.args.steps, self.args.hold
        fall = 1.0 if done < hold else 0.5 * (1 + math.cos(math.pi * (done - hold) / (1 - hold)))
        return (
            self.args.learning_rate * max(MIN_RATE, fall) * min(1, (self.step + 1) / WARMUP_STEPS)
        )

    def save(self, path: Path) -> None:
        """Write everything that `resume` needs; the file appears whole."""
        state = {
            "weights": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self.rng.bit_generator.state,
            "step": self.step,
            "history": self.history,
        }
        with replacing(path) as draft:
            torch.save(state, draft)

    def resume(self, path: Path) -> None:
        """Go on from where `save` was called."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.network.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rng.bit_generator.state = state["rng"]
        self.step, self.history = state["step"], state["history"]

    def _segment(self) -> Pair:
        sound, *rows = self.training[self.rng.choice(len(self.training), p=self.shares)]
        length = self.args.segment
        start = int(self.rng.integers(len(rows[0]) - length + 1))
        samples = slice(
            start * recipe.SAMPLES_PER_FRAME, (start + length) * recipe.SAMPLES_PER_FRAME
        )
        return sound[samples], *(row[start : start + length] for row in rows)
