"""Volume: a gain, and a limiter that keeps what was made louder from clipping."""

import numpy as np

# What no sample exceeds. The limiter turns down LOOKAHEAD_S before a peak, so that nothing clicks,
# and stays there for HOLD_S, longer than a period of the lowest voice: within one, a gain that
# moves is heard as distortion.
CEILING = 0.99
LOOKAHEAD_S = 0.005
HOLD_S = 0.050

# Gains are whole numbers, whose sums are exact: they do not depend on where a sum begins.
_ONE = 1 << 30


class Gain:
    """Multiplies the samples.

    Args:
        volume: in dB.
    """

    def __init__(self, volume: float) -> None:
        self._factor = np.float32(10 ** (volume / 20))

    def push(self, samples: np.ndarray) -> np.ndarray:
        """See `chain.Step`."""
        return samples * self._factor

    def finish(self) -> np.ndarray:
        """See `chain.Step`."""
        return np.empty(0, np.float32)


class Limiter:
    """Turns the sound down around peaks above `CEILING`, and leaves everything else as it is.

    The gain of a sample is a mean over `LOOKAHEAD_S` of gains that every peak within their window
    would bear; the windows of all of them hold the sample itself, so the mean is one that it bears.

    Args:
        sample_rate: in Hz.
    """

    def __init__(self, sample_rate: int) -> None:
        self._ahead = round(LOOKAHEAD_S * sample_rate)
        self._before = round(HOLD_S * sample_rate) + self._ahead
        self._samples = np.zeros(self._before, np.float32)  # given out ones, for windows, and new

    def push(self, samples: np.ndarray) -> np.ndarray:
        """See `chain.Step`."""
        self._samples = known = np.concatenate([self._samples, samples])
        count = len(known) - self._before - self._ahead
        if count <= 0:
            return np.empty(0, np.float32)
        ready = known[self._before : self._before + count]
        magnitude = np.abs(known)
        if magnitude.max() > CEILING:
            gains = (CEILING / np.maximum(magnitude, CEILING) * _ONE).astype(np.int64)
            width = self._ahead + 1
            borne = _sliding_minimum(gains, self._before + 1)
            sums = np.concatenate([[0], np.cumsum(borne)])
            ready = (ready * ((sums[width:] - sums[:-width]) / (width * _ONE))).astype(np.float32)
        self._samples = known[count:]
        return ready

    def finish(self) -> np.ndarray:
        """See `chain.Step`."""
        return self.push(np.zeros(self._ahead, np.float32))


def _sliding_minimum(values: np.ndarray, width: int) -> np.ndarray:
    """Return the least of every `width` values in a row: [len(values) - width + 1].

    Source: M. van Herk, "A fast algorithm for local minimum and maximum filters", Pattern
    Recognition Letters 13, 1992: running minima of blocks, from their beginnings and their ends.
    """
    padded = np.concatenate([values, np.repeat(values[-1:], -len(values) % width)])
    blocks = padded.reshape(-1, width)
    from_begin = np.minimum.accumulate(blocks, axis=1).ravel()
    to_end = np.minimum.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
    count = len(values) - width + 1
    return np.minimum(to_end[:count], from_begin[width - 1 :][:count])
