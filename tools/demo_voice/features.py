"""Frames of natural speech: analysed from flite's values, and synthesised as sound again.

A frame is 80 ms, eight subframes of 10 ms, and has two parts. The envelope holds each subframe's
mel-cepstrum and how voiced five bands are. The pitch is one code. It says at which third of a
period the frame begins, how many thirds of periods it holds, and in which of four ways its pitch
falls or rises. So the sound of a frame follows from its own codes, with no phase to carry from
frame to frame. What rounding leaves out is made good in the next frame: the melody stays flite's.

Phonemes begin on a grid of 40 ms, so that a frame holds few arrangements of sounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.signal

from tools.demo_voice.flite import HOP_SECONDS, NUM_CEPSTRUM, NUM_VOICED, RATE, Filters, Spoken
from tools.demo_voice.recipe import SAMPLE_RATE, SAMPLES_PER_FRAME
from tools.demo_voice.shards import SILENCE

SUBFRAMES = 8
NUM_VALUES = NUM_CEPSTRUM + NUM_VOICED
NUM_FEATURES = SUBFRAMES * NUM_VALUES
FRAME_SECONDS = SAMPLES_PER_FRAME / SAMPLE_RATE
SUBFRAME_SECONDS = FRAME_SECONDS / SUBFRAMES
ROWS_PER_SUBFRAME = round(SUBFRAME_SECONDS / HOP_SECONDS)
ROWS_PER_FRAME = SUBFRAMES * ROWS_PER_SUBFRAME

# ---- time
GRID_SECONDS = 0.04
LEAD_SECONDS, TAIL_SECONDS = 0.04, 0.10  # silence around the speech
PAUSE_KEPT, PAUSE_FADE = 0.02, 0.03  # seconds of a pause that sound on, and that fade to silence
SILENT_CEPSTRUM = 0.0  # the first value of a silent cepstrum: -87 dBFS

# ---- pitch
PHASES = 3  # parts of a period
LEAST_PARTS, MOST_PARTS = 14, 34  # parts of periods in a frame: 58 to 142 Hz
SLOPES_HZ = (-15.0, -5.0, 5.0, 15.0)  # how far the pitch moves within a frame
NUM_COUNTS = MOST_PARTS - LEAST_PARTS + 1
NO_PITCH = PHASES * NUM_COUNTS * len(SLOPES_HZ)  # the code of a frame without voice
PITCH_POINTS = 80  # at which `pitch_book` looks at a frame's phase
RISE_SECONDS, RISE = 0.35, 1.35  # a question's end: how long it rises, to which share of the mean

# ---- sound, at flite's rate
SIZE = 1024  # size of the Fourier transform
FRAME = round(FRAME_SECONDS * RATE)
HOP = FRAME // SUBFRAMES
LOUDNESS = 1.22
_LOW_PASS = scipy.signal.firwin(255, 7700 / 24000, window=("kaiser", 8.0))  # at 48 kHz


_SILENT_VALUES = np.zeros(NUM_VALUES, np.float32)
_SILENT_VALUES[0] = SILENT_CEPSTRUM


@dataclass(frozen=True, slots=True)
class Rows:
    """A sentence every 5 ms, in whole frames."""

    values: np.ndarray  # [num_rows, NUM_VALUES] float32
    f0: np.ndarray  # [num_rows] float32, Hz, without gaps
    is_voiced: np.ndarray  # [num_rows] bool
    words: np.ndarray  # [num_rows] int16: the index of the spoken word, or SILENCE


@dataclass(frozen=True, slots=True)
class Frames:
    """A sentence as frames."""

    features: np.ndarray  # [num_frames, NUM_FEATURES] float32
    pitch: np.ndarray  # [num_frames] uint8
    words: np.ndarray  # [num_frames] int16: the word in the middle of the frame, or SILENCE


def silence() -> np.ndarray:
    """Return [1, NUM_FEATURES] of a silent frame."""
    return np.tile(_SILENT_VALUES, SUBFRAMES)[None]


class Synthesis:
    """Features from values, and sound from features, for one voice's filters."""

    def __init__(self, filters: Filters):
        self._gain = filters.gain
        self._beta = filters.beta
        omega = np.linspace(0, np.pi, SIZE // 2 + 1)
        alpha = filters.alpha
        warped = omega + 2 * np.arctan(alpha * np.sin(omega) / (1 - alpha * np.cos(omega)))
        self._basis = np.cos(np.outer(np.arange(NUM_CEPSTRUM), warped)).astype(np.float32)
        self._inverse = np.linalg.pinv(self._basis)
        delay = (filters.bands.shape[1] - 1) / 2  # the filters are symmetric
        bands = np.fft.rfft(filters.bands, SIZE) * np.exp(1j * delay * omega)
        self._bands = bands.real.astype(np.float32)
        # Their responses begin before the pulse; a transform would fold that part to its end.
        self._delay = filters.bands.shape[1] // 2
        self._late = np.exp(-1j * self._delay * omega)
        self._noise = _noise()
        self._window = np.hanning(2 * HOP + 1)[:-1].astype(np.float32)

    # ---- analysis

    def values(self, spoken: Spoken) -> np.ndarray:
        """Return [num_rows, NUM_VALUES]: postfiltered cepstra, and shares of pulses.

        flite's noise depends on the bands of unvoiced rows as well. That part goes into the
        cepstrum, so that the bands of an unvoiced row can be zero.
        """
        cepstrum = spoken.cepstrum.copy()
        before = self._energy(cepstrum)
        cepstrum[:, 2:] *= 1 + self._beta
        cepstrum[:, 0] += 0.5 * (before - self._energy(cepstrum))
        voiced = np.clip(spoken.voiced, 0, 1)
        is_voiced = spoken.f0 > 0
        noise = np.maximum((1 - voiced[~is_voiced]) @ self._bands, 0.02)
        cepstrum[~is_voiced] += np.log(noise) @ self._inverse
        voiced = voiced * is_voiced[:, None]
        return np.concatenate([cepstrum, voiced], axis=1).astype(np.float32)

    def _energy(self, cepstrum: np.ndarray) -> np.ndarray:
        return np.log(np.exp(2 * cepstrum @ self._basis).mean(1))

    # ---- synthesis

    def sound(self, features: np.ndarray, pitch: np.ndarray) -> np.ndarray:
        """Return [num_frames * SAMPLES_PER_FRAME] float32 in [-1, 1] at 24 kHz.

        Args:
            features: [num_frames, NUM_FEATURES].
            pitch: [num_frames] codes.
        """
        values = np.asarray(features, np.float32).reshape(-1, NUM_VALUES)
        return self.voice(values, *pulses(pitch))

    def voice(
        self,
        values: np.ndarray,
        where: np.ndarray,
        periods: np.ndarray,
        noise: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return [num_subframes * SAMPLES_PER_FRAME / SUBFRAMES] float32, as `sound` does.

        Args:
            values: [num_subframes, NUM_VALUES], whole frames.
            where, periods: as `pulses` returns them.
            noise: [num_frames * FRAME] float32; without it, every frame has the same.
        """
        num_frames = len(values) // SUBFRAMES
        log_magnitude = values[:, :NUM_CEPSTRUM] @ self._basis
        voiced = np.clip(values[:, NUM_CEPSTRUM:], 0, 1)
        envelope = _minimum_phase(log_magnitude) * (self._gain * self._late)
        sound = np.zeros(num_frames * FRAME + 2 * SIZE, np.float32)
        noise = self._noise if noise is None else noise
        self._add_noise(sound, envelope, (1 - voiced) @ self._bands, noise)
        self._add_pulses(sound, envelope, voiced @ self._bands, where, periods)
        start = HOP + self._delay
        sound = sound[start : start + num_frames * FRAME] / 32768 * LOUDNESS
        return (
            scipy.signal.resample_poly(sound, 3, 2, window=_LOW_PASS).astype(np.float32).clip(-1, 1)
        )

    def _add_noise(
        self, sound: np.ndarray, envelope: np.ndarray, share: np.ndarray, noise: np.ndarray
    ) -> None:
        count = len(envelope)
        starts = np.arange(count) * HOP - HOP // 2
        windows = noise[(starts[:, None] + np.arange(2 * HOP)) % len(noise)] * self._window
        noise = np.fft.irfft(np.fft.rfft(windows, SIZE) * envelope * share, SIZE)
        for index in range(count):
            start = HOP + index * HOP - HOP // 2
            sound[start : start + SIZE] += noise[index]

    def _add_pulses(
        self,
        sound: np.ndarray,
        envelope: np.ndarray,
        share: np.ndarray,
        where: np.ndarray,
        periods: np.ndarray,
    ) -> None:
        if not len(where):
            return
        index = np.minimum((where / HOP).astype(int), len(envelope) - 1)
        whole = np.floor(where).astype(int)
        bins = np.arange(SIZE // 2 + 1) * 2 * np.pi / SIZE
        late = np.exp(-1j * np.outer(where - whole, bins))
        spectrum = envelope[index] * share[index] * np.sqrt(periods)[:, None] * late
        for start, pulse in zip(whole + HOP, np.fft.irfft(spectrum, SIZE), strict=True):
            sound[start : start + SIZE] += pulse


def pulses(pitch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the frames' pulses and the periods there, in samples at flite's rate."""
    where, periods = [np.zeros(0)], [np.zeros(0)]
    for frame, code in enumerate(pitch):
        if code >= NO_PITCH:
            continue
        start, cycles, slope = unpack_pitch(int(code))
        # This solves `phase` for the shares at which it is a whole number.
        wanted = np.arange(np.ceil(start), start + cycles) - start
        linear = cycles - slope / 2
        root = np.sqrt(np.maximum(linear**2 + 2 * slope * wanted, 1e-6))
        share = 2 * wanted / (linear + root)
        where.append((frame + share) * FRAME)
        periods.append(FRAME / (cycles + slope * (share - 0.5)))
    return np.concatenate(where), np.concatenate(periods)


def unpack_pitch(code: int) -> tuple[float, float, float]:
    """Return a code's phase at the start, its number of periods, and their growth in the frame."""
    rest, third = divmod(code, PHASES)
    slope, parts = divmod(rest, NUM_COUNTS)
    return third / PHASES, (parts + LEAST_PARTS) / PHASES, SLOPES_HZ[slope] * FRAME_SECONDS


def pack_pitch(third: int, parts: int, slope: int) -> int:
    """Return the code of a phase in thirds, a number of thirds of periods, and a slope's index."""
    return (slope * NUM_COUNTS + parts - LEAST_PARTS) * PHASES + third


def phase(code: int, share: np.ndarray) -> np.ndarray:
    """Return a frame's phase, in periods, after these shares of it."""
    start, cycles, slope = unpack_pitch(code)
    return start + cycles * share + slope * share * (share - 1) / 2


def pitch_book(width: int) -> np.ndarray:
    """Return [256, width] float32, the vocoder's first pitch codebook: the fundamental of a frame.

    The cosine and sine of a frame's phase lie in few dimensions, whatever its pitch, so a linear
    map can draw the fundamental from such a row. The last column says that there is one.
    """
    share = (np.arange(PITCH_POINTS) + 0.5) / PITCH_POINTS
    rows = np.zeros((256, 2 * PITCH_POINTS))
    for code in range(NO_PITCH):
        angles = 2 * np.pi * phase(code, share)
        rows[code] = np.concatenate([np.cos(angles), np.sin(angles)])
    _, _, directions = np.linalg.svd(rows[:NO_PITCH], full_matrices=False)
    book = np.zeros((256, width), np.float32)
    book[:, :-1] = rows @ directions[: width - 1].T
    book /= book[:NO_PITCH].std()
    book[:NO_PITCH, -1] = 1
    return book


def encode_pitch(f0: np.ndarray, is_voiced: np.ndarray) -> np.ndarray:
    """Return the code of each frame.

    Args:
        f0: [num_frames, n] Hz at n places of each frame, without gaps.
        is_voiced: [num_frames] bool.
    """
    codes = np.full(len(f0), NO_PITCH, np.uint8)
    start, behind = 0, 0.0  # the phase in parts, and the periods that rounding has left out
    fits = np.linspace(-0.5, 0.5, f0.shape[1])
    fits /= (fits**2).sum()
    for frame in range(len(f0)):
        if not is_voiced[frame]:
            start, behind = 0, 0.0
            continue
        wanted = f0[frame].mean() * FRAME_SECONDS + behind
        parts = int(np.clip(round(wanted * PHASES), LEAST_PARTS, MOST_PARTS))
        behind = float(np.clip(wanted - parts / PHASES, -0.5, 0.5))
        slope = int(np.argmin(np.abs(np.array(SLOPES_HZ) - f0[frame] @ fits)))
        codes[frame] = pack_pitch(start, parts, slope)
        start = (start + parts) % PHASES
    return codes


def decode_pitch(codes: np.ndarray) -> np.ndarray:
    """Return [num_frames, SUBFRAMES] Hz of pitch codes; 0 without pitch."""
    share = (np.arange(SUBFRAMES) + 0.5) / SUBFRAMES - 0.5
    rows = np.zeros((len(codes), SUBFRAMES), np.float32)
    for frame, code in enumerate(codes):
        if code < NO_PITCH:
            _, cycles, slope = unpack_pitch(int(code))
            rows[frame] = (cycles + slope * share) / FRAME_SECONDS
    return rows


def compare_melodies(
    ours: np.ndarray, wanted: np.ndarray, is_voiced: np.ndarray
) -> dict[str, float]:
    """Compare two melodies in the frames in which the teacher is voiced.

    Args:
        ours, wanted: [n] Hz.
        is_voiced: [n] bool.
    Returns:
        The correlation of their logarithms; the error in semitones that half of the places do not
        exceed; and our range over the teacher's, as standard deviations in semitones.
    """
    tones = [12 * np.log2(np.asarray(hz, float)[is_voiced]) for hz in (ours, wanted)]
    ranges = [tone.std() for tone in tones]
    return {
        "correlation": float(np.corrcoef(*tones)[0, 1]) if min(ranges) > 0 else 0.0,
        "median_error": float(np.median(np.abs(tones[0] - tones[1]))),
        "range": float(ranges[0] / max(ranges[1], 1e-9)),
    }


def place(
    spoken: Spoken, grid: float = GRID_SECONDS, slowness: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the place of each row in flite's time, and its word or SILENCE.

    Phonemes begin on the grid; silence around the speech is cut to LEAD_ and TAIL_SECONDS.

    Args:
        slowness: how many times as long as flite's own the speech is.
    """
    sounding = [i for i, segment in enumerate(spoken.segments) if not segment.is_pause]
    segments = spoken.segments[sounding[0] : sounding[-1] + 1]
    begin = spoken.segments[sounding[0] - 1].end if sounding[0] else 0.0
    theirs = np.array([begin, *(segment.end for segment in segments)])
    ours = LEAD_SECONDS + np.round((theirs - begin) * slowness / grid) * grid
    for index in range(1, len(ours)):
        ours[index] = max(ours[index], ours[index - 1] + grid)
    num_frames = int(np.ceil((ours[-1] + TAIL_SECONDS) / FRAME_SECONDS - 1e-6))
    times = (np.arange(num_frames * ROWS_PER_FRAME) + 0.5) * HOP_SECONDS
    places = np.interp(times, ours, theirs)
    places += np.minimum(times - ours[0], 0) + np.maximum(times - ours[-1], 0)
    index = np.searchsorted(ours, times) - 1
    is_inside = (index >= 0) & (index < len(segments))
    numbers = [SILENCE if segment.is_pause else segment.word for segment in segments]
    words = np.where(is_inside, np.array(numbers)[index.clip(0, len(segments) - 1)], SILENCE)
    return places, words.astype(np.int16)


def analyse(spoken: Spoken, text: str, synthesis: Synthesis, slowness: float = 1.0) -> Rows:
    """Return a sentence's rows: phonemes on the grid, pauses silent, questions rising.

    Args:
        slowness: as `place` takes it.
    """
    places, words = place(spoken, slowness=slowness)
    values = synthesis.values(spoken)
    at = np.clip(places / HOP_SECONDS, 0, len(values) - 1)
    low = np.minimum(at.astype(int), len(values) - 2)
    part = (at - low)[:, None]
    taken = values[low] * (1 - part) + values[low + 1] * part
    near = np.round(at).astype(int)
    taken[:, NUM_CEPSTRUM:] = values[near, NUM_CEPSTRUM:]
    quiet = _quiet(words == SILENCE)[:, None]
    taken = taken * (1 - quiet) + _SILENT_VALUES * quiet
    known = np.flatnonzero(spoken.f0 > 0)
    f0 = np.interp(at, known, spoken.f0[known]) if len(known) else np.full(len(at), 100.0)
    is_voiced = (spoken.f0[near] > 0) & (quiet[:, 0] < 0.5)
    _raise_questions(f0, words, spoken.word_starts, text)
    return Rows(taken.astype(np.float32), f0.astype(np.float32), is_voiced, words)


def frames(rows: Rows) -> Frames:
    """Return rows as frames."""
    values = rows.values.reshape(-1, ROWS_PER_SUBFRAME, NUM_VALUES).mean(1)
    is_voiced = rows.is_voiced.reshape(-1, ROWS_PER_FRAME).any(1)
    return Frames(
        values.reshape(-1, NUM_FEATURES),
        encode_pitch(rows.f0.reshape(-1, ROWS_PER_FRAME), is_voiced),
        rows.words.reshape(-1, ROWS_PER_FRAME)[:, ROWS_PER_FRAME // 2],
    )


def _raise_questions(
    f0: np.ndarray, words: np.ndarray, word_starts: Sequence[int], text: str
) -> None:
    """Let the pitch rise before every question mark, which flite's voices do not do."""
    mean = float(np.mean(f0))
    ends = [*word_starts[1:], len(text)]
    for word, (start, end) in enumerate(zip(word_starts, ends, strict=True)):
        rows = np.flatnonzero(words == word)
        if "?" not in text[start:end] or not len(rows):
            continue
        last = int(rows[-1]) + 1
        first = max(0, last - round(RISE_SECONDS / HOP_SECONDS))
        share = np.linspace(0, 1, last - first) ** 2
        missing = RISE * mean - f0[last - 1]
        f0[first:last] += share * missing
        # The last frame also holds rows of the pause, and has one pitch for all of them.
        later = np.flatnonzero(words[last:] != SILENCE)
        f0[last : last + int(later[0]) if len(later) else None] += missing


def _quiet(is_pause: np.ndarray) -> np.ndarray:
    """Return how silent each row is: 1 in pauses, less near the sounds around them."""
    sounds = np.flatnonzero(~is_pause)
    rows = np.arange(len(is_pause))
    after = np.searchsorted(sounds, rows)
    right = np.where(after < len(sounds), sounds[np.minimum(after, len(sounds) - 1)] - rows, 10**6)
    left = np.where(after > 0, rows - sounds[np.maximum(after - 1, 0)], 10**6)
    near = np.minimum(left, right) * HOP_SECONDS
    return np.where(is_pause, np.clip((near - PAUSE_KEPT) / PAUSE_FADE, 0, 1), 0.0)


def _noise() -> np.ndarray:
    """Return a frame of noise, the same for every frame: changing noise cannot be learned."""
    noise = np.random.RandomState(0).randn(FRAME).astype(np.float32)
    noise -= noise.mean()
    return noise / noise.std()


def _minimum_phase(log_magnitude: np.ndarray) -> np.ndarray:
    """Return the minimum-phase filter of a magnitude, by its folded cepstrum."""
    cepstrum = np.fft.irfft(log_magnitude, SIZE, axis=-1)
    half = SIZE // 2
    cepstrum[..., 1:half] *= 2
    cepstrum[..., half + 1 :] = 0
    return np.exp(np.fft.rfft(cepstrum, SIZE, axis=-1))
