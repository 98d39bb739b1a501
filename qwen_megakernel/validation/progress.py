"""What a comparison shows while it runs: one bar a table, counted in decoded frames."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from qwen_megakernel.records import StepResult

FRAMES_PER_STEP = 2  # a frame of the emulation takes up to seconds
SECONDS_BETWEEN_LINES = 5  # where stderr is no terminal
LINE = "{desc}: {n_fmt} of {total_fmt} frames, {elapsed} so far, about {remaining} left"


class _Lines:
    """A file in which each state of a bar is a line; on a terminal it would replace the last."""

    def write(self, text: str) -> None:
        """Write one state."""
        if line := text.strip():
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        """Show what was written."""
        sys.stderr.flush()


@contextlib.contextmanager
def bar(title: str, num_frames: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show on stderr how much of a table is done and how long the rest will take.

    Args:
        num_frames: how many there will be; what is reported beyond them is not shown.
    Yields:
        A function that takes the number of frames decoded since its last call.
    """
    look: dict[str, Any] = {"mininterval": 0.2, "leave": False}  # the table takes the bar's place
    if not sys.stderr.isatty():
        interval = SECONDS_BETWEEN_LINES
        look = {"mininterval": interval, "maxinterval": interval, "bar_format": LINE}
        look |= {"file": _Lines()}
    with tqdm(desc=title, total=num_frames, unit="frame", disable=quiet, **look) as shown:

        def on_frames(count: int) -> None:
            shown.update(min(count, num_frames - shown.n))

        yield on_frames


class WatchedDecoder:
    """A decoder of one slot whose steps are cut into short ones; each is reported.

    Args:
        decoder: any `FrameDecoder`; all but `step` is its own.
        on_frames: called with the number of frames after each short step.
    """

    def __init__(self, decoder: Any, on_frames: Callable[[int], None]):
        self._decoder, self._on_frames = decoder, on_frames

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def step(
        self,
        slots: Sequence[int],
        num_frames: int,
        forced: Tensor | None = None,
        taps: dict[str, Tensor] | None = None,
    ) -> StepResult:
        """As `FrameDecoder.step` of one slot."""
        results: list[StepResult] = []
        tapped: list[dict[str, Tensor]] = []
        for first in range(0, num_frames, FRAMES_PER_STEP):
            count = min(FRAMES_PER_STEP, num_frames - first)
            led = None if forced is None else forced[:, first : first + count]
            tapped.append({})
            asked = None if taps is None else tapped[-1]
            results.append(self._decoder.step(slots, count, led, asked))
            self._on_frames(count)
            if results[-1].ended[0]:
                break
        for name in tapped[0]:
            taps[name] = torch.cat([each[name] for each in tapped], dim=1)
        codes = np.concatenate([each.codes for each in results], axis=1)
        codes = np.pad(codes, ((0, 0), (0, num_frames - codes.shape[1]), (0, 0)))
        drawn = sum(each.num_frames[0] for each in results)
        return StepResult(codes, (drawn,), results[-1].ended)
