"""Samples on their way out: 16-bit PCM, audio files, and what a listener hears when."""

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from qwen_megakernel.errors import GenerationError, OutputError, UsageError
from qwen_megakernel.signals import deferred_signals

FULL_SCALE = 32768  # int16 sample of a float sample of 1, which is clipped to FULL_SCALE - 1

# Extension -> libsndfile format. Each takes audio in pieces.
FORMATS = {".wav": "WAV", ".flac": "FLAC", ".ogg": "OGG", ".mp3": "MP3"}

# The detector of audible sound, as nari-labs' benchmark of first audible audio defines it: two
# windows in a row above the threshold, each half a window after the other.
WINDOW_MS = 20
HOP_MS = 10
AUDIBLE_DBFS = -45
NUM_AUDIBLE_WINDOWS = 2


def to_int16(pcm: np.ndarray) -> np.ndarray:
    """Round float samples to 16-bit PCM.

    The scale is 32768, so that int16 / 32768 comes back unchanged; ties go to even, and what lies
    outside -32768 .. 32767 is clipped.

    Args:
        pcm: float samples of any shape, full scale at 1.
    Returns:
        The same shape in int16.
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


def check_path(path: str | Path) -> None:
    """Refuse a path that no audio file can have, before there is any audio. Leaves nothing there.

    Raises:
        UsageError, OutputError: as `WavWriter`.
    """
    _begin_file(Path(path)).unlink()


def _begin_file(path: Path) -> Path:
    """The hidden file beside `path`, empty, in which its audio is collected."""
    if path.is_dir():
        raise OutputError(f"Cannot write {path}: it is a folder.")
    if path.suffix.lower() not in FORMATS:
        what = f"no audio format is called {path.suffix!r}" if path.suffix else "no extension"
        raise UsageError(f"Cannot write {path}: {what}.", hint=f"Known: {', '.join(FORMATS)}.")
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise OutputError(f"Cannot write {path}: it exists and is not a file.")
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        partial.touch(exist_ok=False)
    except OSError as error:
        raise OutputError(f"Cannot write {path}: {error.strerror}.") from error
    return partial


class WavWriter:
    """An audio file, written while the speech arrives.

    Everything goes to a hidden file beside `path`, which takes its name when it is closed: at any
    time `path` is a whole file or none of ours. Leaving a `with` block closes it, also through
    Ctrl-C, so what was spoken until then stays. Without a sample no file is left.
    """

    def __init__(self, path: str | Path, rate: int):
        """Start a file.

        Args:
            path: its extension names the format: wav, flac, ogg or mp3.
            rate: samples a second.
        Raises:
            UsageError: an unknown extension.
            OutputError: the folder cannot be written, or the path is not that of a file.
        """
        import soundfile

        self.path = Path(path)
        self._target = target = self.path.resolve()
        self._partial = _begin_file(self.path)
        self._has_audio = False
        self._file = soundfile.SoundFile(
            self._partial, "w", rate, channels=1, format=FORMATS[target.suffix.lower()]
        )
        self._block_samples = rate

    def write(self, samples: np.ndarray) -> None:
        """Append [num_samples] int16.

        Raises:
            OutputError: the disk is full or gone; nothing of the file is left.
        """
        assert samples.dtype == np.int16
        try:
            # libsndfile's Vorbis encoder puts each write onto the stack: 90 s at once overflow it.
            for first in range(0, len(samples), self._block_samples):
                self._file.write(samples[first : first + self._block_samples])
                self._has_audio = True
        except (OSError, RuntimeError) as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Complete the file and give it its name. Safe to call twice.

        Raises:
            OutputError: the disk is full or gone; nothing of the file is left.
        """
        with deferred_signals():
            if self._file.closed:
                return
            try:
                self._file.close()
                if self._has_audio:
                    os.replace(self._partial, self._target)
                else:
                    self._partial.unlink()
            except (OSError, RuntimeError) as error:
                raise self._failed(error) from error

    def _failed(self, error: Exception) -> OutputError:
        self._file.close()
        self._partial.unlink(missing_ok=True)
        free = shutil.disk_usage(self._target.parent).free
        return OutputError(
            f"Cannot write {self.path}: {error}",
            f"{free / 1e6:.0f} MB are free in {self._target.parent}.",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def write_wav(path: str | Path, samples: np.ndarray, rate: int) -> None:
    """Write a whole audio file; a file of that name is replaced at the end or not at all.

    Args:
        path: its extension names the format: wav, flac, ogg or mp3.
        samples: [num_samples] float with full scale at 1, or int16.
        rate: samples a second.
    Raises:
        UsageError: an unknown extension, or no samples.
        OutputError: the file cannot be written; names it.
        GenerationError: a sample is NaN or infinite.
    """
    if not len(samples):
        raise UsageError(f"There is no audio to write to {path}.")
    if samples.dtype != np.int16:
        samples = to_int16(samples)
    with WavWriter(path, rate) as writer:
        writer.write(samples)


def playback_gaps(
    chunk_times_ms: Sequence[float], chunk_durations_ms: Sequence[float], buffer_ms: float
) -> list[float]:
    """Simulate a player that starts `buffer_ms` after the first chunk and stops when it runs dry.

    Args:
        chunk_times_ms: when each chunk arrived, in order.
        chunk_durations_ms: how long each chunk plays.
        buffer_ms: how long the player waits before it starts.
    Returns:
        The length in ms of each silence inside the speech; empty if there was none.
    """
    gaps = []
    played_until = None
    for time, duration in zip(chunk_times_ms, chunk_durations_ms, strict=True):
        if played_until is None:
            played_until = time + buffer_ms
        elif time > played_until:
            gaps.append(time - played_until)
            played_until = time
        played_until += duration
    return gaps


def leading_silence_ms(samples: np.ndarray, rate: int) -> float:
    """How much of the beginning nobody hears: the start of the first audible windows.

    Args:
        samples: [num_samples] float with full scale at 1, or int16.
        rate: samples a second.
    Returns:
        Milliseconds; the whole duration if nothing is audible.
    """
    window, hop = rate * WINDOW_MS // 1000, rate * HOP_MS // 1000
    full_scale = FULL_SCALE if samples.dtype == np.int16 else 1
    energy = np.cumsum(np.square(samples.astype(np.float64) / full_scale))
    energy = np.concatenate([[0.0], energy])
    starts = np.arange(0, len(samples) - window + 1, hop)
    power = (energy[starts + window] - energy[starts]) / window
    is_loud = power > 10 ** (AUDIBLE_DBFS / 10)
    run = 0
    for start, loud in zip(starts, is_loud, strict=True):
        run = run + 1 if loud else 0
        if run == NUM_AUDIBLE_WINDOWS:
            return float(start - (NUM_AUDIBLE_WINDOWS - 1) * hop) * 1000 / rate
    return len(samples) * 1000 / rate
