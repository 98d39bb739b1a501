"""Features for the alignment: the loudness and the sharpness of each hundredth of a second."""

import threading

import numpy as np

from qwen_megakernel.audio import to_float32

HOPS_PER_SECOND = 100
# The loudness in dB relative to full scale; and the sharpness, which is the logarithm of the power
# of the samples' differences over the power of the samples: high for "s", low for vowels.
NUM_FEATURES = 2
_FLOOR = 1e-10  # lower limit of the power, with full scale 1: -100 dB


# Samples are kept until their features are asked for, but no more seconds of them than this.
_KEPT_S = 20


class Loudness:
    """The features of a speech that arrives in chunks; one thread adds, another may ask."""

    def __init__(self) -> None:
        self._rows: list[np.ndarray] = []  # each [num_hops, NUM_FEATURES] float32
        self._left: list[np.ndarray] = []  # samples without features, [num_samples] int16 each
        self._num_left = 0
        self._last = 0.0  # the sample before them
        self._hop = 1  # samples
        self._lock = threading.Lock()
        self.seconds_per_hop = 1 / HOPS_PER_SECOND

    def add(self, samples: np.ndarray, rate: int) -> None:
        """Take the next samples, [num_samples] int16."""
        with self._lock:
            self._hop = max(1, rate // HOPS_PER_SECOND)
            self.seconds_per_hop = self._hop / rate
            self._left.append(samples)
            self._num_left += len(samples)
            if self._num_left > _KEPT_S * rate:
                self._compute()

    def rows(self) -> np.ndarray:
        """Return all features so far, [num_hops, NUM_FEATURES]."""
        with self._lock:
            self._compute()
            if not self._rows:
                return np.empty((0, NUM_FEATURES), np.float32)
            self._rows = [np.concatenate(self._rows)] if len(self._rows) > 1 else self._rows
            return self._rows[0]

    def _compute(self) -> None:
        """Compute the features of the samples that fill a hop."""
        count = self._num_left // self._hop
        if not count:
            return
        samples = np.concatenate(self._left)
        whole, left = to_float32(samples[: count * self._hop]), samples[count * self._hop :]
        self._left, self._num_left = [left.copy()], len(left)
        swings = np.diff(whole, prepend=np.float32(self._last)).reshape(count, self._hop)
        self._last = float(whole[-1])
        power = np.square(whole.reshape(count, self._hop)).mean(1) + _FLOOR
        sharpness = np.log((np.square(swings).mean(1) + _FLOOR) / power)
        self._rows.append(np.stack([10 * np.log10(power), sharpness], axis=1))
