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


Chain = Sequence[Step]  # the steps of one stream, in the order in which they process the samples


def push(chain: Chain, samples: np.ndarray) -> np.ndarray:
    """Process the next samples with every step; see `Step.push`."""
    for step in chain:
        samples = step.push(samples)
    return samples


def finish(chain: Chain) -> np.ndarray:
    """Return the samples that the steps still held back; no more samples may follow."""
    rest = np.empty(0, np.float32)
    for step in chain:
        rest = np.concatenate([step.push(rest), step.finish()])
    return rest


def end_part(chain: Chain, *, is_before_pause: bool) -> np.ndarray:
    """Return the held samples at the end of a part that is not the last of its stream; the silence
    before a pause is cut."""
    for step in chain:
        if isinstance(step, Edges):
            step.trailing_s = 0.0 if is_before_pause else None
    return finish(chain)


def new_chain(
    options: SoundOptions,
    sample_rate: int,
    high_pass: float | None = None,
    *,
    may_pause: bool = False,
) -> Chain:
    """Return the chain of a stream; it has no steps if the samples stay as they are.

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
    if leading is not None or trailing is not None or may_pause:
        steps.append(Edges(leading, trailing, sample_rate, holds_back=may_pause))
    if options.speed != 1:
        steps.append(Stretch(options.speed, sample_rate))
    if heard_rate != sample_rate:
        steps.append(Resampler(sample_rate, heard_rate))
    if options.volume:
        steps.append(Gain(options.volume))
    if options.volume > 0:
        steps.append(Limiter(heard_rate))  # last: a resampled peak may be higher
    return steps
