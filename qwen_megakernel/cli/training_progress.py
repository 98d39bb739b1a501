"""Progress bars and results of the commands that train a voice, whichever family it is of."""

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from qwen_megakernel.training.preparing import Report, Row
    from qwen_megakernel.training.trainer import BaseTrainer, StepRecord

    _Options = TypeVar("_Options")
    Watch = tuple[Callable[[BaseTrainer], None], Callable[[StepRecord], None]]


def chosen_options(args: argparse.Namespace, kind: "Callable[..., _Options]") -> "_Options":
    """Return the record `kind` of the options of training that were given."""
    given = {name: getattr(args, name, None) for name in inspect.signature(kind).parameters}
    return kind(**{name: value for name, value in given.items() if value is not None})


def row_bar(args: argparse.Namespace) -> "Callable[[list[Row]], Iterator[Row]]":
    """Return a function that yields recordings and shows how many are encoded."""
    from tqdm import tqdm

    def bar(rows: "list[Row]") -> "Iterator[Row]":
        yield from tqdm(rows, unit="recording", disable=args.quiet, file=sys.stderr)

    return bar


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

    bars: list[tqdm] = []  # empty until the model is loaded, whose errors a bar would disturb

    def start(trainer: "BaseTrainer") -> None:
        steps = {"total": trainer.num_steps, "initial": trainer.step}
        bars.append(tqdm(unit="step", disable=args.quiet, file=sys.stderr, **steps))

    def after(record: "StepRecord") -> None:
        bars[0].set_postfix_str(f"loss {record.loss:.3f}", refresh=False)
        bars[0].update()

    try:
        yield start, after
    finally:
        for bar in bars:
            bar.close()


def print_steps(args: argparse.Namespace, trainer: "BaseTrainer") -> None:
    """Print how far a training has come."""
    loss = f"loss {trainer.records[-1].loss:.3f}" if trainer.records else "nothing to do"
    print(f"{args.output}: {trainer.step} steps, {loss}")
