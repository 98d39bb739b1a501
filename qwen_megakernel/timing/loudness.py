"""Features for the alignment: the loudness and the sharpness of each hundredth of a second."""

import numpy as np

from qwen_megakernel.audio import to_float32

HOPS_PER_SECOND = 100
# The loudness in dB relative to full scale; and the sharpness, which is the logarithm of the power
# of the samples' differences over the power of the samples: high for "s", low for vowels.
NUM_FEATURES = 2
_FLOOR = 1e-10  # lower limit of the power, with full scale 1: -100 dB


class Loudness:
    """The features of a speech that arrives in chunks."""

    def __init__(self) -> None:
        self._rows: list[np.ndarray] = []  # each [num_hops, NUM_FEATURES] float32
        self._left = np.empty(0, np.float32)  # samples that do not fill a hop yet
        self._last = 0.0  # the sample before them
        self.seconds_per_hop = 1 / HOPS_PER_SECOND

    def add(self, samples: np.ndarray, rate: int) -> None:
        """Compute the features of the next samples, [num_samples] int16."""
        hop = max(1, rate // HOPS_PER_SECOND)
        self.seconds_per_hop = hop / rate
        sound = np.concatenate([self._left, to_float32(samples)])
        count = len(sound) // hop
        whole, self._left = sound[: count * hop], sound[count * hop :]
        if not count:
            return
        swings = np.diff(whole, prepend=np.float32(self._last)).reshape(count, hop)
        self._last = float(whole[-1])
        power = np.square(whole.reshape(count, hop)).mean(1) + _FLOOR
        sharpness = np.log((np.square(swings).mean(1) + _FLOOR) / power)
        self._rows.append(np.stack([10 * np.log10(power), sharpness], axis=1))

    def rows(self) -> np.ndarray:
        """Return all features so far, [num_hops, NUM_FEATURES]; another thread may `add` more."""
        so_far = self._rows[:]
        if not so_far:
            return np.empty((0, NUM_FEATURES), np.float32)
        joined = np.concatenate(so_far) if len(so_far) > 1 else so_far[0]
        self._rows[: len(so_far)] = [joined]
        return joined
