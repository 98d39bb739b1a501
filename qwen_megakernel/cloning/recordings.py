"""Reads recordings of any file, rate and number of channels as mono float samples, and checks them.

As in the official package, channels are averaged and soxr's "HQ" recipe resamples. Recordings are
not trimmed, and their loudness is not changed.
"""

import math
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from qwen_megakernel.errors import RecordingError
from qwen_megakernel.printable import get_logger
from qwen_megakernel.text.scripts import UNSPACED

if TYPE_CHECKING:
    from soundfile import SoundFile

logger = get_logger(__name__)

# Suffixes of the recordings that `voices create DIR` takes from a folder; libsndfile reads them.
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif", ".au")

MIN_RATE = 1000  # samples per second; with fewer, the pitch of a high voice is lost
MIN_SECONDS = 1.0
MAX_SECONDS = 60.0
SILENT_DBFS = -60.0  # a recording whose loudest moment is lower has no speech
FULL_SCALE = 0.999  # int16 recordings end at 32767 / 32768
MAX_CLIPPED_SHARE = 1e-3  # with more such samples, a limiter or the recorder has cut the peaks
# Integers of 32 bits that were stored as floats without scaling reach this peak. Larger samples are
# no sound, and far larger ones overflow when they are squared in float32.
MAX_PEAK = 2.0**31
MAX_BLOCK_SAMPLES = 2**22  # of all channels, read at once: a second of 8 channels at 384 kHz

# Words per second of a transcript: read speech has 2 to 4. Outside the outer limits the transcript
# belongs to another recording, and the model would go on with text that was not spoken.
WORDS_PER_SECOND_REFUSED = (0.4, 9.0)
WORDS_PER_SECOND_DOUBTED = (1.5, 6.0)

# Speech gets louder and softer with every syllable, by 15 dB and more, and brighter and darker with
# every sound: in docs/samples the level of a band, relative to that of the loudest, deviates by 8
# to 11 dB (standard deviation). In a tone or in noise, fading or not, it deviates by 0 to 1.7.
MIN_LOUDNESS_RANGE_DB = 6.0
MIN_BAND_DEVIATION_DB = 1.8
MOMENT_SECONDS = 0.03
QUIET_DB = 35.0  # a moment that is quieter than the loudest one by more than this is a pause
BAND_HERTZ = 500
HIGHEST_HERTZ = 8000
FAINT_DB = -40.0  # lower levels count as this one: they are background

# Formats that FFmpeg can read and libsndfile cannot.
FFMPEG_SUFFIXES = (".m4a", ".mp4", ".aac", ".wma", ".amr", ".webm", ".3gp", ".mov", ".mkv")

_SYLLABLES = re.compile(f"[{UNSPACED}]")
_SYLLABLES_PER_WORD = 2
_WORD = re.compile(r"\w+(?:['’-]\w+)*")


def read(path: str | Path | BinaryIO, name: str = "") -> tuple[np.ndarray, int]:
    """Return a recording as [num_samples] float32 mono, and the file's samples per second.

    Args:
        path: the path of a file, or an open file.
        name: the recording's name in messages; empty: the path.
    Raises:
        RecordingError: there is no such file, or libsndfile cannot read it as audio.
    """
    try:
        with opened(path) as file:
            return decode(file), file.samplerate
    except (OSError, RuntimeError, TypeError) as error:
        problem, start = "", b""
        if isinstance(path, str | Path):
            if not os.path.exists(path):  # `Path.exists` raises for a name that is too long
                problem = "no such file"
            elif os.path.isdir(path):
                problem = "it is a folder"
            elif os.path.isfile(path):
                try:
                    with open(path, "rb") as data:
                        start = data.read(8)
                    problem = "" if start else "it is empty"
                except OSError as refusal:  # libsndfile calls it a system error
                    problem = refusal.strerror or ""
        hint = "Give a WAV, FLAC, OGG or MP3 recording of one speaker."
        source = Path(name or str(path))
        suffix = source.suffix.lower()
        if not problem and (suffix in FFMPEG_SUFFIXES or start.endswith(b"ftyp")):
            target = source.with_suffix(".flac" if suffix == ".wav" else ".wav")
            hint = f"Convert it: {shlex.join(['ffmpeg', '-i', str(source), str(target)])}"
        what = f"{name or path} cannot be read as audio: {problem or why_unreadable(error)}."
        raise RecordingError(what, hint=hint) from error


def opened(path: str | Path | BinaryIO) -> "SoundFile":
    """Open a file that is read once, from its beginning to its end.

    soundfile seeks behind each block, which libsndfile cannot do in a FLAC without a length.
    """
    import soundfile

    class ReadOnce(soundfile.SoundFile):
        def seekable(self) -> bool:
            return False

    # soundfile itself encodes a name strictly, which fails for one that is not of the locale.
    return ReadOnce(os.fsencode(path) if isinstance(path, str | Path) else path)


def decode(file: "SoundFile", max_seconds: float = math.inf) -> np.ndarray:
    """Return the samples of an open file, [num_samples] float32 mono, with at most one second of it
    at a time in memory: its header may state any length and rate, and that of a streamed FLAC
    states no length.

    Raises:
        RecordingError: it is longer than `max_seconds`.
    """
    blocks, seconds = [np.empty(0, np.float32)], 0.0
    length = min(file.samplerate, max(1, MAX_BLOCK_SAMPLES // file.channels))
    while len(block := file.read(length, dtype="float32", always_2d=True)):
        blocks.append(to_mono(block))
        seconds += len(block) / file.samplerate
        if seconds > max_seconds:
            raise RecordingError(
                f"The recording is at least {seconds:.0f} s long; the limit is {max_seconds:.0f} s."
            )
    return np.concatenate(blocks)


def why_unreadable(error: Exception) -> str:
    """Return libsndfile's reason without the address of the object that held the file."""
    return getattr(error, "error_string", str(error)).rstrip(".")


def to_mono(samples: np.ndarray) -> np.ndarray:
    """[num_samples] or [num_samples, num_channels] of any real dtype -> [num_samples] float32.

    Integers of 8 to 32 bits are scaled to full scale at 1; floats are taken as they are.

    Raises:
        RecordingError: the shape is another, values are not numbers, or integers are wider; their
            full scale is not known, because no recorder makes them.
    """
    samples = np.asarray(samples)
    if samples.dtype in (np.int64, np.uint64):
        raise RecordingError(
            f"Reference samples are {samples.dtype}, whose full scale is not known.",
            hint="Give float32 in [-1, 1], or the file's own int16.",
        )
    if samples.ndim not in (1, 2) or samples.dtype.kind not in "fiu":
        raise RecordingError(
            f"Reference samples have shape {samples.shape} and dtype {samples.dtype}; need "
            "[num_samples] or [num_samples, num_channels] real numbers."
        )
    if np.issubdtype(samples.dtype, np.integer):
        limits = np.iinfo(samples.dtype)
        middle = (limits.min + limits.max + 1) // 2  # silence of unsigned samples, as 8-bit WAV has
        samples = (samples.astype(np.int64) - middle) / np.float32(limits.max + 1 - middle)
    samples = samples.astype(np.float32, copy=False)
    return samples if samples.ndim == 1 else samples.mean(axis=1)


def resample(samples: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    """[num_samples] float32 at `rate` -> [ceil(num_samples * new_rate / rate)] at `new_rate`."""
    if rate == new_rate:
        return samples
    import soxr

    num_samples = math.ceil(len(samples) * (new_rate / rate))
    resampled = soxr.resample(samples, rate, new_rate, quality="HQ")[:num_samples]
    return np.pad(resampled, (0, num_samples - len(resampled)))


def check_samples(samples: np.ndarray, rate: int, name: str, shortest: float = MIN_SECONDS) -> None:
    """Raise for recordings too short, over 60 s or under 1000 Hz, and for what is no sound.

    Args:
        samples: [num_samples] float32.
        rate: samples per second.
        name: the recording's name in messages.
        shortest: seconds that a recording must have.
    Raises:
        RecordingError: its length or its rate is not allowed, or `check_values` raises it.
    """
    if rate < MIN_RATE:
        what = f"{name} has {rate} samples per second; it must have at least {MIN_RATE}."
        raise RecordingError(what)
    seconds = len(samples) / rate
    if not shortest <= seconds <= MAX_SECONDS:
        raise RecordingError(
            f"{name} is {seconds:.1f} s long; it must have {shortest:.0f} to {MAX_SECONDS:.0f} s.",
            "5 to 15 s of one speaker work best." if shortest else "",
        )
    check_values(samples, name)


def check_values(samples: np.ndarray, name: str) -> None:
    """Raise a RecordingError if a sample is NaN, infinite or above `MAX_PEAK`."""
    if not np.isfinite(samples).all():
        first = np.flatnonzero(~np.isfinite(samples))[0]
        raise RecordingError(f"{name}: sample {first} is NaN or infinite.")
    peak = np.abs(samples).max(initial=0)
    if peak > MAX_PEAK:
        raise RecordingError(
            f"{name} has samples of {peak:.3g}; float samples have their full scale at 1.",
            hint="Write the recording again, as 16-bit WAV for example.",
        )


def check(samples: np.ndarray, rate: int, name: str) -> None:
    """Raise for recordings without a voice; warn about clipped ones and about tones and noise.

    Raises:
        RecordingError: `check_samples` raises it, or the recording is silent.
    """
    check_samples(samples, rate, name)
    if np.abs(samples).max() < 10 ** (SILENT_DBFS / 20):
        raise RecordingError(
            f"{name} is silent: it stays below {SILENT_DBFS:.0f} dBFS.",
            hint="Record louder, or raise the recording's level.",
        )
    clipped = np.mean(np.abs(samples) >= FULL_SCALE)
    if clipped > MAX_CLIPPED_SHARE:
        logger.warning(
            "%s is clipped: %.1f %% of its samples are at full scale. The voice will be, too.",
            name,
            100 * clipped,
        )

    if _sounds_the_same(samples, rate):
        logger.warning(
            "%s sounds the same from beginning to end, like a tone or noise. Is it speech?", name
        )


def seconds_of_sound(samples: np.ndarray, rate: int) -> float:
    """Return the duration without pauses of a recording, [num_samples] float32 mono."""
    sounding = _loudness(_moments(samples, rate)) > -QUIET_DB
    return float(np.mean(sounding) * len(samples) / rate)


def _sounds_the_same(samples: np.ndarray, rate: int) -> bool:
    """Return whether loudness or spectrum changes less than in speech."""
    moments = _moments(samples, rate)
    loudness = _loudness(moments)
    moments, loudness = moments[loudness > -QUIET_DB], loudness[loudness > -QUIET_DB]
    if np.percentile(loudness, 90) - np.percentile(loudness, 10) < MIN_LOUDNESS_RANGE_DB:
        return True
    power = np.square(np.abs(np.fft.rfft(moments * np.hanning(moments.shape[1]))))
    hertz = np.fft.rfftfreq(moments.shape[1], 1 / rate)
    starts = np.arange(0, min(HIGHEST_HERTZ, rate / 2), BAND_HERTZ)
    # The highest bin is below rate / 2 if a moment has an odd number of samples.
    starts = starts[starts <= hertz[-1]]
    bands = np.add.reduceat(power, np.searchsorted(hertz, starts), axis=1)
    levels = 10 * np.log10(bands + 1e-20)
    levels = np.maximum(levels - levels.max(axis=1, keepdims=True), FAINT_DB)
    return bool(levels.std(axis=0).mean() < MIN_BAND_DEVIATION_DB)


def _moments(samples: np.ndarray, rate: int) -> np.ndarray:
    """[num_samples] -> [num_moments, samples_per_moment]; the remainder is dropped."""
    length = max(1, round(MOMENT_SECONDS * rate))
    return samples[: len(samples) // length * length].reshape(-1, length)


def _loudness(moments: np.ndarray) -> np.ndarray:
    """Return the loudness of each moment relative to the loudest one, [num_moments] dB."""
    loudness = 10 * np.log10(np.square(moments).mean(axis=1) + 1e-12)
    return loudness - loudness.max()


def check_transcript(transcript: str, seconds: float, name: str = "") -> None:
    """Compare a transcript's length with the recording's.

    Args:
        seconds: `seconds_of_sound` of the recording.
        name: the recording's name in the warning; empty: none.
    Raises:
        RecordingError: the transcript is empty, or too short or too long for the recording.
    """
    num_syllables = len(_SYLLABLES.findall(transcript))
    num_words = len(_WORD.findall(_SYLLABLES.sub(" ", transcript)))
    num_words += math.ceil(num_syllables / _SYLLABLES_PER_WORD)
    if not num_words:
        raise RecordingError(
            "The transcript of the reference is empty.",
            hint="Give what is said in the recording, or none at all (x-vector only).",
        )
    words = "word" if num_words == 1 else "words"
    found = f"Transcript has {num_words} {words} for {seconds:.1f} s of speech"
    slowest, fastest = WORDS_PER_SECOND_REFUSED
    if not slowest <= num_words / seconds <= fastest:
        raise RecordingError(
            f"{found}; cloning in context will fail.",
            "The model continues from transcript and recording together; they must match.",
            "Give the full transcript, or none (--xvector; over HTTP x_vector_only_mode).",
        )
    slowest, fastest = WORDS_PER_SECOND_DOUBTED
    if not slowest <= num_words / seconds <= fastest:
        found = f"{name}: {found}" if name else found
        logger.warning("%s. Is it the whole transcript of this recording?", found)
