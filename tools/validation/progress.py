"""The progress bar of a comparison: one for each table, counted in decoded frames."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from qwen_megakernel.records import StepResult

FRAMES_PER_STEP = 2  # a frame of the emulation may take seconds
SECONDS_BETWEEN_LINES = 5  # if stderr is not a terminal
LINE = "{desc}: {n_fmt} of {total_fmt} frames, {elapsed} so far, about {remaining} left"


class _Lines:
    """A file that writes each state of a bar as a line of stderr, which need not be a terminal."""

    def write(self, text: str) -> None:
        if line := text.strip().replace(", about ? left", ""):  # before the first frame
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        sys.stderr.flush()


@contextlib.contextmanager
def bar(title: str, num_frames: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show on stderr how much of a table is done and how long the rest will take.

    Args:
        num_frames: how many frames there will be; the bar ignores frames beyond them.
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
    """A decoder of one slot that divides each step into short ones and reports them.

    Args:
        decoder: any `FrameDecoder`; all methods but `step` are its own.
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
        """Draw frames as `FrameDecoder.step` does, for one slot."""
        results: list[StepResult] = []
        tapped: list[dict[str, Tensor]] = []
        for first in range(0, num_frames, FRAMES_PER_STEP):
            count = min(FRAMES_PER_STEP, num_frames - first)
            codes_here = None if forced is None else forced[:, first : first + count]
            tapped.append({})
            taps_here = None if taps is None else tapped[-1]
            results.append(self._decoder.step(slots, count, codes_here, taps_here))
            self._on_frames(count)
            if results[-1].ended[0]:
                break
        if taps is not None:
            taps |= {name: torch.cat([t[name] for t in tapped], dim=1) for name in tapped[0]}
        codes = np.concatenate([each.codes for each in results], axis=1)
        codes = np.pad(codes, ((0, 0), (0, num_frames - codes.shape[1]), (0, 0)))
        drawn = sum(each.num_frames[0] for each in results)
        return StepResult(codes, (drawn,), results[-1].ended)
