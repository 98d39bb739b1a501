"""Recordings on their way in: any file, rate and number of channels to mono float samples.

The official package takes the mean of the channels and resamples with soxr's "HQ" recipe; so do we.
Nothing is trimmed and no loudness is changed.
"""

import logging
import math
import re
from pathlib import Path
from typing import BinaryIO

import numpy as np

from qwen_megakernel.errors import RecordingError

logger = logging.getLogger(__name__)

# Anything libsndfile reads as one recording: what `voices create DIR` takes from a folder.
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif", ".au")

MIN_SECONDS = 1.0
MAX_SECONDS = 60.0
SILENT_DBFS = -60.0  # a recording whose loudest moment stays below holds no speech
FULL_SCALE = 0.999  # int16 recordings end at 32767 / 32768
MAX_CLIPPED_SHARE = 1e-3  # of the samples; above, a limiter or the recorder has cut the peaks

# Words a second of a transcript: read speech has 2 to 4. Outside the outer limits the transcript
# belongs to another recording, and the model would go on with the text it did not hear.
WORDS_PER_SECOND_REFUSED = (0.4, 9.0)
WORDS_PER_SECOND_DOUBTED = (1.5, 6.0)

# Speech gets louder and softer with every syllable, by 20 dB and more. A recording whose moments
# are all about as loud is a tone, noise or a hum.
MIN_LOUDNESS_RANGE_DB = 6.0
MOMENT_SECONDS = 0.03
QUIET_DB = 35.0  # below its loudest moment a moment is a pause

# What libsndfile cannot read and FFmpeg can.
FFMPEG_SUFFIXES = (".m4a", ".mp4", ".aac", ".wma", ".amr", ".webm", ".3gp", ".mov", ".mkv")

# Characters that are about a syllable each, in scripts without spaces: Han, Hiragana, Katakana.
_SYLLABLES = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
_SYLLABLES_PER_WORD = 2
_WORD = re.compile(r"\w+(?:['’-]\w+)*")


def read(path: str | Path | BinaryIO, name: str = "") -> tuple[np.ndarray, int]:
    """Read a recording.

    Args:
        path: a file's, or an open file.
        name: for messages; empty: the path.
    Returns:
        [num_samples] float32 mono, and samples a second as in the file.
    Raises:
        RecordingError: no such file, or nothing libsndfile can read as audio.
    """
    import soundfile

    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, RuntimeError, TypeError) as error:
        is_absent = isinstance(path, str | Path) and not Path(path).exists()
        reason = "no such file" if is_absent else why_unreadable(error)
        cure = "Give a WAV, FLAC, OGG or MP3 recording of one speaker."
        if not is_absent and Path(name or str(path)).suffix.lower() in FFMPEG_SUFFIXES:
            source = Path(name or str(path))
            cure = f"Convert it: ffmpeg -i {source} {source.with_suffix('.wav')}"
        raise RecordingError(f"{name or path} cannot be read as audio: {reason}.", cure=cure) from (
            error
        )
    return to_mono(samples), rate


def why_unreadable(error: Exception) -> str:
    """What libsndfile has against a file, without the address of the object that held it."""
    return getattr(error, "error_string", str(error)).rstrip(".")


def to_mono(samples: np.ndarray) -> np.ndarray:
    """[num_samples] or [num_samples, num_channels] of any real dtype -> [num_samples] float32.

    Integers of 8 to 32 bits are scaled to full scale at 1; floats are taken as they are.

    Raises:
        RecordingError: another shape, values that are not numbers, or wider integers: nobody
            records those, so what full scale is cannot be known.
    """
    samples = np.asarray(samples)
    if samples.dtype in (np.int64, np.uint64):
        raise RecordingError(
            f"Reference samples are {samples.dtype}, of which full scale is not known.",
            cure="Give float32 in [-1, 1], or the file's own int16.",
        )
    if samples.ndim not in (1, 2) or not np.issubdtype(samples.dtype, np.number):
        raise RecordingError(
            f"Reference samples have shape {samples.shape} and dtype {samples.dtype}; need "
            "[num_samples] or [num_samples, num_channels] numbers."
        )
    if np.issubdtype(samples.dtype, np.integer):
        samples = samples / np.float32(np.iinfo(samples.dtype).max + 1)
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


def check_duration(samples: np.ndarray, rate: int, name: str) -> None:
    """Refuse recordings under 1 s and over 60 s.

    Args:
        samples: [num_samples].
        rate: samples a second.
        name: of the recording, for messages.
    Raises:
        RecordingError: see above.
    """
    if rate <= 0:
        raise RecordingError(f"{name} has a sample rate of {rate}.")
    seconds = len(samples) / rate
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise RecordingError(
            f"{name} is {seconds:.1f} s long; a reference has {MIN_SECONDS:.0f} to "
            f"{MAX_SECONDS:.0f} s.",
            "5 to 15 s of one speaker work best.",
        )


def check(samples: np.ndarray, rate: int, name: str) -> None:
    """Refuse recordings that cannot describe a voice; warn of clipped ones.

    Args:
        samples: [num_samples] float32 mono.
        rate, name: as in `check_duration`.
    Raises:
        RecordingError: as there; silent; or not finite everywhere.
    """
    check_duration(samples, rate, name)
    if not np.isfinite(samples).all():
        first = np.flatnonzero(~np.isfinite(samples))[0]
        raise RecordingError(f"{name}: sample {first} is NaN or infinite.")
    peak = np.abs(samples).max()
    if peak < 10 ** (SILENT_DBFS / 20):
        raise RecordingError(f"{name} is silent: it stays below {SILENT_DBFS:.0f} dBFS.")
    clipped = np.mean(np.abs(samples) >= FULL_SCALE)
    if clipped > MAX_CLIPPED_SHARE:
        logger.warning(
            "%s is clipped: %.1f %% of its samples are at full scale. The voice will sound so too.",
            name,
            100 * clipped,
        )

    loudness = _loudness(samples, rate)
    spread = np.percentile(loudness, 90) - np.percentile(loudness, 10)
    if spread < MIN_LOUDNESS_RANGE_DB:
        logger.warning(
            "%s is equally loud from beginning to end (within %.0f dB), as a tone or noise is. Is "
            "it speech?",
            name,
            max(1, np.ceil(spread)),
        )


def seconds_of_sound(samples: np.ndarray, rate: int) -> float:
    """How long a recording sounds: without its pauses.

    Args:
        samples: [num_samples] float32 mono.
        rate: samples a second.
    """
    loudness = _loudness(samples, rate)
    return float(np.mean(loudness > loudness.max() - QUIET_DB) * len(samples) / rate)


def _loudness(samples: np.ndarray, rate: int) -> np.ndarray:
    """[num_moments] float, in dB."""
    moment = max(1, round(MOMENT_SECONDS * rate))
    moments = samples[: len(samples) // moment * moment].reshape(-1, moment)
    return 10 * np.log10(np.square(moments).mean(axis=1) + 1e-12)


def check_transcript(transcript: str, seconds: float) -> None:
    """Compare a transcript's length with the recording's.

    Args:
        seconds: `seconds_of_sound` of the recording.
    Raises:
        RecordingError: empty, or it cannot be what is said in that time.
    """
    num_syllables = len(_SYLLABLES.findall(transcript))
    num_words = len(_WORD.findall(_SYLLABLES.sub(" ", transcript)))
    num_words += math.ceil(num_syllables / _SYLLABLES_PER_WORD)
    if not num_words:
        raise RecordingError(
            "The transcript of the reference is empty.",
            cure="Give what is said in the recording, or none at all (x-vector only).",
        )
    words = "word" if num_words == 1 else "words"
    found = f"Transcript has {num_words} {words} for {seconds:.1f} s of speech"
    slowest, fastest = WORDS_PER_SECOND_REFUSED
    if not slowest <= num_words / seconds <= fastest:
        raise RecordingError(
            f"{found}; cloning in context will fail.",
            "The model continues from transcript and recording together; they must match.",
            "Give the full transcript or use --xvector.",
        )
    slowest, fastest = WORDS_PER_SECOND_DOUBTED
    if not slowest <= num_words / seconds <= fastest:
        logger.warning("%s. Is it the whole transcript, and of this recording?", found)
