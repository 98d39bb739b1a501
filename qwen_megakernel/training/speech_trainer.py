"""Fine-tunes a `SpeechModel`: what a step reads, its loss, held-out losses and early stop."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.errors import check_choice, check_counts
from qwen_megakernel.installing import require
from qwen_megakernel.records import TextIds
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.training.speech_model import RESIDUAL_WEIGHT, SpeechModel, loss_of
from qwen_megakernel.training.trainer import BaseTrainer, TrainOptions, chunks, fitting
from qwen_megakernel.voice import Voice

METHODS = ("lora", "full")
FEEDS = ("stepwise", "full")  # generation has both layouts of the text, so both are learned
# The matrices of the layers of both stacks.
LORA_TARGETS = r".*layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"


@dataclass(frozen=True, slots=True)
class TuneOptions(TrainOptions):
    """The options of a fine-tuning; `max_length` counts the frames of a recording."""

    learning_rate: float = 1e-4
    batch_size: int = 1  # recordings of a pass
    precision: str = "bf16"
    epochs: int = 10
    warmup_steps: int = 10  # ten recordings are 30 steps
    method: str = "lora"
    rank: int = 16
    alpha: int = 32
    eval_steps: int = 50
    patience: int = 5  # evaluations without a lower held-out loss after which training stops
    checkpointing: bool = False

    def __post_init__(self) -> None:
        TrainOptions.__post_init__(self)
        check_choice("method", self.method, METHODS)
        counts = ("rank", "alpha", "eval_steps", "patience")
        check_counts(**{name: getattr(self, name) for name in counts})

    @property
    def scale(self) -> float | None:
        """The weight of the adapters' products; None: there are no adapters."""
        return self.alpha / self.rank if self.method == "lora" else None


@dataclass(frozen=True, slots=True)
class Spoken:
    """The ids and the codes of a recording."""

    ids: TextIds
    codes: Tensor  # [num_frames, num_code_groups] int64

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def digest(self) -> str:
        """What tells it from other recordings."""
        contents = self.ids.body.numpy().tobytes() + self.codes.numpy().tobytes()
        return hashlib.sha256(contents).hexdigest()[:32]


def add_adapters(model: SpeechModel, options: TuneOptions) -> None:
    """Freeze the model and put LoRA adapters, float32, beside the matrices of its layers.

    Raises:
        MissingPackageError: peft is not installed.
    """
    with require("train", by="--method lora", package="peft"):
        from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=options.rank, lora_alpha=options.alpha, target_modules=LORA_TARGETS, bias="none"
    )
    with torch.random.fork_rng():
        torch.manual_seed(options.seed)
        inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
        else:
            parameter.requires_grad_(False)


class SpeechTrainer(BaseTrainer):
    """A model, the recordings it learns from, and those that are held out.

    Args:
        model: with adapters, or in float32.
        training, held_out: the recordings; longer ones than `max_length` are left out.
        voice: the speaker's row, or the name of the model's own speaker.
    Raises:
        DatasetError: no recording is short enough.
    """

    model: SpeechModel
    options: TuneOptions

    def __init__(
        self,
        model: SpeechModel,
        training: Sequence[Spoken],
        held_out: Sequence[Spoken],
        voice: str | Voice,
        options: TuneOptions,
    ):
        self._spoken = fitting(training, options.max_length, "frames")
        self._held_out = held_out
        self._requests = {feed: SpeechOptions(voice=voice, text_feed=feed) for feed in FEEDS}
        super().__init__(model, options)
        if options.checkpointing:
            for stack in (model.model, model.code_predictor.model):
                stack.gradient_checkpointing_enable({"use_reentrant": False})
        # (step, mean loss of each codebook in nats); the first is that of the base model.
        self.evaluations: list[tuple[int, list[float]]] = []
        # Copies of the tensors with the lowest held-out loss; empty until that is measured.
        self._best: dict[str, Tensor] = {}

    def _order(self, epoch: int) -> list[tuple[int, str]]:
        draw = random.Random(self.options.seed + epoch)
        order = [(index, draw.choice(FEEDS)) for index in range(len(self._spoken))]
        draw.shuffle(order)
        return order

    def _losses(self, group: list[tuple[int, str]]) -> Iterator[Tensor]:
        # Every frame has the same weight, whichever recording it is of.
        num_frames = sum(len(self._spoken[index].codes) for index, _ in group)
        for rows in chunks(group, self.options.batch_size):
            sums = torch.stack([self._sums(self._spoken[index], feed) for index, feed in rows])
            yield loss_of(sums.sum(0), num_frames, len(group))

    def _sums(self, spoken: Spoken, feed: str) -> Tensor:
        with self.autocast():
            return self.model.losses(spoken.ids, self._requests[feed], spoken.codes)

    # ---- held-out recordings ---------------------------------------------------------------------

    def evaluate(self) -> list[float]:
        """Return the mean loss of each codebook over the held-out recordings, in nats."""
        was_training = self.model.training
        self.model.eval()
        sums, num_frames = np.zeros(self.model.num_code_groups), 0
        with torch.no_grad():
            for spoken in self._held_out:
                for feed in FEEDS:
                    sums += self._sums(spoken, feed).double().cpu().numpy()
                    num_frames += len(spoken.codes)
        self.model.train(was_training)
        terms = np.full(len(sums), num_frames)
        terms[0] += len(self._held_out) * len(FEEDS)
        return (sums / terms).tolist()

    @property
    def _totals(self) -> list[float]:
        return [
            losses[0] + RESIDUAL_WEIGHT * float(np.mean(losses[1:]))
            for _, losses in self.evaluations
        ]

    @property
    def is_over(self) -> bool:
        """Whether the held-out loss has not fallen for `patience` evaluations."""
        totals = self._totals
        return bool(totals) and len(totals) - 1 - int(np.argmin(totals)) >= self.options.patience

    def _measure(self) -> None:
        done = self.evaluations and self.evaluations[-1][0] == self.step
        if done or not self._held_out or not self.is_measured(self.step):
            return
        self.evaluations.append((self.step, self.evaluate()))
        totals = self._totals[1:]  # without the base model's
        if totals and min(totals) == totals[-1]:
            self._best = {name: value.clone() for name, value in self.current().items()}

    def is_measured(self, step: int) -> bool:
        """Return whether to measure the held-out loss, and speak a sample, after a step."""
        return step % self.options.eval_steps == 0 or step == self.num_steps

    def figures(self) -> dict[str, float]:
        found = BaseTrainer.figures(self)
        if self.evaluations and self.evaluations[-1][0] == self.step:
            losses = enumerate(self.evaluations[-1][1])
            found |= {f"held_out/codebook_{group:02}": loss for group, loss in losses}
        return found

    # ---- saving and resuming ---------------------------------------------------------------------

    def learned(self) -> dict[str, Tensor]:
        """Return the trained tensors of the lowest held-out loss, or the last, by name."""
        return self._best or self.current()

    def current(self) -> dict[str, Tensor]:
        """Return the trained tensors of the last step, by name."""
        named = self.model.named_parameters()
        return {name: value.detach() for name, value in named if value.requires_grad}

    def adapter_config(self, base: str) -> dict[str, Any]:
        """Return peft's description of the adapters: `adapter_config.json`."""
        return {
            "peft_type": "LORA",
            "base_model_name_or_path": base,
            "r": self.options.rank,
            "lora_alpha": self.options.alpha,
            "lora_dropout": 0.0,
            "target_modules": LORA_TARGETS,
            "bias": "none",
            "inference_mode": True,
        }

    def _state(self) -> dict[str, Any]:
        saved = {"model": self.current(), "best": self._best, "evaluations": self.evaluations}
        return saved | {"recordings": self._recordings}

    @property
    def _recordings(self) -> list[list[str]]:
        """What tells the recordings, learned from and held out, from others."""
        return [[each.digest for each in part] for part in (self._spoken, self._held_out)]

    def _restore(self, state: dict[str, Any]) -> None:
        learned = self.current()
        if learned.keys() != state["model"].keys():
            raise ValueError("it is of another model or method")
        # With others, what was learned would be measured, or the reverse. An older state has none.
        if (before := state.get("recordings", self._recordings)) != self._recordings:
            num_learned, num_held_out = map(len, before)
            raise ValueError(
                f"it has learned from other recordings or texts: {num_learned}, with "
                f"{num_held_out} held out"
            )
        with torch.no_grad():
            for name, value in learned.items():
                value.copy_(state["model"][name])
        self._best = {name: value.to(learned[name].device) for name, value in state["best"].items()}
        self.evaluations = [(step, losses) for step, losses in state["evaluations"]]
