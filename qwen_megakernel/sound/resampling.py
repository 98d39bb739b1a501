"""Converts a stream to another sample rate, with soxr."""

from typing import Any

import numpy as np

QUALITY = "HQ"  # soxr's recipe; recordings are resampled with the same one


class Resampler:
    """Resamples one stream from `rate` to `new_rate`, both in Hz.

    The sound at t seconds of the input is at t seconds of the output. The output has as many
    samples as the input, times the ratio of the rates, rounded.
    """

    def __init__(self, rate: int, new_rate: int) -> None:
        import soxr

        self._stream: Any = soxr.ResampleStream(rate, new_rate, 1, dtype="float32", quality=QUALITY)
        self._rate, self._new_rate = rate, new_rate
        self._num_in = self._num_out = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        self._num_in += len(samples)
        resampled = self._stream.resample_chunk(samples)
        self._num_out += len(resampled)
        return resampled

    def finish(self) -> np.ndarray:
        rest = self._stream.resample_chunk(np.empty(0, np.float32), last=True)
        self._stream = None  # frees memory outside Python, even if the caller keeps the stream
        num_samples = round(self._num_in * self._new_rate / self._rate)
        missing = num_samples - self._num_out
        self._num_out = num_samples
        return np.pad(rest[:missing], (0, max(0, missing - len(rest))))
