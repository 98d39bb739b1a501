"""Signals that stand for recordings: noise, a tone, and sound with pitch and formants."""

import numpy as np


def noise(seconds: float, rate: int, seed: int = 0, channels: int = 1) -> np.ndarray:
    """Return white noise at -20 dBFS: [num_samples] or [num_samples, channels] float32."""
    shape = (round(seconds * rate), channels)
    values = 0.1 * np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return values[:, 0] if channels == 1 else values


def tone(seconds: float, rate: int = 24000, hertz: float = 440, level: float = 1) -> np.ndarray:
    """Return a sine with this peak: [num_samples] float32."""
    phase = 2 * np.pi * hertz / rate * np.arange(round(seconds * rate))
    return (level * np.sin(phase)).astype(np.float32)


def voice_like(seconds: float, rate: int, seed: int = 0) -> np.ndarray:
    """Return a gliding pitch under two formants, in syllables: [num_samples] float32."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    pitch = 110 * 2 ** (rng.uniform(0, 1) + 0.3 * np.sin(2 * np.pi * 0.7 * time))
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    first, second = rng.uniform(300, 800), rng.uniform(1000, 2400)
    sound = np.zeros_like(time)
    for harmonic in range(1, 30):
        hertz = harmonic * pitch
        gain = 1 / (1 + ((hertz - first) / 120) ** 2) + 0.5 / (1 + ((hertz - second) / 200) ** 2)
        sound += np.where(hertz < 0.45 * rate, gain, 0) * np.sin(harmonic * phase)
    syllables = np.clip(np.sin(2 * np.pi * 3 * time), 0, None)
    sound = sound * syllables / np.abs(sound).max()
    return (0.5 * sound + 0.002 * rng.standard_normal(len(time))).astype(np.float32)


def pitch(samples: np.ndarray, rate: int) -> float:
    """Return the frequency of a tone, from its spectrum, to a tenth of a hertz."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples)), n=10 * rate))
    return int(np.argmax(spectrum)) / 10
