"""Audio output: 16-bit PCM, G.711, and audio files."""

import io
import os
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qwen_megakernel.choices import MP3_RATES, TELEPHONE_RATE
from qwen_megakernel.errors import GenerationError, OutputError, UsageError, check_choice
from qwen_megakernel.marking import UNMARKED, Marking
from qwen_megakernel.output_files import new_partial, writing
from qwen_megakernel.signals import deferred_signals

if TYPE_CHECKING:
    import soundfile

FULL_SCALE = 32768  # int16 value of the float sample 1.0, which is clipped to FULL_SCALE - 1

# Extension -> libsndfile format. Each can be written in pieces.
FORMATS = {".wav": "WAV", ".flac": "FLAC", ".ogg": "OGG", ".mp3": "MP3"}
# Extension -> the highest sample rate; above it, libsndfile's Vorbis encoder crashes.
_MAX_RATES = {".wav": 2**31 - 1, ".flac": 655350, ".ogg": 200000, ".mp3": 48000}
# One of `choices.ENCODINGS` -> libsndfile's name of it.
SUBTYPES = {"pcm": "PCM_16", "ulaw": "ULAW", "alaw": "ALAW"}


def joined(pieces: Iterable[np.ndarray]) -> np.ndarray:
    """Return [num_samples] int16, the pieces of a speech one after the other; none give silence."""
    return np.concatenate([np.empty(0, np.int16), *pieces])


def to_int16(pcm: np.ndarray) -> np.ndarray:
    """Round float samples to 16-bit PCM, an int16 array of the same shape.

    `to_float32` converts back to the same values. Ties round to even, and values beyond full scale
    are clipped.

    Args:
        pcm: float samples of any shape, full scale at 1.
    Raises:
        GenerationError: a sample is NaN or infinite.
    """
    if not np.isfinite(pcm).all():
        raise GenerationError(
            f"Sample {np.flatnonzero(~np.isfinite(pcm))[0]} of the audio is not a number.",
            "The model's arithmetic broke down; its weights may be damaged.",
        )
    scaled = np.rint(pcm * FULL_SCALE)
    return scaled.clip(-FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def to_float32(samples: np.ndarray) -> np.ndarray:
    """Return 16-bit samples of any shape as float32, full scale at 1; `to_int16` reverses it."""
    return samples.astype(np.float32) / FULL_SCALE


def to_g711(samples: np.ndarray, encoding: str) -> bytes:
    """Return [num_samples] int16 as G.711 "ulaw" or "alaw": 8 bits per sample, and no rate.

    Raises:
        UsageError: the encoding, or the samples, are others.
    """
    import soundfile

    check_choice("encoding", encoding, ("ulaw", "alaw"))
    _check_samples(samples)
    file = io.BytesIO()
    options = {"format": "RAW", "subtype": SUBTYPES[encoding]}
    with soundfile.SoundFile(file, "w", TELEPHONE_RATE, 1, **options) as writer:
        writer.write(samples)
    return file.getvalue()


def _check_samples(samples: np.ndarray) -> None:
    """Raise a UsageError for samples that are not [num_samples] int16."""
    array = np.asarray(samples)
    if array.dtype != np.int16 or array.ndim != 1:
        raise UsageError(
            f"Samples are {array.dtype} of shape {array.shape}; they must be int16 of one "
            "channel, [num_samples].",
            hint="`qwen_megakernel.audio.to_int16` rounds float samples.",
        )


def new_sound_file(
    file: Any, rate: int, comment: str = "", **options: Any
) -> "soundfile.SoundFile":
    """Return a mono file to write to; see `soundfile.SoundFile`.

    Args:
        comment: what the file says of its audio, where its format has a place; empty: nothing.
    """
    import soundfile

    opened = soundfile.SoundFile(file, "w", rate, 1, **options)
    if comment:
        opened.comment = comment
    return opened


def check_path(path: str | Path, encoding: str = "pcm", rate: int | None = None) -> None:
    """Raise the error that a `WavWriter` of this path would raise; leave no file there.

    A rate of None is not checked.
    """
    _begin_file(Path(path), encoding, rate).unlink()


def _begin_file(path: Path, encoding: str, rate: int | None) -> Path:
    """Create the empty hidden file beside `path` that collects its audio."""
    with writing(path, ValueError):  # a name that is too long, or has a null byte
        target, is_folder = path.resolve(), path.is_dir()
    if is_folder:
        raise OutputError(f"Cannot write {path}: it is a folder.")
    check_choice("encoding", encoding, SUBTYPES)
    if path.suffix.lower() not in FORMATS:
        what = f"no audio format is called {path.suffix!r}" if path.suffix else "no extension"
        raise UsageError(f"Cannot write {path}: {what}.", hint=f"Known: {', '.join(FORMATS)}.")
    if encoding != "pcm" and path.suffix.lower() != ".wav":
        raise UsageError(f"Cannot write {path}: encoding is {encoding}, which only wav has.")
    if path.suffix.lower() == ".mp3" and rate not in (None, *MP3_RATES):
        raise UsageError(
            f"Cannot write {path}: sample_rate is {rate}, and mp3 has only "
            f"{', '.join(map(str, MP3_RATES))}.",
            hint="wav, flac and ogg have every rate.",
        )
    highest = _MAX_RATES[path.suffix.lower()]
    if rate is not None and not (isinstance(rate, Integral) and 0 < rate <= highest):
        raise UsageError(
            f"Cannot write {path}: sample_rate is {rate}; it must be a whole number in 1 .. "
            f"{highest}."
        )
    if target.exists() and not target.is_file():
        raise OutputError(f"Cannot write {path}: it exists and is not a file.")
    with writing(path, new=path):
        return new_partial(target)


class WavWriter(AbstractContextManager["WavWriter"]):
    """An audio file, written while the speech arrives.

    The writer fills a hidden file beside `path`, which `close` renames, so `path` is never half a
    file. Leaving a `with` block, also by Ctrl-C, closes the file and keeps the speech until then;
    after an exception a file that was there stays, and the speech is in `NAME.part.EXTENSION`.
    `close` removes a file without a sample.
    """

    def __init__(
        self, path: str | Path, rate: int, encoding: str = "pcm", mark: Marking = UNMARKED
    ):
        """Create the hidden file.

        Args:
            path: its extension names the format: wav, flac, ogg or mp3.
            rate: samples per second.
            encoding: encoding of a wav file: "pcm" (16-bit), "ulaw" or "alaw".
            mark: its metadata and its signer mark the file; a watermark is in the samples.
        Raises:
            UsageError: the extension or the encoding is unknown, or the format does not have the
                encoding, the rate or a place for the signature.
            OutputError: the folder is not writable, or `path` is no regular file.
        """
        self.path = Path(path)
        mark.check_file(self.path)
        self._partial = _begin_file(self.path, encoding, rate)
        self._target = target = self.path.resolve()
        form = FORMATS[target.suffix.lower()]
        subtype = None if encoding == "pcm" else SUBTYPES[encoding]
        try:
            self._file = new_sound_file(  # soundfile would encode the name strictly
                os.fsencode(self._partial), rate, mark.comment, format=form, subtype=subtype
            )
        except RuntimeError as error:  # the disk is full
            raise self._failed(error) from error
        self._signer = mark.signer

    def write(self, samples: np.ndarray) -> None:
        """Append [num_samples] int16.

        Raises:
            UsageError: the samples are others.
            OutputError: the disk is full or gone; the hidden file is removed.
        """
        _check_samples(samples)
        try:
            # libsndfile's Vorbis encoder copies each write to the stack; 90 s of audio overflow it.
            for first in range(0, len(samples), self._file.samplerate):
                self._file.write(samples[first : first + self._file.samplerate])
        except (OSError, RuntimeError) as error:
            self._file.close()
            raise self._failed(error) from error

    def close(self) -> None:
        """Complete the file and rename it to `path`. A second call does nothing.

        Raises:
            OutputError: the disk is full or gone, or the file cannot be signed; the hidden file is
                removed.
        """
        with deferred_signals():
            if self._file.closed:
                return
            try:
                self._file.close()
                if self._file.frames:
                    self._check_whole()
                    if self._signer:
                        name = self._target.suffix.lower().removeprefix(".")
                        self._signer.sign_file(self._partial, name)
                    os.replace(self._partial, self._target)
                else:
                    self._partial.unlink()
            except (OSError, RuntimeError, OutputError) as error:
                raise self._failed(error) from error

    def _check_whole(self) -> None:
        """Raise an error if the file lacks samples: libsndfile's Ogg hides that a disk is full."""
        import soundfile

        name = os.fsencode(self._partial)
        if self._file.format == "OGG" and soundfile.info(name).frames != self._file.frames:
            raise OSError("the end of the file is missing")

    def _failed(self, error: Exception) -> OutputError:
        self._partial.unlink(missing_ok=True)
        free = shutil.disk_usage(self._target.parent).free
        return OutputError(
            f"Cannot write {self.path}: {getattr(error, 'error_string', error)}",
            f"{free / 1e6:.0f} MB are free in {self._target.parent}.",
        )

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._target.exists():
            self.path = self.path.with_suffix(f".part{self.path.suffix}")
            self._target = self.path.resolve()
        self.close()


def write_wav(
    path: str | Path,
    samples: np.ndarray,
    rate: int,
    encoding: str = "pcm",
    mark: Marking = UNMARKED,
) -> None:
    """Write a whole audio file with a `WavWriter`, which says what the other arguments are.

    Args:
        samples: [num_samples] float with full scale at 1, or int16.
    Raises:
        UsageError, OutputError: as `WavWriter`; or there are no samples.
        GenerationError: a sample is NaN or infinite.
    """
    samples = np.asarray(samples)
    if not samples.size:
        raise UsageError(f"There is no audio to write to {path}.")
    if samples.dtype.kind == "f":
        samples = to_int16(samples)
    with WavWriter(path, rate, encoding, mark) as writer:
        writer.write(samples)
