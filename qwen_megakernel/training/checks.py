"""The checks of data and of a training that both families share; `cli.training` prints them."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from qwen_megakernel.errors import DatasetError, QwenTTSError
from qwen_megakernel.training.job import STATE
from qwen_megakernel.training.trainer import BaseTrainer, Watch

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check."""

    name: str
    passed: bool
    detail: str


def check_each(
    name: str, lines: Iterable[tuple[int, T]], use: Callable[[T], S]
) -> tuple[dict[int, S], Check]:
    """Return what `use` makes of the lines of a dataset, and a check that has every fault.

    Args:
        lines: each with its number, by which the results are found.
        use: raises a DatasetError for a line that cannot be used.
    """
    samples: dict[int, S] = {}
    faults = []
    try:
        for number, line in lines:
            try:
                samples[number] = use(line)
            except DatasetError as error:
                faults.append(f"line {number}: {error.what}")
    except DatasetError as error:
        faults.append(error.what)
    passed, detail = bool(samples) and not faults, f"{len(samples)} recordings"
    if faults:
        detail = (
            faults[0] if len(faults) == 1 else "\n     ".join([f"{len(faults)} faults", *faults])
        )
    return samples, Check(name, passed, detail)


def check_different(name: str, values: Sequence[str], ids: Sequence[str]) -> Check:
    """Check that no value that is not empty is there twice; the detail shows `ids` of those."""
    counts = Counter(filter(None, values))
    twice = [each for each, value in zip(ids, values, strict=True) if counts[value] > 1]
    return Check(name, not twice, f"the same: {', '.join(twice)}" if twice else "all different")


def check_codes(codebooks: Iterable[np.ndarray], size: int) -> Check:
    """Check that the codes of each codebook vary."""
    used = [len(np.unique(codes)) for codes in codebooks]
    return Check("codes", min(used) > 1, f"{used} of {size} in use, by codebook")


def check_lengths(lengths: Sequence[int], longest: int, unit: str) -> Check:
    """Check that some recordings are short enough to be trained on."""
    long = sum(length > longest for length in lengths)
    detail = f"{long} of {len(lengths)} have more than {longest} {unit}"
    return Check("lengths", long < len(lengths), detail + (" and will be left out" if long else ""))


def check_steps(trainer: BaseTrainer, watch: Watch, most: float = 1.0) -> Iterator[Check]:
    """Train to the end, and the second half once more; check that the loss falls below `most` times
    the first, and that resuming gives the same losses."""
    half = max(1, trainer.num_steps // 2)
    watch.start(trainer)
    with tempfile.TemporaryDirectory() as folder:
        try:
            trainer.run(watch.step, until=half)
            trainer.save_state(Path(folder) / STATE)
            trainer.run(watch.step)
            straight = [record.loss for record in trainer.records]
            trainer.load_state(Path(folder) / STATE)
            trainer.run(watch.step)
        except QwenTTSError as error:
            yield Check("loss", False, error.what)
            return
    resumed = [record.loss for record in trainer.records]
    fell = straight[-1] < most * straight[0]
    yield Check("loss", fell, f"{straight[0]:.3f} to {straight[-1]:.3f} in {len(straight)} steps")
    # On a GPU, the order in which a sum is added varies.
    tolerance = 0 if trainer.device.type == "cpu" else 1e-2
    same = np.allclose(straight, resumed, rtol=tolerance, atol=0)
    yield Check("resume", bool(same), f"after step {half}, the same losses")
