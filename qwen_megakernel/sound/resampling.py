"""Another sample rate, by soxr's resampler of streams."""

from typing import Any

import numpy as np

from qwen_megakernel.errors import MissingPackageError

QUALITY = "HQ"  # the recipe that recordings are resampled with, too


class Resampler:
    """Resamples one stream.

    The sample at t seconds of the input is the one at t seconds of the output, whose number of
    samples is that of the input, times the ratio of the rates, rounded.

    Args:
        rate: of the input, in Hz.
        new_rate: of the output, in Hz.
    Raises:
        MissingPackageError: soxr is not installed.
    """

    def __init__(self, rate: int, new_rate: int) -> None:
        try:
            import soxr
        except ImportError as error:
            raise MissingPackageError(
                "Another sample_rate needs soxr.", hint="pip install soxr"
            ) from error
        self._stream: Any = soxr.ResampleStream(rate, new_rate, 1, dtype="float32", quality=QUALITY)
        self._rate, self._new_rate = rate, new_rate
        self._num_in = self._num_out = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        """See `chain.Step`."""
        self._num_in += len(samples)
        resampled = self._stream.resample_chunk(samples)
        self._num_out += len(resampled)
        return resampled

    def finish(self) -> np.ndarray:
        """See `chain.Step`."""
        rest = self._stream.resample_chunk(np.empty(0, np.float32), last=True)
        self._stream = None  # its memory is not Python's, and the stream may be kept
        num_samples = round(self._num_in * self._new_rate / self._rate)
        missing = num_samples - self._num_out
        self._num_out = num_samples
        return np.pad(rest[:missing], (0, max(0, missing - len(rest))))
