"""Recordings of many speakers, and the codes with which the demonstration voice would repeat them.

The codec encoder learns from these pairs. flite's speakers say a text, at another pitch, tempo and
level, and every second one is turned upside down. Some speak as they are; the spectra of the others
are bent as those of longer and shorter throats, and coloured as by rooms and microphones. What the
encoder has to hear is the envelope that the voice's own teacher has at the same place of the same
phoneme, with the speaker's pitch. The phase of the pitch is that of the fundamental, which lies
half a period later in a sound that is upside down.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.signal

from tools.demo_voice import features
from tools.demo_voice.features import FRAME, PHASES, ROWS_PER_FRAME, ROWS_PER_SUBFRAME
from tools.demo_voice.flite import HOP_SECONDS, NUM_CEPSTRUM, RATE, VOICES, Flite, Spoken
from tools.demo_voice.recipe import SAMPLE_RATE

TEACHER = VOICES[0]
SHARES = (0.4, 0.3, 0.3)  # of `VOICES`
THROATS = np.linspace(-0.05, 0.07, 13)  # added to the warping of the frequencies
PLAIN_SHARE = 0.4  # of recordings of a speaker as he is, in a quiet room
FIXED_NOISE_SHARE = 0.2  # of recordings with the noise of the voice's own teacher
HERTZ = (65, 135)  # means of the speakers' pitch
HIGH_SHARE, HIGH_HERTZ = 0.15, (150, 250)  # of speakers whose pitch the codec says an octave lower
MOST_HERTZ = features.MOST_PARTS / PHASES / features.FRAME_SECONDS
TEMPO = (0.75, 1.35)
COLOURS, COLOUR = 6, 0.12  # first cepstral values that are moved, and how far
LEVEL_DB, NOISE_DB, ECHO_SECONDS = 8.0, (-75, -40), 0.25
LEAST_FRAMES = 16


@dataclass(frozen=True, slots=True)
class Heard:
    """A recording, and what the encoder has to hear in it."""

    sound: np.ndarray  # [num_frames * SAMPLES_PER_FRAME] float32 at 24 kHz
    features: np.ndarray  # [num_frames, NUM_FEATURES] float32
    pitch: np.ndarray  # [num_frames] uint8


class Listening:
    """Makes recordings of any text.

    Args:
        seed: of all random choices.
    """

    def __init__(self, seed: int = 0):
        self._rng = np.random.default_rng(seed)
        self._speakers = {name: Flite.shared(name) for name in VOICES}
        self._bent = {
            name: [_synthesis(flite, throat) for throat in THROATS]
            for name, flite in self._speakers.items()
        }
        self._plain = {name: _synthesis(flite, 0) for name, flite in self._speakers.items()}
        self._own = self._plain[TEACHER]

    def __call__(self, text: str) -> Heard | None:
        """Return a recording; None if the text has no sound, or speakers differ in its phonemes."""
        rng = self._rng
        name = str(rng.choice(VOICES, p=SHARES))
        said, own = self._speakers[name](text), self._speakers[TEACHER](text)
        if not said or not own or _names(said) != _names(own):
            return None
        is_plain = rng.uniform() < PLAIN_SHARE
        synthesis = self._plain[name] if is_plain else rng.choice(self._bent[name])
        slowness = 1 / rng.uniform(*TEMPO)
        places = _places(said, slowness, rng.uniform(0, features.FRAME_SECONDS))
        is_pause = _is_pause(said, places)
        f0 = self._melody(said, places)
        values = _rows(synthesis.values(said), places)
        near = _near(said.f0 > 0, places) & ~is_pause
        if not is_plain:
            values[:, :COLOURS] += rng.normal(0, COLOUR, COLOURS).astype(np.float32)
        wanted = _rows(self._own.values(own), np.interp(places, _ends(said), _ends(own)))
        for rows in (values, wanted):
            rows[is_pause] = features.silence()[0, : features.NUM_VALUES]
        phase = rng.uniform() + np.concatenate([[0], np.cumsum(f0) * HOP_SECONDS])
        where, periods = _pulses(phase)
        sound = synthesis.voice(_subframes(values), where, periods, self._noise(len(places)))
        if rng.uniform() < 0.5:
            sound, phase = -sound, phase + 0.5
        if near.any() and f0[near].mean() > MOST_HERTZ:  # every second pulse counts
            phase, f0 = (phase + rng.integers(2)) / 2, f0 / 2
        if not is_plain:
            sound = self._in_a_room(sound)
        sound *= 10 ** (rng.uniform(-LEVEL_DB, LEVEL_DB) / 20)
        return Heard(
            sound.clip(-1, 1).astype(np.float32),
            _subframes(wanted).reshape(-1, features.NUM_FEATURES),
            _pitch_codes(phase, f0, near),
        )

    def _melody(self, said: Spoken, places: np.ndarray) -> np.ndarray:
        """Return Hz at each row, moved to a random mean and range."""
        rng = self._rng
        known = np.flatnonzero(said.f0 > 0)
        if not len(known):
            return np.full(len(places), 100.0)
        f0 = np.interp(places / HOP_SECONDS, known, said.f0[known])
        range_of = HIGH_HERTZ if rng.uniform() < HIGH_SHARE else HERTZ
        mean = np.exp(rng.uniform(*np.log(range_of)))
        tones = np.log(f0 / said.f0[known].mean()) * rng.uniform(0.6, 1.6)
        return mean * np.exp(tones)

    def _noise(self, num_rows: int) -> np.ndarray | None:
        if self._rng.uniform() < FIXED_NOISE_SHARE:
            return None
        return self._rng.normal(size=num_rows // ROWS_PER_FRAME * FRAME).astype(np.float32)

    def _in_a_room(self, sound: np.ndarray) -> np.ndarray:
        """Return the sound as a room and a microphone change it."""
        rng = self._rng
        if rng.uniform() < 0.3:
            seconds = rng.uniform(0.03, ECHO_SECONDS)
            times = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
            echo = rng.normal(size=len(times)) * np.exp(-6.9 * times / seconds)
            echo *= rng.uniform(0.05, 0.3) / np.linalg.norm(echo)
            echo[0] += 1
            sound = scipy.signal.fftconvolve(sound, echo)[: len(sound)]
        if rng.uniform() < 0.5:  # a microphone's phase: all frequencies pass
            pole = rng.uniform(0.3, 0.9) * np.exp(1j * rng.uniform(0.1, 1.5))
            denominator = np.real(np.poly([pole, pole.conjugate()]))
            sound = scipy.signal.lfilter(denominator[::-1], denominator, sound)
        noise = rng.normal(size=len(sound))
        if rng.uniform() < 0.5:
            noise = 3 * scipy.signal.lfilter([0.1], [1, -0.95], noise)
        return sound + noise * 10 ** (rng.uniform(*NOISE_DB) / 20)


def _synthesis(flite: Flite, throat: float) -> features.Synthesis:
    filters = flite.filters
    return features.Synthesis(replace(filters, alpha=filters.alpha + throat))


def _names(said: Spoken) -> Sequence[str]:
    return [segment.name for segment in said.segments]


def _ends(said: Spoken) -> np.ndarray:
    return np.array([0.0, *(segment.end for segment in said.segments)])


def _places(said: Spoken, slowness: float, lead: float) -> np.ndarray:
    """Return the place of each row of whole frames in the speaker's time."""
    seconds = said.segments[-1].end * slowness
    num_frames = max(int(seconds / features.FRAME_SECONDS), LEAST_FRAMES)
    times = (np.arange(num_frames * ROWS_PER_FRAME) + 0.5) * HOP_SECONDS + lead
    return times / slowness


def _is_pause(said: Spoken, places: np.ndarray) -> np.ndarray:
    index = np.searchsorted(_ends(said), places) - 1
    pauses = np.array([segment.is_pause for segment in said.segments] + [True])
    return pauses[index.clip(0, len(said.segments))]


def _rows(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return values at places in seconds."""
    at = np.clip(places / HOP_SECONDS, 0, len(values) - 1)
    low = np.minimum(at.astype(int), len(values) - 2)
    part = (at - low)[:, None]
    found = values[low] * (1 - part) + values[low + 1] * part
    found[:, NUM_CEPSTRUM:] = values[np.round(at).astype(int), NUM_CEPSTRUM:]
    return found.astype(np.float32)


def _near(flags: np.ndarray, places: np.ndarray) -> np.ndarray:
    at = np.clip(np.round(places / HOP_SECONDS).astype(int), 0, len(flags) - 1)
    return flags[at]


def _subframes(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(-1, ROWS_PER_SUBFRAME, features.NUM_VALUES).mean(1)


def _pulses(phase: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return places and periods of the pulses, as `features.pulses` does.

    Args:
        phase: [num_rows + 1] periods at the rows' edges.
    """
    wanted = np.arange(np.ceil(phase[0]), np.floor(phase[-1]))
    edges = np.arange(len(phase)) * HOP_SECONDS * RATE
    where = np.interp(wanted, phase, edges)
    slopes = np.diff(phase)[np.minimum((where / edges[1]).astype(int), len(phase) - 2)]
    return where, edges[1] / slopes


def _pitch_codes(phase: np.ndarray, f0: np.ndarray, is_voiced: np.ndarray) -> np.ndarray:
    """Return the code of each frame, whose phase is that of the recording's pulses."""
    parts = np.round(PHASES * phase[::ROWS_PER_FRAME]).astype(int)
    rows = f0.reshape(-1, ROWS_PER_FRAME)
    fits = np.linspace(-0.5, 0.5, ROWS_PER_FRAME)
    slopes = np.argmin(
        np.abs(np.array(features.SLOPES_HZ)[:, None] - rows @ (fits / (fits**2).sum())), axis=0
    )
    counts = np.diff(parts).clip(features.LEAST_PARTS, features.MOST_PARTS)
    codes = [
        features.pack_pitch(int(start % PHASES), int(count), int(slope))
        for start, count, slope in zip(parts[:-1], counts, slopes, strict=True)
    ]
    voiced = is_voiced.reshape(-1, ROWS_PER_FRAME).any(1)
    return np.where(voiced, codes, features.NO_PITCH).astype(np.uint8)
