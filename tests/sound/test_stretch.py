"""Speed: duration and pitch are right, nothing clicks, and chunks make no difference."""

import math

import numpy as np
import pytest
import tiny_speech
from fixtures import module_value
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import PITCH_KEPT, SMOOTHNESS, TONE_PEAK
from waveforms import pitch, tone, voice_like

from qwen_megakernel.sound.stretch import Stretch

RATE = 24000
CHUNK = 1920  # samples of a frame
NUM_PLACES = 100  # at which the pitch of a speech is compared
SPEEDS = (0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0)


def stretched(samples: np.ndarray, speed: float, size: int | None = None) -> np.ndarray:
    """Return stretched samples, which arrive `size` at a time; None: all at once."""
    stretch = Stretch(speed, RATE)
    pieces = np.split(samples, range(size, len(samples), size)) if size else [samples]
    return np.concatenate([*map(stretch.push, pieces), stretch.finish()])


def steepest(samples: np.ndarray) -> float:
    """The largest difference of two samples in a row: a click is tens of times the sound's own."""
    return float(np.abs(np.diff(samples)).max())


def pitches_of(samples: np.ndarray) -> np.ndarray:
    """Return the pitch at `NUM_PLACES` places of a speech, by autocorrelation; NaN if unvoiced."""
    size, found = RATE // 20, np.full(NUM_PLACES, np.nan)
    for place, begin in enumerate(np.linspace(0, len(samples) - size, NUM_PLACES).astype(int)):
        window = samples[begin : begin + size] - samples[begin : begin + size].mean()
        if np.sqrt(np.mean(window**2)) < 0.02:
            continue
        likeness = np.correlate(window, window, "full")[size - 1 :]
        likeness = likeness / likeness[0] / (1 - np.arange(size) / size)
        low, high = RATE // 250, RATE // 70
        lag = low + int(np.argmax(likeness[low:high]))
        if likeness[lag] > 0.7:
            left, middle, right = likeness[lag - 1 : lag + 2]  # a parabola through three points
            found[place] = RATE / (lag + (left - right) / (left - 2 * middle + right) / 2)
    return found


demo_speech = module_value(
    lambda: tiny_speech.demo_speech("Your table for two is ready by the window.")
)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.25, 4.0), st.lists(st.integers(0, 3000), max_size=12), st.integers(0, 2**32 - 1))
def test_the_sound_is_the_same_for_every_way_to_cut_it(speed: float, sizes: list[int], seed: int):
    samples = voice_like(max(1, sum(sizes)) / RATE, RATE, seed)
    stretch = Stretch(speed, RATE)
    pieces = [stretch.push(piece) for piece in np.split(samples, np.cumsum(sizes))]
    cut = np.concatenate([*pieces, stretch.finish()])
    assert np.array_equal(cut, stretched(samples, speed))


@pytest.mark.parametrize("speed", [0.25, 0.3, *SPEEDS, 3.9, 4.0])
@pytest.mark.parametrize("num_samples", [0, 1, 2, 100, 1920, 50_001])
def test_the_duration_is_that_of_the_speech_over_the_speed(speed: float, num_samples: int):
    heard = stretched(voice_like(3, RATE)[:num_samples], speed)
    exact = num_samples / speed
    assert len(heard) in (math.floor(exact), math.ceil(exact))
    assert heard.dtype == np.float32


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("hertz", [100, 220])
def test_a_tone_keeps_its_pitch_and_its_loudness_and_does_not_click(hertz: int, speed: float):
    sound = tone(2, RATE, hertz)
    heard = stretched(sound, speed)
    assert pitch(heard, RATE) == pytest.approx(hertz, rel=PITCH_KEPT)
    inner = heard[RATE // 20 : -RATE // 20]
    assert steepest(inner) < SMOOTHNESS * steepest(sound)
    assert np.abs(inner).max() == pytest.approx(1, abs=TONE_PEAK)


@pytest.mark.parametrize("speed", SPEEDS)
def test_the_demonstration_voice_keeps_its_pitch(demo_speech: np.ndarray, speed: float):
    heard = stretched(demo_speech, speed)
    shares = pitches_of(heard) / pitches_of(demo_speech)  # a melody: place by place
    shares = shares[~np.isnan(shares)]
    assert len(shares) > NUM_PLACES / 4
    assert np.median(shares) == pytest.approx(1, rel=PITCH_KEPT)
    assert steepest(heard) < SMOOTHNESS * steepest(demo_speech)


@pytest.mark.parametrize("speed", [0.25, *SPEEDS, 4.0])
def test_sound_is_at_most_a_chunk_late(speed: float):
    stretch, samples, num_heard = Stretch(speed, RATE), voice_like(2, RATE), 0
    for begin in range(0, len(samples), CHUNK):
        num_heard += len(stretch.push(samples[begin : begin + CHUNK]))
        assert num_heard > 0  # already after the first chunk
        due = int(begin / speed)  # samples, if all earlier chunks are complete
        assert num_heard >= due


def test_silence_stays_silence():
    assert not stretched(np.zeros(RATE, np.float32), 1.3).any()
