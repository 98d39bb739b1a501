"""Frames of source and filter: analysed from espeak-ng's speech, and synthesised as sound again.

A frame is 80 ms, eight subframes of 10 ms. A subframe holds the spectral envelope (log energy in 48
bands) and how voiced four bands are. Each phoneme is stretched to a whole number of frames, so that
the same sound gives about the same frame wherever it occurs: that makes the codes learnable. Sound
consists of a pulse every 10 ms, one a subframe, and of noise where a band is unvoiced.
"""

import itertools
from dataclasses import dataclass

import numpy as np
import scipy.fft

from tools.demo_voice.espeak import Phoneme, Spoken
from tools.demo_voice.recipe import SAMPLE_RATE, SAMPLES_PER_FRAME

SUBFRAMES = 8
NUM_BANDS = 48
NUM_VOICED = 4
NUM_FEATURES = SUBFRAMES * (NUM_BANDS + NUM_VOICED)
LOG_FLOOR = -12.0  # the natural logarithm of a band's energy in digital silence

# ---- analysis, at espeak-ng's rate
ESPEAK_RATE = 22050
PITCH_PERIOD = 242  # in samples: the pitch of the voice variant
WINDOW = 3 * PITCH_PERIOD
ANALYSIS_SIZE = 1024
BAND_RANGE_HZ = (60, 10500)
VOICED_EDGES_HZ = (0, 1000, 2000, 4000, 8000)
VOICED_CENTERS_HZ = (500, 1500, 3000, 6000)
VOICED_FROM, VOICED_WIDTH = 0.2, 0.5  # similarity of neighbouring periods: 0 at 0.2, 1 at 0.7

# ---- phonemes on the grid
FRAME_SECONDS = SAMPLES_PER_FRAME / SAMPLE_RATE
ROUNDING_BIAS = 0.10  # frames taken off each phoneme, because the grid would slow speech down
MAX_PAUSE_FRAMES = 4
MIN_SECONDS, MIN_PAUSE_SECONDS = 0.003, 0.03  # shorter sounds are dropped

# ---- sound, at 24 kHz
HOP = SAMPLES_PER_FRAME // SUBFRAMES
SYNTHESIS_SIZE = 1024
FADE_HZ = 10500  # above this the spectrum falls to nothing
LOUDNESS = 1.25


def _mel(hertz: np.ndarray | float) -> np.ndarray:
    return 2595 * np.log10(1 + np.asarray(hertz) / 700)


def _hertz(mel: np.ndarray) -> np.ndarray:
    return 700 * (10 ** (mel / 2595) - 1)


def _band_centers() -> np.ndarray:
    low, high = _mel(np.array(BAND_RANGE_HZ, float))
    return _hertz(np.linspace(low, high, NUM_BANDS))


def _band_matrix(frequencies: np.ndarray) -> np.ndarray:
    """[num_bins, NUM_BANDS]: the mean power in each triangular band, with harmonics smoothed away.

    The power spectrum is averaged over one harmonic's width first; both steps are linear.
    """
    centers = _band_centers()
    edges = np.concatenate([[0.0], centers, [ESPEAK_RATE / 2]])
    left, middle, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rise = (frequencies - left) / (middle - left + 1e-9)
    fall = (right - frequencies) / (right - middle + 1e-9)
    bands = np.maximum(0, np.minimum(rise, fall))
    for band in np.flatnonzero(bands.sum(1) <= 0):  # a band narrower than a bin
        bands[band, np.argmin(np.abs(frequencies - centers[band]))] = 1
    bands /= bands.sum(1, keepdims=True)
    return (_smoothing(frequencies) @ bands.T).astype(np.float32)


def _smoothing(frequencies: np.ndarray) -> np.ndarray:
    """[num_bins, num_bins]: x @ this is x averaged over one harmonic's width around each bin."""
    num_bins, spacing = len(frequencies), frequencies[1]
    half = ESPEAK_RATE / PITCH_PERIOD / 2
    low = np.clip((frequencies - half) / spacing + 0.5, 0, None)
    high = np.clip((frequencies + half) / spacing + 0.5, None, num_bins - 1e-3)
    sums = np.concatenate([np.zeros((num_bins, 1)), np.cumsum(np.eye(num_bins), axis=1)], axis=1)

    def at(place: np.ndarray) -> np.ndarray:
        whole = place.astype(int)
        part = place - whole
        after = np.minimum(whole + 1, num_bins)
        return sums[:, whole] * (1 - part) + sums[:, after] * part

    return (at(high) - at(low)) / (high - low)


def _voiced_matrix(frequencies: np.ndarray) -> np.ndarray:
    """[num_bins, NUM_VOICED]: which bins belong to which band."""
    bounds = itertools.pairwise(VOICED_EDGES_HZ)
    inside = [(frequencies >= low) & (frequencies < high) for low, high in bounds]
    return np.stack(inside, axis=1).astype(np.float32)


_FREQUENCIES = np.arange(ANALYSIS_SIZE // 2 + 1) * ESPEAK_RATE / ANALYSIS_SIZE
_HANN = np.hanning(WINDOW + 1)[:-1].astype(np.float32)
_BANDS = (_band_matrix(_FREQUENCIES) / np.square(_HANN).sum()).astype(np.float32)
_VOICED = _voiced_matrix(_FREQUENCIES)


def silence() -> np.ndarray:
    """Return [1, NUM_FEATURES] of a silent frame."""
    subframe = np.zeros(NUM_BANDS + NUM_VOICED, np.float32)
    subframe[:NUM_BANDS] = LOG_FLOOR
    return np.tile(subframe, SUBFRAMES)[None]


@dataclass(frozen=True, slots=True)
class Frames:
    """A sentence on the grid of frames."""

    features: np.ndarray  # [num_frames, NUM_FEATURES] float32
    words: np.ndarray  # [num_frames] index of the spoken word
    word_starts: list[int]  # first character of each word in the text


def analyse(spoken: Spoken) -> Frames | None:
    """Put a sentence on the grid; None if it has no sound."""
    places, words = _place_phonemes(spoken.phonemes, len(spoken.samples))
    if not len(places):
        return None
    padded = np.pad(spoken.samples, (WINDOW, WINDOW + PITCH_PERIOD))
    index = (np.round(places).astype(int) + WINDOW - WINDOW // 2)[:, None] + np.arange(WINDOW)
    half = PITCH_PERIOD // 2
    around, before, after = (  # The last two are one period apart.
        scipy.fft.rfft(padded[index + shift] * _HANN, ANALYSIS_SIZE)
        for shift in (0, -half, PITCH_PERIOD - half)
    )
    energy = np.log(np.maximum(_power(around) @ _BANDS, np.exp(LOG_FLOOR)))
    both = (_power(before) + _power(after)) @ _VOICED + 1e-6
    likeness = 1 - _power(before - after) @ _VOICED / both
    voiced = np.clip((likeness - VOICED_FROM) / VOICED_WIDTH, 0, 1)
    features = np.concatenate([energy, voiced], axis=1).astype(np.float32)
    return Frames(features.reshape(-1, NUM_FEATURES), words, spoken.word_starts)


def _power(spectrum: np.ndarray) -> np.ndarray:
    return spectrum.real**2 + spectrum.imag**2


def _place_phonemes(phonemes: list[Phoneme], num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the place of each subframe in the sound, and the word of each frame.

    Returns [num_frames * SUBFRAMES] places and [num_frames] words; pauses after the last sound are
    dropped.
    """
    places: list[np.ndarray] = []
    words: list[int] = []
    sounding = [i for i, phoneme in enumerate(phonemes) if not phoneme.is_pause]
    count = sounding[-1] + 1 if sounding else 0
    ends = [phoneme.sample for phoneme in phonemes[1:]] + [num_samples]
    for phoneme, end in zip(phonemes[:count], ends[:count], strict=True):
        seconds = (end - phoneme.sample) / ESPEAK_RATE
        if seconds < (MIN_PAUSE_SECONDS if phoneme.is_pause else MIN_SECONDS):
            continue
        num_frames = max(1, round(seconds / FRAME_SECONDS - ROUNDING_BIAS))
        if phoneme.is_pause:
            num_frames = min(num_frames, MAX_PAUSE_FRAMES)
        share = (np.arange(num_frames * SUBFRAMES) + 0.5) / (num_frames * SUBFRAMES)
        places.append(phoneme.sample + (end - phoneme.sample) * share)
        words += [phoneme.word] * num_frames
    return np.concatenate(places) if places else np.zeros(0), np.array(words, np.int16)


# ---- synthesis


def _interpolation(points: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """[num_frequencies, num_points]: linear between points, constant outside."""
    unit = np.eye(len(points))
    return np.stack([np.interp(frequencies, points, row) for row in unit], 1).astype(np.float32)


_OUT_FREQUENCIES = np.arange(SYNTHESIS_SIZE // 2 + 1) * SAMPLE_RATE / SYNTHESIS_SIZE
_TO_SPECTRUM = _interpolation(_band_centers(), _OUT_FREQUENCIES)
_TO_VOICED = _interpolation(np.array(VOICED_CENTERS_HZ, float), _OUT_FREQUENCIES)
_FADE = np.where(_OUT_FREQUENCIES > FADE_HZ, (FADE_HZ - _OUT_FREQUENCIES) / 1500 * 4, 0)
_OUT_HANN = np.hanning(2 * HOP + 1)[:-1].astype(np.float32)


def _noise() -> np.ndarray:
    """Return a frame of noise, the same for every frame: changing noise cannot be learned."""
    noise = np.random.RandomState(0).randn(SAMPLES_PER_FRAME).astype(np.float32)
    noise -= noise.mean()
    return noise / noise.std()


_NOISE = _noise()


def synthesize(features: np.ndarray) -> np.ndarray:
    """[num_frames, NUM_FEATURES] -> [num_frames * SAMPLES_PER_FRAME] float32 in [-1, 1]."""
    subframes = np.asarray(features, np.float32).reshape(-1, NUM_BANDS + NUM_VOICED)
    count = len(subframes)
    log_magnitude = 0.5 * (subframes[:, :NUM_BANDS] @ _TO_SPECTRUM.T) + _FADE
    voiced = np.clip(subframes[:, NUM_BANDS:] @ _TO_VOICED.T, 0, 1)
    envelope = _minimum_phase(log_magnitude)
    pulses = np.fft.irfft(envelope * np.sqrt(voiced), SYNTHESIS_SIZE, axis=1) * np.sqrt(HOP)
    starts = (np.arange(count) % SUBFRAMES) * HOP - HOP  # each window reaches one hop back
    windows = _NOISE[(starts[:, None] + np.arange(2 * HOP)) % SAMPLES_PER_FRAME] * _OUT_HANN
    noise = np.fft.rfft(windows, SYNTHESIS_SIZE, axis=1) * envelope * np.sqrt(1 - voiced)
    noise = np.fft.irfft(noise, SYNTHESIS_SIZE, axis=1)
    sound = np.zeros(count * HOP + 2 * SYNTHESIS_SIZE, np.float32)
    for index in range(count):
        start = index * HOP
        sound[start : start + SYNTHESIS_SIZE] += noise[index]
        start += HOP + HOP // 2
        sound[start : start + SYNTHESIS_SIZE] += pulses[index]
    return np.clip(sound[HOP // 2 : HOP // 2 + count * HOP] * LOUDNESS, -1, 1)


def _minimum_phase(log_magnitude: np.ndarray) -> np.ndarray:
    """Return the minimum-phase filter of a magnitude, by its folded cepstrum."""
    cepstrum = np.fft.irfft(log_magnitude, SYNTHESIS_SIZE, axis=-1)
    half = SYNTHESIS_SIZE // 2
    cepstrum[..., 1:half] *= 2
    cepstrum[..., half + 1 :] = 0
    return np.exp(np.fft.rfft(cepstrum, SYNTHESIS_SIZE, axis=-1))
