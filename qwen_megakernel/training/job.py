"""The folder that a training writes: its state, its losses, and the voice of the last save."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qwen_megakernel.errors import UsageError, check_counts
from qwen_megakernel.installing import install_command
from qwen_megakernel.output_files import check_folder, held, replacing, writing
from qwen_megakernel.printable import get_logger
from qwen_megakernel.training.trainer import BaseTrainer, StepRecord, Watch

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = get_logger(__name__)

STATE, LOSSES, PLOT, EVENTS = "trainer.pt", "losses.jsonl", "loss.png", "tensorboard"


@dataclass(frozen=True, slots=True)
class BaseJob:
    """The inputs and the output of a training; a family adds its models.

    Attributes:
        data: the JSONL file of `prepare`.
        output: the folder of the voice.
        device: the device to train on; None: a GPU if there is one.
        save_steps: number of steps between two saves of the voice and the training state.
        resume: whether to continue the training in `output`.
        progress: whether downloads show their progress.
    """

    data: Path
    output: Path
    _: KW_ONLY
    device: str | None = None
    save_steps: int = 100
    resume: bool = False
    local_files_only: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        check_counts(save_steps=self.save_steps)

    def check_output(self) -> None:
        """Raise an error, before any work, for a folder that cannot be begun, or not be resumed.

        Raises:
            UsageError: the folder holds a training, or none to resume.
            OutputError: it cannot be made or written.
        """
        check_folder(self.output)
        has_state = (self.output / STATE).exists()
        if has_state != self.resume:
            raise UsageError(
                f"{self.output} holds {'a training already' if has_state else 'no training'}.",
                hint=f"{'Continue it with' if has_state else 'Begin one without'} --resume.",
            )


def run_job(
    trainer: BaseTrainer, job: BaseJob, write_voice: Callable[[], None], watch: Watch
) -> None:
    """Train, and write the folder every `save_steps` steps, at the end, and on an interrupt.

    The state is written first, and replaced whole: a run that is killed while it saves can be
    resumed, from this state or from the one before.

    Args:
        trainer: at its first step; `job.resume` loads the state of the folder into it.
        write_voice: writes the voice of the trainer's model.
    Raises:
        UsageError, OutputError, GenerationError: the state cannot be resumed, the folder cannot be
            written, or the loss is not a number.
    """
    folder = job.output
    if job.resume:
        trainer.load_state(folder / STATE)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        with writing(folder):
            # A run that was killed while it saved leaves a part of a file, perhaps a large one.
            for partial in folder.glob(".*.part" if job.resume else f".{STATE}.*.part"):
                partial.unlink(missing_ok=True)

        def save() -> None:
            trainer.save_state(folder / STATE)
            write_voice()
            with writing(folder / LOSSES), replacing(folder / LOSSES) as partial:
                lines = "".join(json.dumps(asdict(record)) + "\n" for record in trainer.records)
                partial.write_text(lines, encoding="utf-8")
            plot(trainer.records, folder / PLOT)

        boards = _open_boards(folder, trainer.step)

        def after(record: StepRecord) -> None:
            watch.step(record)
            for board in boards:
                with suppress(OSError):  # of a full disk, which `save` reports
                    for name, value in trainer.figures().items():
                        board.add_scalar(name, value, record.step)
            if record.step % job.save_steps == 0 and record.step < trainer.num_steps:
                save()

        watch.start(trainer)
        try:
            trainer.run(after)
        finally:  # also after Ctrl-C and a loss that is not a number, to keep the steps before
            if trainer.step:
                save()
            for board in boards:
                with suppress(OSError):
                    board.close()


def _open_boards(folder: Path, step: int) -> list[SummaryWriter]:
    """Return a writer of scalars after a step, or none: TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter

        return [SummaryWriter(folder / EVENTS, purge_step=step + 1)]
    except (ImportError, OSError):
        return []


def plot(records: Sequence[StepRecord], path: Path) -> None:
    """Draw the loss over the steps into an image file; without matplotlib, log that there is none.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        logger.warning("No %s: %s", path.name, install_command("plots"))
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([record.step for record in records], [record.loss for record in records])
    axes.set(xlabel="step", ylabel="loss, nats per token", ylim=(0, None))
    axes.grid(alpha=0.3)
    with writing(path):
        figure.savefig(path)
