"""Changes the speed of speech but not its pitch, by waveform similarity overlap-add (WSOLA).

The output is a sum of windowed segments of the input, one for every `HOP_S`. In the input, their
places are `speed` times as far apart. Each segment may be moved by up to `REACH_S` to where the
input is most similar to what followed the previous segment. The waveform then continues smoothly,
although a piece was left out or repeated, and the pitch stays the same.

Source: W. Verhelst, M. Roelands, "An overlap-add technique based on waveform similarity (WSOLA) for
high quality time-scale modification of speech", ICASSP 1993.
"""

import numpy as np

# A segment is two hops long, which is two periods of the lowest voices. Both reaches together are a
# period of 50 Hz, so a place with the same phase is always within reach.
HOP_S = 0.015
REACH_S = 0.010

# If two places are equally similar, the one nearer to the segment's own place is used. The
# penalty at the end of the reach is a thousandth of a perfect similarity, so it moves no clear
# maximum, not even by a sample.
NEARNESS = 1e-3
SILENCE = 1e-7  # energy of a segment of noise at -100 dBFS; quieter segments have no similarity


class Stretch:
    """Makes the samples of one stream `speed` times as fast.

    A segment is chosen only when all of its possible input has arrived, so the output does not
    depend on how the input is divided.
    """

    def __init__(self, speed: float, sample_rate: int) -> None:
        self._speed = speed
        self._hop, self._reach = round(HOP_S * sample_rate), round(REACH_S * sample_rate)
        self._size = 2 * self._hop
        # The rising and the falling half of a Hann window, which add up to one where they overlap.
        phase = np.pi * (np.arange(self._hop, dtype=np.float32) + 0.5) / self._size
        self._rising, self._falling = np.sin(phase) ** 2, np.cos(phase) ** 2
        distance = np.abs(np.arange(-self._reach, self._reach + 1))
        self._farness = NEARNESS * distance / self._reach
        self._input = np.empty(0, np.float32)
        self._origin = 0  # index of the first sample that `_input` still has
        self._num_segments = 0
        self._following = 0  # index of the sample where the latest segment's second half begins
        self._overlap = np.zeros(self._hop, np.float32)  # that half, times the window
        self._output = np.empty(0, np.float32)  # samples that were not returned yet
        self._num_given = 0

    def push(self, samples: np.ndarray) -> np.ndarray:
        self._input = np.concatenate([self._input, samples])
        hops = [self._output]
        while self._input_needed <= self._end:
            hops.append(self._next_hop())
        self._output = np.concatenate(hops)
        # A segment may be longer than the whole output if a few samples are played fast.
        return self._give(int(self._end / self._speed))

    def finish(self) -> np.ndarray:
        num_heard = round(self._end / self._speed)
        missing = num_heard - self._num_given - len(self._output)
        hops = [self._output]
        for _ in range(-(-missing // self._hop)):
            silence = np.zeros(max(0, self._input_needed - self._end), np.float32)
            self._input = np.concatenate([self._input, silence])
            hops.append(self._next_hop())
        self._output = np.concatenate(hops)
        return self._give(num_heard)

    @property
    def _end(self) -> int:
        """Number of input samples so far."""
        return self._origin + len(self._input)

    @property
    def _place(self) -> int:
        """Index of the input sample where the next segment begins if it is not moved."""
        return int(self._num_segments * self._hop * self._speed + 0.5)

    @property
    def _input_needed(self) -> int:
        """Number of input samples after which the next segment can be chosen."""
        return max(self._place + self._reach, self._following) + self._size

    def _next_hop(self) -> np.ndarray:
        """Add the next segment, and return the [hop] samples that it completes."""
        begin = self._most_alike() if self._num_segments else 0
        segment = self._input[begin - self._origin :][: self._size]
        head, tail = segment[: self._hop], segment[self._hop :]
        # The first segment does not fade in, because no segment comes before it.
        hop = self._overlap + self._rising * head if self._num_segments else head.copy()
        self._overlap = self._falling * tail
        self._following = begin + self._hop
        self._num_segments += 1
        self._forget(min(self._place - self._reach, self._following))
        return hop

    def _most_alike(self) -> int:
        """Return the index near `_place` at which the input is most similar to what would follow.

        What would follow is the input from the second half of the latest segment on.
        """
        first, last = max(self._place - self._reach, 0), self._place + self._reach
        following = self._input[self._following - self._origin :][: self._size]
        region = self._input[first - self._origin : last + self._size - self._origin]
        products = np.correlate(region, following, "valid")
        energy = np.concatenate([[0.0], np.cumsum(np.square(region, dtype=np.float64))])
        energies = (energy[self._size :] - energy[: -self._size]) * np.square(
            following, dtype=np.float64
        ).sum()
        likeness = products / np.sqrt(np.maximum(energies, SILENCE**2))
        return first + int(np.argmax(likeness - self._farness[-len(likeness) :]))

    def _forget(self, index: int) -> None:
        """Drop the input before the sample at `index`."""
        if index > self._origin:
            self._input, self._origin = self._input[index - self._origin :], index

    def _give(self, num_heard: int) -> np.ndarray:
        """Return the new output, but at most `num_heard` samples in all calls together."""
        count = max(0, num_heard - self._num_given)
        given, self._output = self._output[:count], self._output[count:]
        self._num_given += len(given)
        return given
