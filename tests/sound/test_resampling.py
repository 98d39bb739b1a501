"""Another sample rate: the right number of samples, each at its time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import RESAMPLED_CHUNKS_F32, RESAMPLED_TONE, ROUNDED_COUNT
from waveforms import tone, voice_like

from qwen_megakernel.sound.resampling import Resampler

RATE = 24000
RATES = (8000, 11025, 16000, 22050, 44100, 48000)


def resampled(samples: np.ndarray, new_rate: int, sizes: list[int] | None = None) -> np.ndarray:
    resampler = Resampler(RATE, new_rate)
    pieces = np.split(samples, np.cumsum(sizes)) if sizes else [samples]
    return np.concatenate([*map(resampler.push, pieces), resampler.finish()])


@pytest.mark.parametrize("new_rate", RATES)
@pytest.mark.parametrize("num_samples", [0, 1, 2, 1920, 30_001])
def test_there_are_as_many_samples_as_the_duration_takes(new_rate: int, num_samples: int):
    heard = resampled(tone(num_samples / RATE, RATE), new_rate)
    assert abs(len(heard) - num_samples * new_rate / RATE) <= ROUNDED_COUNT
    assert heard.dtype == np.float32


@pytest.mark.parametrize("new_rate", RATES)
def test_each_sample_is_heard_at_its_time(new_rate: int):
    heard = resampled(tone(2, RATE), new_rate)
    inner = slice(new_rate // 10, -new_rate // 10)  # beyond the ends a tone is not one
    assert np.abs(heard - tone(len(heard) / new_rate, new_rate))[inner].max() < RESAMPLED_TONE


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(RATES), st.lists(st.integers(0, 4000), max_size=8), st.integers(0, 2**32))
def test_chunks_make_no_difference(new_rate: int, sizes: list[int], seed: int):
    samples = voice_like((sum(sizes) + 1) / RATE, RATE, seed)
    difference = resampled(samples, new_rate, sizes) - resampled(samples, new_rate)
    assert np.abs(difference).max(initial=0) <= RESAMPLED_CHUNKS_F32
