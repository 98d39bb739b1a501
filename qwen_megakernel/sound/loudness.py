"""A whole speech at a loudness, in LUFS (ITU-R BS.1770). A stream's is not known before its end.

The package `loudness` measures (libloudness, MIT); a gain and the limiter of streams do the rest.
"""

import math

import numpy as np

from qwen_megakernel.errors import MissingPackageError, UsageError
from qwen_megakernel.installing import install_command
from qwen_megakernel.records import MAX_LOUDNESS, MIN_LOUDNESS, plain_number
from qwen_megakernel.sound.gain import Gain, Limiter

EXTRA = "loudness"


def check_loudness(loudness: float) -> float:
    """Return a loudness that `at_loudness` can give, before anything is spoken.

    Raises:
        UsageError: it is no number, or out of reach.
        MissingPackageError: the package that measures is not installed.
    """
    target = plain_number(float, "loudness", loudness)
    if not MIN_LOUDNESS <= target <= MAX_LOUDNESS:
        raise UsageError(
            f"loudness is {target:g}; it must be in {MIN_LOUDNESS:g} .. {MAX_LOUDNESS:g} (LUFS)."
        )
    try:
        import loudness as _  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            "loudness needs the package loudness.", hint=install_command(EXTRA)
        ) from error
    return target


def at_loudness(samples: np.ndarray, sample_rate: int, loudness: float) -> np.ndarray:
    """Return a speech at a loudness; its peaks are turned down where they would clip.

    Args:
        samples: [num_samples] float32, full scale at 1. What has no loudness, since it is silent or
            shorter than the 400 ms of a measurement, stays as it is.
        loudness: from `check_loudness`.
    """
    from loudness import integrated_loudness

    window = round(0.4 * sample_rate)
    measured = integrated_loudness(samples, sample_rate) if len(samples) >= window else -math.inf
    if not math.isfinite(measured):
        return samples
    limiter = Limiter(sample_rate)
    louder = limiter.push(Gain(loudness - measured).push(samples))
    return np.concatenate([louder, limiter.finish()])
