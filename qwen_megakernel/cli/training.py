"""Options, progress and results of the commands that train a voice of either family."""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qwen_megakernel.cli import options, parsing

if TYPE_CHECKING:
    from qwen_megakernel.training.checks import Check
    from qwen_megakernel.training.preparing import Report, Row
    from qwen_megakernel.training.trainer import BaseTrainer, StepRecord, Watch

    _Job = TypeVar("_Job")
    _Options = TypeVar("_Options")

# Without the option, the family's own default counts; the braces take it into the help.
_OPTIONS: dict[str, tuple[Any, str]] = {
    "--learning-rate": (float, "highest learning rate (default: {learning_rate})"),
    "--batch-size": (parsing.POSITIVE, "{rows} in a pass (default: {batch_size})"),
    "--gradient-accumulation": (parsing.POSITIVE, "passes before an optimizer step (default: 4)"),
    "--max-length": (parsing.POSITIVE, "most {lengths} (default: 1024)"),
    "--precision": (str, "number format: fp16, bf16 or fp32 (default: {precision})"),
    "--epochs": (parsing.POSITIVE, "passes over the recordings (default: {epochs})"),
    "--steps --max-steps": (parsing.POSITIVE, "steps after which to stop, even within an epoch"),
    "--warmup-steps": (
        parsing.at_least(0),
        "steps while the learning rate rises (default: {warmup_steps})",
    ),
    "--weight-decay": (float, "weight decay of AdamW (default: 0.01)"),
    "--max-grad-norm": (float, "norm to which larger gradients are scaled down (default: 1.0)"),
    "--seed": (int, "seed of new weights and of the order of {rows} (default: 0)"),
}


def add_training_options(command: argparse.ArgumentParser, **words: Any) -> None:
    """Add the options of training.

    Args:
        words: what the braces of the help stand for: defaults, what a pass reads, and what
            --max-length limits.
    """
    add = parsing.adder(command)
    for names, (kind, text) in _OPTIONS.items():
        add(names, text.format(**words), kind, dest=names.split("--")[-1].replace("-", "_"))


def add_workers_option(command: argparse.ArgumentParser) -> None:
    """Add --workers."""
    parsing.adder(command)(
        "--workers",
        "recordings to encode at once, on one core each; the output does not depend on it "
        "(default: one for each core)",
        parsing.POSITIVE,
    )


def add_job_options(command: argparse.ArgumentParser, save_steps: int) -> None:
    """Add --output, --save-steps and --resume."""
    add = parsing.adder(command)
    add("-o --output VOICE", "folder to write the voice to", parsing.file_name, required=True)
    add("--save-steps", "steps between saves", parsing.POSITIVE, save_steps)
    add("--resume", "go on from the state of an interrupted run", bool)


def job_of(args: argparse.Namespace, kind: "Callable[..., _Job]", **models: Any) -> "_Job":
    """Return the job `kind` of a command line; a check has neither output nor saves."""
    given = vars(args)
    saving = {name: given[name] for name in ("save_steps", "resume") if name in given}
    return kind(
        data=Path(args.data),
        output=Path(given.get("output", "")),
        device=args.device,
        local_files_only=args.local_files_only,
        progress=not args.quiet,
        **saving,
        **models,
    )


def chosen_options(args: argparse.Namespace, kind: "Callable[..., _Options]") -> "_Options":
    """Return the record `kind` of the options of training that were given."""
    given = {name: getattr(args, name, None) for name in inspect.signature(kind).parameters}
    return kind(**{name: value for name, value in given.items() if value is not None})


def row_bar(args: argparse.Namespace) -> "Callable[[list[Row]], Iterator[Row]]":
    """Return a function that yields recordings and shows how many are encoded."""
    from tqdm import tqdm

    return partial(tqdm, unit="recording", disable=args.quiet, file=sys.stderr)


def print_report(args: argparse.Namespace, report: "Report") -> None:
    """Print how many recordings were encoded."""
    print(
        f"{args.output}: {report.num_added} recordings added ({report.seconds:.1f} s), "
        f"{report.num_present} were there, {len(report.faults)} left out"
    )


@contextmanager
def step_bar(args: argparse.Namespace) -> "Iterator[Watch]":
    """Yield the functions to call before the first step and after each; they show a bar."""
    from tqdm import tqdm

    from qwen_megakernel.training.trainer import Watch

    bars: list[tqdm] = []  # empty until the model is loaded, whose errors a bar would disturb

    def start(trainer: "BaseTrainer") -> None:
        is_over = trainer.is_over or trainer.step >= trainer.num_steps
        if trainer.step and is_over:
            more = "" if trainer.is_over else "; a higher --epochs or --max-steps goes on"
            options.say(args, f"{args.output} is finished: step {trainer.step} was its last{more}")
        steps = {"total": trainer.num_steps, "initial": trainer.step}
        bars.append(tqdm(unit="step", disable=args.quiet, file=sys.stderr, **steps))

    def after(record: "StepRecord") -> None:
        bars[0].set_postfix_str(f"loss {record.loss:.3f}", refresh=False)
        bars[0].n = record.step - 1  # a check takes some steps twice
        bars[0].update()

    try:
        yield Watch(start, after)
    finally:
        for bar in bars:
            bar.close()


def print_steps(args: argparse.Namespace, trainer: "BaseTrainer") -> None:
    """Print how far a training has come."""
    loss = f"loss {trainer.records[-1].loss:.3f}" if trainer.records else "nothing to do"
    print(f"{args.output}: {trainer.step} steps, {loss}")


def print_checks(args: argparse.Namespace, check: "Callable[[Watch], Iterator[Check]]") -> int:
    """Print each check when it is done; returns the exit code, 1 if one has failed.

    Args:
        check: makes the checks; its argument is what `step_bar` yields.
    """
    failed = 0
    with step_bar(args) as watch:
        for each in check(watch):
            print(f"{'ok  ' if each.passed else 'FAIL'} {each.name}: {each.detail}", flush=True)
            failed += not each.passed
    print("all passed" if not failed else f"{failed} failed")
    return 1 if failed else 0
