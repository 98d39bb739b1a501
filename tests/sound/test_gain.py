"""Volume and the limiter: nothing clips, and quiet sound is unchanged."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import GAIN_STEP, LIMITED, ROUNDING_F32, TONE_PEAK
from waveforms import voice_like

from qwen_megakernel.sound.gain import CEILING, Gain, Limiter

RATE = 24000


def limited(samples: np.ndarray, sizes: list[int] | None = None) -> np.ndarray:
    limiter = Limiter(RATE)
    pieces = np.split(samples, np.cumsum(sizes or [])) if sizes else [samples]
    return np.concatenate([*map(limiter.push, pieces), limiter.finish()])


def loud(num_samples: int, seed: int, peak: float) -> np.ndarray:
    """Noise whose loudness comes and goes, up to `peak`."""
    rng = np.random.default_rng(seed)
    swell = np.abs(np.sin(np.arange(num_samples) / 700))
    noise = rng.uniform(-1, 1, num_samples)
    return (peak * swell * noise**3).astype(np.float32)


@pytest.mark.parametrize(("volume", "factor"), [(-60, 0.001), (-6, 0.501187), (20, 10)])
def test_volume_is_in_decibels(volume: float, factor: float):
    heard = Gain(volume).push(np.float32([0, 0.5, -1]))
    assert heard == pytest.approx(factor * np.array([0, 0.5, -1]), rel=ROUNDING_F32)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4000), max_size=8), st.integers(0, 2**32 - 1), st.floats(0.1, 100))
def test_nothing_is_above_the_ceiling_and_chunks_make_no_difference(sizes, seed, peak):
    samples = loud(sum(sizes) + 1, seed, peak)
    whole = limited(samples)
    assert len(whole) == len(samples)
    assert np.abs(whole).max() <= LIMITED
    assert np.array_equal(limited(samples, sizes), whole)


def test_what_is_below_the_ceiling_is_left_as_it_is():
    samples = voice_like(1, RATE)
    assert np.abs(samples).max() < CEILING
    assert np.array_equal(limited(samples), samples)


def test_sound_away_from_a_peak_is_left_as_it_is_and_near_it_turned_down_evenly():
    samples = np.full(RATE, 0.5, np.float32)
    samples[RATE // 2] = 4
    heard = limited(samples)
    far = np.r_[0 : RATE // 2 - 200, RATE // 2 + 2000 : RATE]
    assert np.array_equal(heard[far], samples[far])
    gains = heard / samples
    assert gains[RATE // 2] == pytest.approx(CEILING / 4, rel=ROUNDING_F32)
    assert np.abs(np.diff(gains)).max() < GAIN_STEP


def test_a_loud_tone_is_turned_down_evenly_and_not_within_its_period():
    tone = (2 * np.sin(2 * np.pi * 60 * np.arange(RATE) / RATE)).astype(np.float32)
    inner = slice(RATE // 4, -RATE // 4)
    assert np.abs(limited(tone) - tone * CEILING / 2)[inner].max() < TONE_PEAK


def test_a_stream_of_one_loud_sample_is_one_sample():
    assert limited(np.float32([3])) == pytest.approx([CEILING], rel=ROUNDING_F32)
    assert not len(limited(np.empty(0, np.float32)))
