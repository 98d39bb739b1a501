"""Finds the place of each sound in the samples of a part.

The method is dynamic programming over hops of a hundredth of a second. A sound costs less the more
its length fits its weight and the pace of the part, and the more its samples fit its kind. Silence
is allowed between words. The result is the cheapest path through all sounds from the first sample
to the last. The search stays within a band around the places that the weights alone would give, so
its time is linear in the length of the part.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qwen_megakernel.timing.sounds import Kind, Pause, Sound

# For each kind, the mean and the standard deviation of two features: loudness in dB relative to the
# 90th percentile, and sharpness relative to the median of loud hops.
_LOOKS = {
    Kind.SILENCE: ((-45.0, 12.0), (1.5, 2.5)),
    Kind.VOWEL: ((-5.0, 6.0), (-0.2, 1.0)),
    Kind.SONORANT: ((-10.0, 7.0), (-0.6, 1.1)),
    Kind.HISS: ((-18.0, 8.0), (2.4, 1.2)),
    Kind.BREATH: ((-20.0, 10.0), (1.2, 1.6)),
    Kind.STOP: ((-26.0, 13.0), (0.6, 1.8)),
    Kind.ANY: ((-14.0, 11.0), (0.5, 1.8)),
}
_AUDIBLE_DB = -60.0  # relative to full scale; hops that are quieter are ignored
_FLOOR_DB = -60.0  # hops that are quieter count as this loud
# A hop is speech if it is _OVER_NOISE_DB louder than the 5th percentile. That limit is at least
# _SILENT_DB and at most _SPEAKING_DB.
_SILENT_DB, _SPEAKING_DB, _OVER_NOISE_DB = -45.0, -25.0, 6.0
_LOUD_DB = -20.0
_MAX_HOP_COST = 6.0  # the cost of a hop that does not fit its kind at all
_LENGTH_DEVIATION = 0.45  # standard deviation of the logarithm of a sound's length
_LENGTH_WEIGHT = 8.0  # weight of the cost of a length, in costs of single hops
_MAX_STRETCH = 3.5  # the longest sound, as a multiple of its expected length
# The cost of a silence, and the cost of its absence.
_SILENCE_COST = {Pause.GAP: 6.0, Pause.COMMA: 2.0, Pause.FULL_STOP: 0.0}
_NO_SILENCE_COST = {Pause.GAP: 0.0, Pause.COMMA: 1.0, Pause.FULL_STOP: 2.0}
_BAND_HOPS = 400  # width of the search band to each side
_MAX_HASTE = 1.6  # how much faster than expected the beginning of a part may be


@dataclass(frozen=True, slots=True)
class _Step:
    """The costs of one sound, or one silence, for each of its possible ends within the band."""

    low: int  # the first possible end
    costs: np.ndarray  # [num_ends] float
    begins: np.ndarray  # [num_ends] int: the best beginning for each end


def speech_hops(loudness: np.ndarray) -> np.ndarray:
    """Return whether each hop is speech: [num_hops] bool, from [num_hops, NUM_FEATURES]."""
    decibels = _relative(loudness)[:, 0]
    noise = np.percentile(decibels, 5) if len(decibels) else _SILENT_DB
    return decibels > np.clip(noise + _OVER_NOISE_DB, _SILENT_DB, _SPEAKING_DB)


def align(
    loudness: np.ndarray, sounds: Sequence[Sound], pace_hops: float | None = None
) -> np.ndarray:
    """Find where each sound begins and ends.

    Args:
        loudness: the features of a part, [num_hops, NUM_FEATURES] from `Loudness`, with at least
            one hop.
        sounds: the sounds of the part, at least one.
        pace_hops: None if the hops hold all sounds. Otherwise the hops are only the beginning of
            the part, and this is the length in hops of a sound of weight 1.
    Returns:
        [num_heard, 2]: first hop and end of each sound that is heard. The sounds do not overlap.
    """
    weights = np.array([sound.weight for sound in sounds])
    clock = np.concatenate([[0.0], np.cumsum(speech_hops(loudness) + 1e-6)])
    pace = clock[-1] / weights.sum() if pace_hops is None else pace_hops
    if pace_hops is not None:
        longest = int(np.searchsorted(np.cumsum(weights) * pace, _MAX_HASTE * clock[-1]))
        sounds, weights = sounds[: longest + 1], weights[: longest + 1]
    num_hops = len(loudness)
    centers = np.searchsorted(clock, pace * np.cumsum(weights)).clip(0, num_hops)
    found = None
    if num_hops >= 2 * len(sounds) or pace_hops is not None:
        is_whole = pace_hops is None
        found = _search(_relative(loudness), sounds, weights * pace, centers, is_whole=is_whole)
    if found is None:  # fewer hops than sounds, or a silence longer than the band
        ends = np.maximum.accumulate(centers)
        if pace_hops is None:
            ends[-1] = num_hops
        else:
            ends = ends[: max(1, int((centers < num_hops).sum()))]
        found = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)
    return found


def _relative(loudness: np.ndarray) -> np.ndarray:
    """Return the features relative to the features of the part's loud hops."""
    audible = loudness[loudness[:, 0] > _AUDIBLE_DB]
    if not len(audible):
        return np.full(loudness.shape, [_FLOOR_DB, 0.0])
    level = np.percentile(audible[:, 0], 90)
    decibels = np.maximum(loudness[:, 0] - level, _FLOOR_DB)
    sharpness = np.median(loudness[decibels > _LOUD_DB, 1])
    return np.stack([decibels, loudness[:, 1] - sharpness], axis=1)


def _hop_costs(relative: np.ndarray) -> np.ndarray:
    """Return [num_kinds, num_hops + 1]: the total cost of the hops before each place, per kind."""
    costs = []
    for kind in Kind:
        cost = np.zeros(len(relative))
        for values, (mean, deviation) in zip(relative.T, _LOOKS[kind], strict=True):
            cost += np.square((values - mean) / deviation) / 2 + np.log(deviation)
        costs.append(cost)
    beside = np.array(costs) - np.min(costs, axis=0)
    beside = np.minimum(beside, _MAX_HOP_COST)
    return np.concatenate([np.zeros((len(costs), 1)), np.cumsum(beside, axis=1)], axis=1)


def _search(
    relative: np.ndarray,
    sounds: Sequence[Sound],
    lengths: np.ndarray,
    centers: np.ndarray,
    *,
    is_whole: bool,
) -> np.ndarray | None:
    """Return the cheapest path through all sounds, or through the first of them if these are not
    whole; None if no path stays within the band."""
    num_hops, added = len(relative), _hop_costs(relative)
    silent = added[Kind.SILENCE]
    lows = np.maximum.accumulate(np.maximum(0, centers - _BAND_HOPS))
    highs = np.maximum.accumulate(np.minimum(num_hops, centers + _BAND_HOPS))
    highs[-1] = num_hops
    step = _Step(0, np.zeros(1), np.zeros(1, int))
    steps: list[_Step] = []
    cheapest, chosen = np.inf, None  # the best path: numbers of steps and sounds, and last end
    for index, sound in enumerate(sounds):
        low, high = int(lows[index]), int(highs[index])
        if sound.pause is not Pause.NONE:
            step = _silence(step, silent, sound.pause, high)
            steps.append(step)
        step = _sound(step, added[sound.kind], float(lengths[index]), low, high)
        if not np.isfinite(step.costs).any():
            break
        steps.append(step)
        if is_whole and index < len(sounds) - 1:
            continue
        # A silence of any length may follow the last sound.
        costs = step.costs - silent[step.low : step.low + len(step.costs)] + silent[-1]
        last = int(costs.argmin())
        if costs[last] < cheapest:
            cheapest, chosen = costs[last], (len(steps), index + 1, step.low + last)
    if chosen is None:
        return None
    num_steps, num_sounds, end = chosen
    return _trace(steps[:num_steps], sounds[:num_sounds], end)


def _silence(before: _Step, added: np.ndarray, pause: Pause, high: int) -> _Step:
    """Return the step for a silence of any length, or none, after the step `before`."""
    low = before.low
    ends = np.arange(low, max(high, low + len(before.costs) - 1) + 1)
    arriving = np.full(len(ends), np.inf)
    arriving[: len(before.costs)] = before.costs
    at_begin = arriving - added[ends]
    cheapest = np.minimum.accumulate(at_begin)
    begins = np.maximum.accumulate(np.where(at_begin <= cheapest, np.arange(len(ends)), 0))
    costs = cheapest + added[ends] + _SILENCE_COST[pause]
    without = arriving + _NO_SILENCE_COST[pause]
    is_none = without <= costs
    return _Step(low, np.where(is_none, without, costs), np.where(is_none, ends, low + begins))


def _sound(before: _Step, added: np.ndarray, length: float, low: int, high: int) -> _Step:
    """Return the step for a sound of about `length` hops after the step `before`.

    The sound ends at `low` to `high`.
    """
    longest = max(2, int(np.ceil(_MAX_STRETCH * length)))
    low = max(low, before.low + 1)
    if high < low:
        return _Step(low, np.full(1, np.inf), np.zeros(1, int))
    first = low - longest  # the first possible beginning
    arriving = np.full(high - first, np.inf)  # for beginnings at first .. high - 1
    begin, end = max(first, before.low), min(high, before.low + len(before.costs))
    if begin < end:
        arriving[begin - first : end - first] = (
            before.costs[begin - before.low : end - before.low] - added[begin:end]
        )
    # Row i has all beginnings of a sound that ends at low + i, the longest sound first.
    windows = np.lib.stride_tricks.sliding_window_view(arriving, longest)
    hops = np.arange(longest, 0, -1)
    unlikely = np.square(np.log(hops / length) / _LENGTH_DEVIATION) / 2 * _LENGTH_WEIGHT
    sums = windows + unlikely
    chosen = sums.argmin(axis=1)
    ends = np.arange(low, high + 1)
    costs = sums[np.arange(len(ends)), chosen] + added[ends]
    return _Step(low, costs, ends - hops[chosen])


def _trace(steps: Sequence[_Step], sounds: Sequence[Sound], end: int) -> np.ndarray:
    """Follow the cheapest path back from the end of the last sound."""
    remaining, found = list(steps), []
    for sound in reversed(sounds):
        step = remaining.pop()
        begin = int(step.begins[end - step.low])
        found.append((begin, end))
        end = begin
        if sound.pause is not Pause.NONE:
            step = remaining.pop()
            end = int(step.begins[end - step.low])
    return np.array(found[::-1])
