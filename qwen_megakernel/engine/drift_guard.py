"""The drift guard compares each part of a conversation with the first that its voice has said.

A model that goes on for minutes may begin to hurry, or to speak higher, louder, or like another
person. Silence does not count. Only the person needs a model: a Base checkpoint's speaker encoder.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from qwen_megakernel.audio import to_float32
from qwen_megakernel.timing.loudness import Loudness
from qwen_megakernel.timing.sounds import sounds_of

Identify = Callable[[np.ndarray, int], np.ndarray]  # [num_samples] float32, rate -> x-vector

AUDIBLE_DB = -60.0  # relative to full scale
PAUSE_DB = 25.0  # what is quieter than loud speech by more is a pause
MIN_SPEECH_S = 1.5  # the figures of less speech vary too much from text to text
IDENTITY_S = 3.0  # the beginning of a part, of which the x-vector is

# What is held back is delivered when its reader has less than this left to play, in which a part
# can be compared, its prompt run again, and a chunk drawn.
KEPT_S = 1.0

# By how much a part may differ from the first one. Texts differ without a drift, too; how often by
# more than this is what `benchmarks/measure.py drift-band` measures.
BAND: Mapping[str, tuple[float, float]] = {
    "rate_percent": (-30.0, 43.0),  # of the time for each sound; below 0 it hurries
    "pitch_semitones": (-3.0, 3.0),
    "loudness_db": (-4.0, 4.0),
    "identity": (0.7, math.inf),  # cosine of the x-vectors
}

LOWEST_HZ, HIGHEST_HZ = 60, 400
_PITCH_RATE = 8000  # the samples are averaged down to about this rate
_WINDOW_S, _HOP_S = 0.05, 0.02  # a window has three periods of the lowest pitch
_VOICED = 0.6  # a window whose periods correlate less has no pitch
_NEAR_BEST = 0.9  # of the periods that correlate so well, the shortest is the pitch's


@dataclass(frozen=True, slots=True)
class Figures:
    """What is measured of some speech; a figure that cannot be measured is NaN."""

    speech_s: float
    seconds_per_sound: float  # of weight 1 (`timing.sounds`)
    pitch_hz: float  # median
    loudness_db: float  # relative to full scale
    x_vector: np.ndarray | None = None

    @classmethod
    def of(
        cls, text: str, samples: np.ndarray, rate: int, identify: Identify | None = None
    ) -> Self:
        """Measure [num_samples] int16 of speech, and what is said.

        Args:
            identify: returns the x-vector of what `beginning` returns; None: there is no encoder.
        """
        features = Loudness()
        features.add(samples, rate)
        decibels = features.rows()[:, 0]
        loud = decibels[decibels > AUDIBLE_DB]
        spoken = decibels[decibels > np.percentile(loud, 90) - PAUSE_DB] if len(loud) else loud
        speech_s = len(spoken) * features.seconds_per_hop
        weight = sum(each.weight for each in sounds_of(text))
        return cls(
            speech_s,
            speech_s / weight if weight and speech_s else math.nan,
            median_pitch(to_float32(samples), rate),
            float(10 * np.log10(np.mean(10 ** (spoken / 10)))) if len(spoken) else math.nan,
            identify(beginning(samples, rate), rate)
            if identify and speech_s >= MIN_SPEECH_S
            else None,
        )

    def changes_from(self, first: Self) -> dict[str, float]:
        """Return by how much this differs from the first speech, by the names in `BAND`."""
        changes = {
            "rate_percent": 100 * (self.seconds_per_sound / first.seconds_per_sound - 1),
            "pitch_semitones": 12 * math.log2(self.pitch_hz / first.pitch_hz),
            "loudness_db": self.loudness_db - first.loudness_db,
        }
        if self.x_vector is not None and first.x_vector is not None:
            norms = np.linalg.norm(first.x_vector) * np.linalg.norm(self.x_vector)
            changes["identity"] = float(first.x_vector @ self.x_vector / norms)
        return changes

    def drift_from(self, first: Self) -> dict[str, float]:
        """Return the changes that leave the band."""
        changes = self.changes_from(first).items()
        return {name: by for name, by in changes if by < BAND[name][0] or by > BAND[name][1]}


def beginning(samples: np.ndarray, rate: int) -> np.ndarray:
    """Return the beginning of [num_samples] int16 that tells who speaks, float32."""
    return to_float32(samples[: round(IDENTITY_S * rate)])


def median_pitch(sound: np.ndarray, rate: int) -> float:
    """Return the median pitch of [num_samples] float32, by autocorrelation; NaN: there is none."""
    step = max(1, rate // _PITCH_RATE)
    rate_low = rate / step
    low = sound[: len(sound) // step * step].reshape(-1, step).mean(1)
    size, hop = round(_WINDOW_S * rate_low), round(_HOP_S * rate_low)
    lags = np.arange(int(rate_low / HIGHEST_HZ) - 1, int(rate_low / LOWEST_HZ) + 2)
    if len(low) < size:
        return math.nan
    windows = np.lib.stride_tricks.sliding_window_view(low, size)[::hop]
    windows = windows - windows.mean(1, keepdims=True)
    spectrum = np.fft.rfft(windows, 1 << int(size + lags[-1]).bit_length())
    products = np.fft.irfft(np.square(np.abs(spectrum)))[:, lags]
    # The energies of the two stretches that each lag multiplies with each other.
    energy = np.pad(np.cumsum(np.square(windows), 1), ((0, 0), (1, 0)))
    energies = energy[:, size - lags] * (energy[:, -1:] - energy[:, lags])
    fits = products / np.sqrt(energies + 1e-12)
    before, inner, after = fits[:, :-2], fits[:, 1:-1], fits[:, 2:]
    enough = np.maximum(_VOICED, _NEAR_BEST * inner.max(1, keepdims=True))
    is_peak = (inner >= before) & (inner > after) & (inner >= enough)
    rows = np.flatnonzero(is_peak.any(1))
    at = is_peak[rows].argmax(1)
    left, top, right = before[rows, at], inner[rows, at], after[rows, at]
    shift = (left - right) / (2 * (left - 2 * top + right))  # to the vertex of a parabola
    return float(np.median(rate_low / (lags[at + 1] + shift))) if len(rows) else math.nan
