"""Marks speech as synthetic, inaudibly: a keyed sequence under the envelope of the speech.

The sequence repeats every second. It is a sum of several noises, which the key determines, and each
of which is rotated by a multiple of 1/257 s. The rotations spell the operator, in a code any two
words of which differ in at least three noises, so that operators are told apart. The sequence has
eight bands between 350 and 3300 Hz, which a telephone transmits. Each band is as loud as the speech
in it was a moment ago, less `BELOW_DB`; all bands together are at most as loud as the whole speech
was, less `TOTAL_BELOW_DB`. The mark falls as soon as the speech does, so that it is not heard in
the gaps between sounds. No sample waits for later ones.

Source of the method: I. J. Cox et al., "Secure spread spectrum watermarking for multimedia", IEEE
Transactions on Image Processing 6(12), 1997. `mark_detector` finds the mark.
"""

import hashlib
from functools import lru_cache
from itertools import pairwise

import numpy as np

from qwen_megakernel.marking import MarkKey

BELOW_DB = 18.0  # level of the mark below that of the speech in the same band
TOTAL_BELOW_DB = 28.5  # least level of the mark below that of the speech in all bands
BAND_EDGES = np.geomspace(350, 3300, 9)  # Hz

NUM_ROTATIONS = 257  # the least prime of more than 8 bits: the code calculates modulo a prime
NUM_NOISES = 5  # the first is not rotated, two spell the operator, two check it

BLOCK_S = 0.010  # the gains change linearly from block to block
WINDOW_S = 0.012  # the past that sets the gains; a longer one is heard after loud sounds (PESQ)
SHORT_S, LONG_S = 0.004, 0.060  # the mark falls as the newest speech falls below a longer past
STEPS = 2**20  # of full scale; sums of whole numbers do not depend on the chunks


def rotations_of(operators: np.ndarray) -> np.ndarray:
    """Return how far each noise is rotated, in 1 / NUM_ROTATIONS s: [NUM_NOISES, num_operators]."""
    high, low = np.divmod(operators, 256)
    return np.stack([0 * high, high, low, high + low, high + 2 * low]) % NUM_ROTATIONS


@lru_cache(maxsize=4)
def noise_spectra(secret: bytes) -> np.ndarray:
    """Return the noises' spectra, [NUM_NOISES, num_hertz] complex: bin k is k Hz."""
    num_hertz = int(BAND_EDGES[-1]) + 1
    digest = hashlib.shake_256(b"qwen_megakernel watermark 1" + secret)
    drawn = np.frombuffer(digest.digest(2 * NUM_NOISES * num_hertz), "<u2")
    spectra = np.exp(2j * np.pi / 2**16 * drawn).reshape(NUM_NOISES, num_hertz)
    spectra[:, : int(BAND_EDGES[0]) + 1] = 0
    return spectra


@lru_cache(maxsize=4)
def marking_bands(key: MarkKey, sample_rate: int) -> np.ndarray:
    """Return a second of the sequence in each band, [num_bands, sample_rate], of power 1."""
    hertz = np.arange(int(BAND_EDGES[-1]) + 1)
    turns = rotations_of(np.array([key.operator])) * hertz / NUM_ROTATIONS
    spectrum = (noise_spectra(key.secret) * np.exp(-2j * np.pi * turns)).sum(axis=0)
    bands = []
    for low, high in pairwise(BAND_EDGES):
        band = np.fft.irfft(spectrum * ((hertz > low) & (hertz <= high)), sample_rate)
        bands.append(band / band.std())
    return np.array(bands)


class Watermark:
    """Adds the mark to the samples of one stream. It holds nothing back."""

    def __init__(self, key: MarkKey, sample_rate: int) -> None:
        self._bands = marking_bands(key, sample_rate)
        self._block = round(BLOCK_S * sample_rate)
        self._window = np.hanning(round(WINDOW_S * sample_rate))
        self._past = np.zeros(len(self._window), np.float32)  # unmarked samples
        # The bins of the window's spectrum overlap the bands; each counts for its part in a band.
        bins = np.arange(len(self._window) // 2 + 2) * sample_rate / len(self._window)
        edges = np.clip(BAND_EDGES, (bins - bins[1] / 2)[:, None], (bins + bins[1] / 2)[:, None])
        # A sum of squared bins becomes the square of the mark's standard deviation.
        self._scale = 2 / len(self._window) / np.square(self._window).sum()
        self._shares = np.diff(edges).T[:, : len(self._window) // 2 + 1] / bins[1]
        self._shares *= self._scale * 10 ** (-BELOW_DB / 10)
        self._short, self._long = round(SHORT_S * sample_rate), round(LONG_S * sample_rate)
        self._energies = np.zeros(self._long, np.int64)  # of the unmarked samples, in STEPS
        self._place = 0  # index of the next sample in its block
        self._time = 0  # index of the next sample in its second
        self._gains = np.zeros((2, len(self._bands)))  # at the block's beginning and end

    def push(self, samples: np.ndarray) -> np.ndarray:
        marked = np.empty(len(samples), np.float32)
        falls = self._falls(samples)
        begin = 0
        while begin < len(samples):
            if not self._place:
                self._gains = np.stack([self._gains[1], self._levels()])
            end = min(len(samples), begin + self._block - self._place)
            marked[begin:end] = samples[begin:end] + self._mark(end - begin) * falls[begin:end]
            self._past = np.concatenate([self._past, samples[begin:end]])[-len(self._window) :]
            self._place = (self._place + end - begin) % self._block
            begin = end
        return marked

    def _levels(self) -> np.ndarray:
        """Return the gain of each band after the samples so far."""
        powers = np.square(np.abs(np.fft.rfft(self._past * self._window)))
        wanted = (self._shares * powers).sum(axis=1)
        most = self._scale * powers.sum() * 10 ** (-TOTAL_BELOW_DB / 10)
        return np.sqrt(wanted * min(1, most / (wanted.sum() + 1e-30)))

    def _falls(self, samples: np.ndarray) -> np.ndarray:
        """Return by what the mark is turned down at each sample: [num_samples], 1 at most."""
        energies = np.square(np.rint(samples * np.float64(STEPS)).astype(np.int64))
        energies = np.concatenate([self._energies, energies])
        sums = np.concatenate([[0], energies.cumsum()])
        self._energies = energies[len(samples) :]
        ends = sums[self._long + 1 :]
        short = (ends - sums[self._long + 1 - self._short : -self._short]) / self._short
        long = (ends - sums[1 : -self._long]) / self._long
        return np.sqrt(np.minimum(1, short / np.maximum(long, 1)))

    def _mark(self, count: int) -> np.ndarray:
        """Return the next samples of the mark, which lie in one block."""
        rate = self._bands.shape[1]
        places = np.arange(self._place, self._place + count) / self._block
        bands = self._bands[:, np.arange(self._time, self._time + count) % rate]
        self._time = (self._time + count) % rate
        before, after = self._gains[..., None]
        return ((before + (after - before) * places) * bands).sum(axis=0)
