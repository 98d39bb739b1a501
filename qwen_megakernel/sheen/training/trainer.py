"""Trains a language model to speak, in a plain torch loop that can be resumed exactly."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from qwen_megakernel.errors import (
    DatasetError,
    GenerationError,
    OutputError,
    UsageError,
    check_choice,
)
from qwen_megakernel.installing import install_command
from qwen_megakernel.output_files import replacing
from qwen_megakernel.printable import get_logger
from qwen_megakernel.sheen.training.sequences import IGNORED, Batch, TokenSequence, collate, pack

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = get_logger(__name__)

PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
STATE = "trainer.pt"


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """The options of a training."""

    learning_rate: float = 2e-5
    batch_size: int = 4  # rows of a forward pass
    gradient_accumulation: int = 4  # forward passes of a step
    max_length: int = 1024  # tokens of a row
    # Number format of the arithmetic; weights and their updates are float32.
    precision: str = "fp16"
    epochs: int = 20
    max_steps: int | None = None  # stop after these, even within an epoch
    warmup_steps: int = 100  # the learning rate rises for these steps, then falls linearly to 0
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, PRECISIONS)
        for name in ("batch_size", "gradient_accumulation", "max_length", "epochs", "max_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}; it must be 1 or more.")
        for name in ("learning_rate", "warmup_steps", "weight_decay", "max_grad_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)}; it must not be negative.")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step, for the log and the plot."""

    step: int
    loss: float  # nats per token, mean over the labelled tokens of the step
    learning_rate: float


class Trainer:
    """A model, its sequences and the state of its training.

    Args:
        model: a model in float32, on the device that trains it.
        sequences: the sequences to train on.
        pad_id: any token; it fills rows, where no sequence sees it.
        options: the options of the training.
    Raises:
        DatasetError: no sequence is short enough.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        sequences: Sequence[TokenSequence],
        pad_id: int,
        options: TrainOptions,
    ):
        fitting = [each for each in sequences if len(each) <= options.max_length]
        if not fitting:
            raise DatasetError(
                f"None of {len(sequences)} samples fits {options.max_length} tokens; the shortest "
                f"has {min(map(len, sequences))}.",
                hint="Cut the recordings into sentences, or raise --max-length.",
            )
        self.num_skipped = len(sequences) - len(fitting)
        self.model, self.options = model, options
        self._sequences, self._pad_id = fitting, pad_id
        self.device = next(model.parameters()).device
        self._dtype = PRECISIONS[options.precision]
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay
        )
        # float16 gradients underflow unless the loss is scaled up; other formats need no scaling.
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self._dtype is torch.float16)
        self.records: list[StepRecord] = []
        epochs = range(options.epochs)
        self.num_steps = sum(len(self._groups(epoch)) for epoch in epochs)
        if options.max_steps is not None:
            self.num_steps = min(self.num_steps, options.max_steps)

    @property
    def step(self) -> int:
        """Number of steps taken."""
        return len(self.records)

    def run(
        self,
        on_step: Callable[[StepRecord], None] = lambda record: None,
        *,
        until: int | None = None,
    ) -> None:
        """Train from the current step to the last, or to step `until`.

        Raises:
            GenerationError: the loss is not a finite number.
        """
        self.model.train()
        remaining = self._steps_from(self.step)
        end = self.num_steps if until is None else min(until, self.num_steps)
        while self.step < end:
            on_step(self._train_step(next(remaining)))
        self.model.eval()

    def _groups(self, epoch: int) -> list[list[list[int]]]:
        """Return the steps of an epoch: for each, the rows (of indices) of one update."""
        options = self.options
        lengths = [len(sequence) for sequence in self._sequences]
        rows = pack(lengths, options.max_length, seed=options.seed + epoch)
        random.Random(options.seed + epoch).shuffle(rows)  # the last row made is the emptiest
        size = options.batch_size * options.gradient_accumulation
        return [rows[first : first + size] for first in range(0, len(rows), size)]

    def _steps_from(self, step: int) -> Iterator[list[list[int]]]:
        """Yield the steps of all epochs, without the first `step` of them."""
        for epoch in range(self.options.epochs):
            groups = self._groups(epoch)
            yield from groups[step:]
            step = max(0, step - len(groups))

    def _train_step(self, rows: list[list[int]]) -> StepRecord:
        """Update the weights once, from one or more passes."""
        size = self.options.batch_size
        batches = [
            collate(
                [[self._sequences[i] for i in row] for row in rows[first : first + size]],
                self._pad_id,
            )
            for first in range(0, len(rows), size)
        ]
        # Every token has the same weight, however rows are divided into passes.
        num_tokens = sum(int((batch.labels != IGNORED).sum()) for batch in batches)
        learning_rate = self._learning_rate()
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        total = 0.0
        for batch in batches:
            loss = self.loss_sum(batch) / num_tokens
            self._scaler.scale(loss).backward()
            total += loss.item()
        if not math.isfinite(total):
            raise GenerationError(
                f"The loss of step {self.step + 1} is {total}.",
                "The weights, or the gradients in this precision, hold NaN or infinity.",
                "Lower --learning-rate, or train with --precision bf16 or fp32.",
            )
        self._scaler.unscale_(self._optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.max_grad_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        self.records.append(StepRecord(self.step + 1, total, learning_rate))
        return self.records[-1]

    def loss_sum(self, batch: Batch) -> Tensor:
        """Return the loss in nats, summed over the labelled tokens of a batch; float32."""
        labels = batch.labels.to(self.device)
        labelled = labels != IGNORED
        with torch.autocast(
            self.device.type, self._dtype, enabled=self._dtype is not torch.float32
        ):
            hidden = self.model.model(
                input_ids=batch.input_ids.to(self.device),
                attention_mask=batch.attention_mask.to(self.device),
                position_ids=batch.position_ids.to(self.device),
                use_cache=False,
            ).last_hidden_state
            # Logits of 164,000 tokens are the largest tensor, so only labelled positions have them.
            logits = self.model.lm_head(hidden[labelled])
        return cross_entropy(logits.float(), labels[labelled], reduction="sum")

    def _learning_rate(self) -> float:
        options, step = self.options, self.step + 1
        rise = min(1.0, step / max(1, options.warmup_steps))
        left = (self.num_steps - step + 1) / max(1, self.num_steps - options.warmup_steps)
        return options.learning_rate * min(rise, left)

    # ---- saving and resuming ---------------------------------------------------------------------

    def save_state(self, path: Path) -> None:
        """Write the state from which `load_state` continues exactly.

        Raises:
            OutputError: the file cannot be written.
        """
        state = {
            "options": asdict(self.options),
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "records": [asdict(record) for record in self.records],
            "rng": torch.get_rng_state(),  # for dropout, if the config has any
        }
        try:
            with replacing(path) as partial:
                torch.save(state, partial)
        except (OSError, RuntimeError) as error:
            raise OutputError(f"Cannot write {path}: {error}.") from error

    def load_state(self, path: Path) -> None:
        """Continue from a saved state.

        Raises:
            UsageError: the state is damaged, of another model, or of a training with other options.
        """
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            before = state["options"]
            self.model.load_state_dict(state["model"])
        except Exception as error:  # torch.load raises many kinds of errors for a damaged file
            raise UsageError(
                f"{path} cannot be resumed: {str(error).splitlines()[0]}",
                hint="Train into another folder.",
            ) from error
        free = ("epochs", "max_steps")  # a resumed training may be longer
        changed = [
            f"{name} was {before[name]} and is {value}"
            for name, value in asdict(self.options).items()
            if name not in free and before[name] != value
        ]
        if changed:
            raise UsageError(
                f"{path} cannot be resumed: {'; '.join(changed)}.",
                hint="Give the same options, or train into another folder.",
            )
        self._optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        self.records = [StepRecord(**record) for record in state["records"]]
        torch.set_rng_state(state["rng"])


def plot(records: Sequence[StepRecord], path: Path) -> bool:
    """Draw the loss over the steps into an image file; returns False without matplotlib.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        logger.warning("No %s: %s", path.name, install_command("plots"))
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([record.step for record in records], [record.loss for record in records])
    axes.set(xlabel="step", ylabel="loss, nats per token", ylim=(0, None))
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except OSError as error:
        raise OutputError(f"Cannot write {path}: {error.strerror}.") from error
    return True
