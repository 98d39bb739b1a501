"""Brings a complete speech to a given loudness in LUFS (ITU-R BS.1770).

The package `loudness` (libloudness, MIT) measures the speech; then a gain and the limiter change
it. Streams cannot do this, because the loudness of a speech is known only at its end.
"""

import math

import numpy as np

from qwen_megakernel.installing import require
from qwen_megakernel.sound.gain import Gain, Limiter
from qwen_megakernel.speech_options import LOUDNESS


def check_loudness(loudness: float) -> float:
    """Check a target loudness before anything is spoken, and return it as a float.

    Raises:
        UsageError: the value is not a number, or outside the limits of `LOUDNESS`.
        MissingPackageError: the package `loudness` is not installed.
    """
    target: float = LOUDNESS.check(loudness)
    with require("loudness", by="loudness", package='the package "loudness"'):
        import loudness as _  # noqa: F401
    return target


def at_loudness(samples: np.ndarray, sample_rate: int, loudness: float) -> np.ndarray:
    """Return a speech at the given loudness; peaks that would clip are turned down.

    Args:
        samples: [num_samples] float32, full scale at 1. A speech that is silent, or shorter than
            the 400 ms that a measurement needs, stays as it is.
        loudness: the result of `check_loudness`, in LUFS.
    """
    from loudness import integrated_loudness

    window = round(0.4 * sample_rate)
    measured = integrated_loudness(samples, sample_rate) if len(samples) >= window else -math.inf
    if not math.isfinite(measured):
        return samples
    limiter = Limiter(sample_rate)
    louder = limiter.push(Gain(loudness - measured).push(samples))
    return np.concatenate([louder, limiter.finish()])
