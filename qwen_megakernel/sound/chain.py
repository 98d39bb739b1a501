"""The chain of a stream: the steps that turn the codec's samples into those that the caller gets.

A step may hold samples back until it has seen enough of the samples after them; it returns them at
the end at the latest. The output does not depend on how the samples are divided into chunks.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from qwen_megakernel.sound.gain import Gain, Limiter
from qwen_megakernel.sound.resampling import Resampler
from qwen_megakernel.sound.silence import Edges, HighPass
from qwen_megakernel.sound.stretch import Stretch
from qwen_megakernel.speech_options import MAX_SILENCE, SoundOptions


class Step(Protocol):
    """One change to the sound of one stream; both methods return [num_samples] float32."""

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Process the next [num_samples] float32.

        Returns the samples that are complete, which may be fewer, more, or none.
        """

    def finish(self) -> np.ndarray:
        """Return the samples that were still held back; no more samples may follow."""


class SoundChain:
    """The steps of one stream. The chain is a `Step` itself.

    Args:
        steps: the steps, in the order in which they process the samples.
        sample_rate: the sample rate of the output, in Hz.
        edges: the step among `steps` that cuts silence, or None if there is none.
    """

    def __init__(self, steps: Sequence[Step], sample_rate: int, edges: Edges | None = None) -> None:
        self._steps, self.sample_rate, self._edges = steps, sample_rate, edges

    def push(self, samples: np.ndarray) -> np.ndarray:
        for step in self._steps:
            samples = step.push(samples)
        return samples

    def end_part(self, *, is_before_pause: bool) -> np.ndarray:
        """Return the held samples at the end of a part that is not the last of its stream.

        Args:
            is_before_pause: whether a pause follows. If so, the silence at the part's end is cut.
        """
        if self._edges:
            self._edges.trailing_s = 0.0 if is_before_pause else None
        return self.finish()

    def finish(self) -> np.ndarray:
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
    """Return the chain of a stream, or None if its samples stay as they are.

    Args:
        sample_rate: the codec's sample rate, in Hz.
        high_pass: cutoff of a filter that removes lower frequencies, in Hz; None: no filter.
        may_pause: whether a pause may follow. Silence before a pause is cut, so all silence is
            held back until sound follows it.
    """
    steps: list[Step] = []
    heard_rate = options.sample_rate or sample_rate
    if high_pass:
        steps.append(HighPass(high_pass, sample_rate))
    leading, trailing = (
        # Silence is cut before the sound is stretched; the request gives its length afterwards.
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
