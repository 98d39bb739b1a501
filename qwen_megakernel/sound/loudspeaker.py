"""Plays speech on the loudspeaker, with the package sounddevice (extra `play`)."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from qwen_megakernel.errors import MissingPackageError, OutputError
from qwen_megakernel.installing import require
from qwen_megakernel.records import AudioChunk

WRITES_PER_S = 10  # an interrupted speech plays on for one write


def check_loudspeaker() -> Any:
    """Return the module sounddevice, after a look for a loudspeaker; it plays nothing.

    Raises:
        MissingPackageError: sounddevice, or the library PortAudio that it loads, is missing.
        OutputError: there is no loudspeaker.
    """
    try:
        with require("play", by="--play", package="sounddevice"):
            import sounddevice
    except OSError as error:  # the package is installed, but the library that it loads is not
        raise MissingPackageError(
            f"--play needs the system's PortAudio library ({error}).",
            hint="Install libportaudio2 (Debian, Ubuntu) or portaudio (Fedora, Homebrew).",
        ) from error
    try:
        sounddevice.query_devices(kind="output")
    except sounddevice.PortAudioError as error:
        raise OutputError(f"--play finds no loudspeaker: {error}.") from error
    return sounddevice


@contextmanager
def loudspeaker(rate: int) -> Iterator[Callable[[np.ndarray], None]]:
    """Open the loudspeaker; yields a function that queues [num_samples] int16 and returns at once.

    Leaving the block waits for the last sample. After an exception the loudspeaker is silent.

    Raises:
        MissingPackageError, OutputError: as `check_loudspeaker`; or the loudspeaker fails.
    """
    sounddevice = check_loudspeaker()
    writes: list[Future] = []
    try:
        with (
            sounddevice.RawOutputStream(rate, channels=1, dtype="int16") as device,
            ThreadPoolExecutor(1, "loudspeaker") as thread,
        ):

            def play(samples: np.ndarray) -> None:
                for first in range(0, len(samples), rate // WRITES_PER_S):
                    data = samples[first : first + rate // WRITES_PER_S].tobytes()
                    writes.append(thread.submit(device.write, data))

            try:
                yield play
                for write in writes:
                    write.result()
            except BaseException:
                thread.shutdown(cancel_futures=True)
                device.abort()
                raise
    except sounddevice.PortAudioError as error:
        raise OutputError(f"--play finds no loudspeaker: {error}.") from error


def played(chunks: Iterator[AudioChunk], rate: int) -> Iterator[AudioChunk]:
    """Pass chunks on and play them, as `loudspeaker` does; the last one ends after its sound."""
    with loudspeaker(rate) as play:
        for chunk in chunks:
            play(chunk.samples)
            yield chunk
