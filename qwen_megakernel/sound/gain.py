"""Volume: a gain, and a limiter that keeps louder samples from clipping."""

import numpy as np

# No sample exceeds CEILING. The limiter begins to turn the sound down LOOKAHEAD_S before a peak, so
# that nothing clicks. It keeps the gain down for HOLD_S, which is longer than a period of the
# lowest voice: a gain that changes within one period is heard as distortion.
CEILING = 0.99
LOOKAHEAD_S = 0.005
HOLD_S = 0.050

# Gains are integers in units of 1 / _ONE. Sums of integers are exact, so a mean does not depend on
# how the samples are divided into chunks.
_ONE = 1 << 30


class Gain:
    """Multiplies the samples by a constant, which `volume` gives in dB."""

    def __init__(self, volume: float) -> None:
        self._factor = np.float32(10 ** (volume / 20))

    def push(self, samples: np.ndarray) -> np.ndarray:
        return samples * self._factor

    def finish(self) -> np.ndarray:
        return np.empty(0, np.float32)


class Limiter:
    """Turns the sound down around peaks above `CEILING`, and leaves everything else as it is.

    For each sample, the limiter first finds the largest gain that keeps every peak in a window
    around it below the ceiling. The gain of a sample is the mean of those gains over `LOOKAHEAD_S`.
    All windows in the mean contain the sample itself, so it stays below the ceiling, too.
    """

    def __init__(self, sample_rate: int) -> None:
        self._ahead = round(LOOKAHEAD_S * sample_rate)
        self._before = round(HOLD_S * sample_rate) + self._ahead
        self._samples = np.zeros(self._before, np.float32)  # returned ones in the window, then new

    def push(self, samples: np.ndarray) -> np.ndarray:
        self._samples = known = np.concatenate([self._samples, samples])
        count = len(known) - self._before - self._ahead
        if count <= 0:
            return np.empty(0, np.float32)
        ready = known[self._before : self._before + count]
        magnitude = np.abs(known)
        if magnitude.max() > CEILING:
            gains = (CEILING / np.maximum(magnitude, CEILING) * _ONE).astype(np.int64)
            width = self._ahead + 1
            allowed = _sliding_minimum(gains, self._before + 1)
            sums = np.concatenate([[0], np.cumsum(allowed)])
            ready = (ready * ((sums[width:] - sums[:-width]) / (width * _ONE))).astype(np.float32)
        self._samples = known[count:]
        return ready

    def finish(self) -> np.ndarray:
        return self.push(np.zeros(self._ahead, np.float32))


def _sliding_minimum(values: np.ndarray, width: int) -> np.ndarray:
    """Return the minimum of every `width` neighbouring values: [len(values) - width + 1].

    It combines running minima from the beginnings and from the ends of blocks of `width` values.

    Source: M. van Herk, "A fast algorithm for local minimum and maximum filters", Pattern
    Recognition Letters 13, 1992.
    """
    padded = np.concatenate([values, np.repeat(values[-1:], -len(values) % width)])
    blocks = padded.reshape(-1, width)
    from_begin = np.minimum.accumulate(blocks, axis=1).ravel()
    to_end = np.minimum.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
    count = len(values) - width + 1
    return np.minimum(to_end[:count], from_begin[width - 1 :][:count])
