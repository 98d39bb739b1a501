"""The chain of a stream: from the codec's samples to those that are heard.

Each step holds back what it needs to see of what follows, and gives the rest out at the end. What
comes out does not depend on how the samples are cut into chunks.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from qwen_megakernel.records import MAX_SILENCE, SoundOptions
from qwen_megakernel.sound.gain import Gain, Limiter
from qwen_megakernel.sound.resampling import Resampler
from qwen_megakernel.sound.silence import Edges, HighPass
from qwen_megakernel.sound.stretch import Stretch


class Step(Protocol):
    """One change of the sound of one stream; both methods return [num_samples] float32."""

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Take the next [num_samples] float32, and return what is certain of the sound by now."""

    def finish(self) -> np.ndarray:
        """Return the rest, once all samples have been taken."""


class SoundChain:
    """The steps of one stream, itself a `Step`.

    Args:
        steps: in the order in which samples pass them.
        sample_rate: of what comes out, in Hz.
        edges: the step of these that cuts silence; None: there is none.
    """

    def __init__(self, steps: Sequence[Step], sample_rate: int, edges: Edges | None = None) -> None:
        self._steps, self.sample_rate, self._edges = steps, sample_rate, edges

    def push(self, samples: np.ndarray) -> np.ndarray:
        """See `Step`."""
        for step in self._steps:
            samples = step.push(samples)
        return samples

    def end_part(self, *, is_before_pause: bool) -> np.ndarray:
        """Return the rest of a part that is not the last of its stream.

        Args:
            is_before_pause: the silence at its end is cut, because a pause follows.
        """
        if self._edges:
            self._edges.trailing_s = 0.0 if is_before_pause else None
        return self.finish()

    def finish(self) -> np.ndarray:
        """See `Step`."""
        rest = np.empty(0, np.float32)
        for step in self._steps:
            rest = np.concatenate([step.push(rest), step.finish()])
        return rest


def new_chain(
    options: SoundOptions,
    sample_rate: int,
    high_pass: float | None = None,
    *,
    may_pause: bool = False,
) -> SoundChain | None:
    """Return the chain of a stream; None if its samples are heard as they are.

    Args:
        options: of the request.
        sample_rate: of the codec, in Hz.
        high_pass: takes away what is below, in Hz; None: nothing.
        may_pause: a pause may follow, before which silence is cut: it is held back until sound
            shows that none does.
    Raises:
        MissingPackageError: another sample rate is asked for and soxr is not installed.
    """
    steps: list[Step] = []
    heard_rate = options.sample_rate or sample_rate
    if high_pass:
        steps.append(HighPass(high_pass, sample_rate))
    leading, trailing = (
        # As many seconds before the stretch as are asked for after it.
        None if ms is None or ms == MAX_SILENCE else ms / 1000 * options.speed
        for ms in (options.leading_silence, options.trailing_silence)
    )
    edges: Edges | None = None
    if leading is not None or trailing is not None or may_pause:
        edges = Edges(leading, trailing, sample_rate, holds_back=may_pause)
        steps.append(edges)
    if options.speed != 1:
        steps.append(Stretch(options.speed, sample_rate))
    if heard_rate != sample_rate:
        steps.append(Resampler(sample_rate, heard_rate))
    if options.volume:
        steps.append(Gain(options.volume))
    if options.volume > 0:
        steps.append(Limiter(heard_rate))  # last: a resampled peak may be higher
    return SoundChain(steps, heard_rate, edges) if steps else None
