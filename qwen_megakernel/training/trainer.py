"""A plain torch loop that can be resumed exactly; each family says what a step reads and loses."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from qwen_megakernel.errors import (
    DatasetError,
    GenerationError,
    OutputError,
    UsageError,
    check_choice,
    check_counts,
)
from qwen_megakernel.output_files import replacing
from qwen_megakernel.printable import get_logger

logger = get_logger(__name__)

S = TypeVar("S", bound=Sized)
T = TypeVar("T")

PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


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
        counts = ("batch_size", "gradient_accumulation", "max_length", "epochs", "max_steps")
        check_counts(**{name: getattr(self, name) for name in counts})
        for name in ("learning_rate", "warmup_steps", "weight_decay", "max_grad_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be 0 or more.")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step, for the log and the plot."""

    step: int
    loss: float  # nats per token, mean over the labelled tokens of the step
    learning_rate: float


def fitting(samples: Sequence[S], max_length: int, unit: str) -> list[S]:
    """Return the samples of at most `max_length` units ("tokens"); log how many are left out.

    Raises:
        DatasetError: no sample is short enough.
    """
    found = [each for each in samples if len(each) <= max_length]
    if not found:
        shortest = min(map(len, samples), default=0)
        raise DatasetError(
            f"None of {len(samples)} recordings has at most {max_length} {unit}; the shortest has "
            f"{shortest}.",
            hint="Cut the recordings into sentences, or raise --max-length.",
        )
    if num_long := len(samples) - len(found):
        logger.warning(
            "%d of %d recordings are left out, because they have more than %d %s.",
            *(num_long, len(samples), max_length, unit),
        )
    return found


def chunks(rows: list[T], size: int) -> list[list[T]]:
    """Divide rows into lists of `size`, the last of which may be shorter."""
    return [rows[first : first + size] for first in range(0, len(rows), size)]


@dataclass(frozen=True, slots=True)
class Watch:
    """What a caller of a training does before its first step, and after each step."""

    start: Callable[[BaseTrainer], None] = lambda trainer: None
    step: Callable[[StepRecord], None] = lambda record: None


NO_WATCH = Watch()


class BaseTrainer(ABC):
    """A model and the state of its training; a family adds `_order` and `_losses`.

    Args:
        model: a model in float32, on the device that trains it; `_order` works already.
    """

    def __init__(self, model: nn.Module, options: TrainOptions):
        self.model, self.options = model, options
        self.device = next(model.parameters()).device
        self._dtype = PRECISIONS[options.precision]
        self._optimizer = torch.optim.AdamW(
            self._trainable(), lr=options.learning_rate, weight_decay=options.weight_decay
        )
        # float16 gradients underflow unless the loss is scaled up; other formats need no scaling.
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self._dtype is torch.float16)
        self.records: list[StepRecord] = []
        self.num_steps = sum(len(self._groups(epoch)) for epoch in range(options.epochs))
        if options.max_steps is not None:
            self.num_steps = min(self.num_steps, options.max_steps)

    @abstractmethod
    def _order(self, epoch: int) -> list[Any]:
        """Return all rows of an epoch in their order, the same at every call."""

    @abstractmethod
    def _losses(self, group: list[Any]) -> Iterator[Tensor]:
        """Yield the loss of each pass over the rows of a step, scalars; their sum is its loss."""

    def _groups(self, epoch: int) -> list[list[Any]]:
        """Return the rows of each step of an epoch."""
        size = self.options.batch_size * self.options.gradient_accumulation
        return chunks(self._order(epoch), size)

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
        self._measure()  # the model of step 0, or what Ctrl-C has cut off
        groups = (group for epoch in range(self.options.epochs) for group in self._groups(epoch))
        remaining = islice(groups, self.step, None)
        end = self.num_steps if until is None else min(until, self.num_steps)
        while self.step < end and not self.is_over:
            record = self._train_step(next(remaining))
            self._measure()
            on_step(record)
        self.model.eval()

    def autocast(self) -> torch.autocast:
        """Return the context in which the model computes in the precision of the options."""
        return torch.autocast(
            self.device.type, self._dtype, enabled=self._dtype is not torch.float32
        )

    def _trainable(self) -> list[nn.Parameter]:
        return [each for each in self.model.parameters() if each.requires_grad]

    def _train_step(self, group: list[Any]) -> StepRecord:
        """Update the weights once, from one or more passes."""
        learning_rate = self._learning_rate()
        for parameters in self._optimizer.param_groups:
            parameters["lr"] = learning_rate
        before = torch.get_rng_state()
        try:
            total = 0.0
            for loss in self._losses(group):
                self._scaler.scale(loss).backward()
                total += loss.item()
            self._check_finite("loss", total)
            self._scaler.unscale_(self._optimizer)
            norm = torch.nn.utils.clip_grad_norm_(self._trainable(), self.options.max_grad_norm)
            if not self._scaler.is_enabled():  # it skips a step of infinite gradients
                self._check_finite("gradient", float(norm))
        except BaseException:  # the state that is saved now is that before this step
            torch.set_rng_state(before)
            self._optimizer.zero_grad(set_to_none=True)
            raise
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        self.records.append(StepRecord(self.step + 1, total, learning_rate))
        return self.records[-1]

    def _check_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise GenerationError(
                f"The {what} of step {self.step + 1} is {value}.",
                "The weights, or the gradients in this precision, hold NaN or infinity.",
                "Lower --learning-rate, or train with --precision bf16 or fp32.",
            )

    def _learning_rate(self) -> float:
        options, step = self.options, self.step + 1
        rise = min(1.0, step / max(1, options.warmup_steps))
        left = (self.num_steps - step + 1) / max(1, self.num_steps - options.warmup_steps)
        return options.learning_rate * min(rise, left)

    def _measure(self) -> None:  # noqa: B027 (a family may have nothing to measure)
        """Measure the model, if that is due and has not been done."""

    def figures(self) -> dict[str, float]:
        """Return what the last step measured, by name."""
        record = self.records[-1]
        return {"loss": record.loss, "learning_rate": record.learning_rate}

    @property
    def is_over(self) -> bool:
        """Whether training should end before its last step."""
        return False

    # ---- saving and resuming ---------------------------------------------------------------------

    def save_state(self, path: Path) -> None:
        """Write the state from which `load_state` continues exactly.

        Raises:
            OutputError: the file cannot be written; the file that was there is kept.
        """
        state = {
            "options": asdict(self.options),
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "records": [asdict(record) for record in self.records],
            "rng": torch.get_rng_state(),  # for dropout, if the config has any
            **self._state(),
        }
        try:
            with replacing(path) as partial, partial.open("wb") as file:
                torch.save(state, file)
        except (OSError, RuntimeError) as error:
            # Torch's own error of a full disk is "unexpected pos 64 vs 0", after that of the file.
            reason = error.__context__ if isinstance(error.__context__, OSError) else error
            raise OutputError(f"Cannot write {path}: {reason}.") from error

    def _state(self) -> dict[str, Any]:
        """Return what the family saves: "model", its weights, and perhaps more."""
        return {"model": self.model.state_dict()}

    def _restore(self, state: dict[str, Any]) -> None:
        """Take over what `_state` returned; raises any error for what does not fit."""
        self.model.load_state_dict(state["model"])

    def load_state(self, path: Path) -> None:
        """Continue from a saved state.

        Raises:
            UsageError: the state is damaged, of another model, or of a training with other options.
        """
        free = ("epochs", "max_steps")  # a resumed training may be longer
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            # An option that is newer than the state had the effect of its default.
            before = asdict(type(self.options)()) | state["options"]
            changed = [
                f"{name} was {before[name]} and is {value}"
                for name, value in asdict(self.options).items()
                if name not in free and before[name] != value
            ]
            if not changed:  # another rank has tensors of other shapes
                self._restore(state)
        except Exception as error:  # torch.load raises many kinds of errors for a damaged file
            raise UsageError(
                f"{path} cannot be resumed: {str(error).splitlines()[0].rstrip('.')}.",
                hint="Train into another folder.",
            ) from error
        if changed:
            raise UsageError(
                f"{path} cannot be resumed: {'; '.join(changed)}.",
                hint="Give the same options, or train into another folder.",
            )
        self._optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        self.records = [StepRecord(**record) for record in state["records"]]
        torch.set_rng_state(state["rng"])
