"""Finds the mark of `watermark` in a recording, also one that was compressed, cut or resampled.

The speech is by far louder than the mark, so the recording is whitened first: strong frequencies,
such as the harmonics of a voice, are turned down until the mark between them counts as much. Then
the seconds of the recording are added up, since the mark repeats every second, and correlated with
the noises of the key. The noises of one operator must all be found at the same place.

A score is in standard deviations of the scores of unmarked audio, which are normally distributed
(`benchmarks/measure.py marks` measures that), so it has a known chance of being a false alarm.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from qwen_megakernel.marking import MAX_OPERATOR
from qwen_megakernel.sound.resampling import Resampler
from qwen_megakernel.sound.watermark import (
    BAND_EDGES,
    NUM_NOISES,
    NUM_ROTATIONS,
    noise_spectra,
    rotations_of,
)

MOST_FALSE_ALARMS = 1e-6  # for a recording; a mark is reported if its chance is lower
CLEAR_GAP = 1.5  # by how much the operator's score must exceed that of any other operator
WINDOWS_S = (5, 10)  # lengths of the pieces that are searched, each half over the one before

ROTATION_SAMPLES = 64
RATE = NUM_ROTATIONS * ROTATION_SAMPLES  # Hz, at which the detector computes
FRAME, HOP = 1024, 256  # 62 ms: the harmonics of a voice are narrower than their distance
FLOOR = 0.03  # weaker bins than this part of the mean are not turned up
NEIGHBOURS = 12  # bins on both sides whose mean is the envelope: 200 Hz
TONE = 3.0  # a frequency that is stronger than this many medians is a tone, and is turned down

# A recording may play faster or slower. Between neighbouring speeds, the ends of a window differ by
# a quarter of the period of a frequency in the middle of the bands.
MOST_SPEED = 0.11
COARSE_S, COARSE_STEP, NUM_CANDIDATES = 4.0, 8e-5, 8
FINE_STEP = 2e-5

_WORDS = rotations_of(np.arange(MAX_OPERATOR + 1))


@dataclass(frozen=True, slots=True)
class Mark:
    """A part of a recording that is marked with the key."""

    operator: int | None  # None: another operator is nearly as likely
    false_alarm: float  # the chance that an unmarked recording gives such a score
    start_s: float
    end_s: float
    speed: float = 1.0  # how fast the recording plays

    def facts(self) -> dict[str, Any]:
        """Return all that is known for JSON, with `confidence`, the chance of no false alarm."""
        return asdict(self) | {"confidence": 1 - self.false_alarm}


class Score(NamedTuple):
    """How well a window fits the best operator; see the docstring of the module."""

    value: float
    operator: int
    gap: float  # to the next operator, at any of the best places


def find_marks(
    samples: np.ndarray, sample_rate: int, secret: bytes, *, search_speeds: bool = True
) -> list[Mark]:
    """Return the marked parts of a recording, in order; an empty list if no mark was found.

    Args:
        samples: [num_samples] float, full scale at 1.
        search_speeds: whether to look for a recording that plays up to 10 % faster or slower if no
            mark is found at its own speed; this takes some ten seconds.
    """
    resampler = Resampler(sample_rate, RATE)
    samples = samples.astype(np.float32, copy=False)
    white = whiten(np.concatenate([resampler.push(samples), resampler.finish()]))
    windows: list[tuple[int, int]] = []
    for length_s in WINDOWS_S:
        windows = _windows(len(white), length_s * RATE)
        # Each length is a trial, and the search for a speed is another one.
        num_trials = RATE * _WORDS.shape[1] * len(windows) * (len(WINDOWS_S) + 1)
        found: list[Mark] = []
        for begin, end in windows:
            found += _judge(score(white[begin:end], secret), num_trials, begin, end)
        if found:
            return _join(found)
    if not search_speeds:
        return []
    # Of the longest windows, the one in the middle; the speed is that of the whole recording.
    begin, end = windows[len(windows) // 2]
    speed, result = _search_speeds(white[begin:end], secret)
    return _judge(result, num_trials * 2 * MOST_SPEED / FINE_STEP, begin, end, speed)


def whiten(samples: np.ndarray) -> np.ndarray:
    """Return [num_samples] at `RATE` with its strong frequencies turned down, see the module."""
    taper = np.sqrt(np.hanning(FRAME + 1)[:-1])
    padded = np.pad(samples, (FRAME, FRAME + -len(samples) % HOP))
    spectra = np.fft.rfft(np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::HOP] * taper)
    powers = np.square(np.abs(spectra))
    floored = np.sqrt(powers) + FLOOR * np.sqrt(powers.mean()) + 1e-12
    sums = np.pad(np.square(floored), ((0, 0), (NEIGHBOURS + 1, NEIGHBOURS)), "edge").cumsum(axis=1)
    envelopes = np.sqrt(sums[:, 2 * NEIGHBOURS + 1 :] - sums[:, : -2 * NEIGHBOURS - 1])
    spectra *= np.sqrt(envelopes / floored) / floored
    white = np.zeros(len(padded))
    for index, frame in enumerate(np.fft.irfft(spectra) * taper):
        white[index * HOP : index * HOP + FRAME] += frame
    return white[FRAME : FRAME + len(samples)]


def score(white: np.ndarray, secret: bytes, speed: float = 1.0) -> Score:
    """Return how well whitened samples fit the key, at the best place and for the best operator."""
    fits, promising = _fits(white, secret, speed)
    results = []
    for place in np.argpartition(promising, -4, axis=None)[-4:]:
        rotation, sample = divmod(place, ROTATION_SAMPLES)
        turned = np.roll(fits[..., sample], -rotation, axis=1)
        values = np.take_along_axis(turned, _WORDS, axis=1).sum(axis=0)
        second, first = np.partition(values, -2)[-2:]
        results.append(Score(float(first), int(values.argmax()), float(first - second)))
    best = max(results)
    # A wrong place may have an operator of its own that fits nearly as well.
    others = [best.value - each.value for each in results if each.operator != best.operator]
    return best._replace(gap=min([best.gap, *others]))


def _fits(white: np.ndarray, secret: bytes, speed: float) -> tuple[np.ndarray, np.ndarray]:
    """Return how well each noise fits at each place, and all together with any rotations.

    Both arrays have the places as [rotation, sample in a rotation], since a noise may be rotated
    only by whole rotations: [NUM_NOISES, NUM_ROTATIONS, ROTATION_SAMPLES], and without the noises.
    """
    noises = noise_spectra(secret)
    folded = np.bincount((np.arange(len(white)) * speed).astype(np.int64) % RATE, white, RATE)
    spectrum = np.fft.rfft(folded)[: noises.shape[1]]
    sizes = np.abs(spectrum)
    spectrum *= np.minimum(1, TONE * np.median(sizes[int(BAND_EDGES[0]) :]) / (sizes + 1e-30))
    fits = np.fft.irfft(spectrum * noises.conj(), RATE)
    fits /= np.sqrt(np.square(fits).mean() * NUM_NOISES) + 1e-30
    fits = fits.reshape(NUM_NOISES, NUM_ROTATIONS, ROTATION_SAMPLES)
    return fits, fits[0] + fits[1:].max(axis=1).sum(axis=0)


def false_alarm(value: float, num_trials: float) -> float:
    """Return the chance that the best of so many scores of unmarked audio is at least `value`."""
    return min(1.0, num_trials * math.erfc(value / math.sqrt(2)) / 2)


def _judge(
    result: Score, num_trials: float, begin: int, end: int, speed: float = 1.0
) -> list[Mark]:
    """Return the window's mark in a list, empty if its score can be a false alarm."""
    chance = false_alarm(result.value, num_trials)
    if chance > MOST_FALSE_ALARMS:
        return []
    operator = result.operator if result.gap >= CLEAR_GAP else None
    return [Mark(operator, chance, begin / RATE, end / RATE, speed)]


def _windows(num_samples: int, length: int) -> list[tuple[int, int]]:
    """Return windows of a length, of which each begins in the middle of the one before."""
    last = max(0, num_samples - length)
    begins = sorted({*range(0, last, length // 2), last})
    return [(begin, min(num_samples, begin + length)) for begin in begins]


def _search_speeds(white: np.ndarray, secret: bytes) -> tuple[float, Score]:
    """Return the best speed and its score: roughly from some seconds, then from the window."""
    middle, half = len(white) // 2, round(COARSE_S * RATE / 2)
    part = white[max(0, middle - half) : middle + half]
    speeds = 1 + np.arange(-MOST_SPEED, MOST_SPEED, COARSE_STEP)
    values = [_fits(part, secret, speed)[1].max() for speed in speeds]
    best = speeds[np.argsort(values)[-NUM_CANDIDATES:]]
    fine = np.arange(-COARSE_STEP, COARSE_STEP, FINE_STEP)
    return max(
        ((speed, score(white, secret, speed)) for speed in np.add.outer(best, fine).ravel()),
        key=lambda result: result[1].value,
    )


def _join(marks: list[Mark]) -> list[Mark]:
    """Return marks, those of one operator that overlap as one mark."""
    joined = marks[:1]
    for mark in marks[1:]:
        last = joined[-1]
        operators = {last.operator, mark.operator} - {None}
        if mark.start_s <= last.end_s and len(operators) <= 1:
            joined[-1] = replace(
                last,
                operator=next(iter(operators), None),
                false_alarm=min(last.false_alarm, mark.false_alarm),
                end_s=mark.end_s,
            )
        else:
            joined.append(mark)
    return joined
