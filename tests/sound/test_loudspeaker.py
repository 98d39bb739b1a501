"""The loudspeaker plays all samples in order, and is silent after an error; the device is fake."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from spies import results_of
from waiting import wait_until

from qwen_megakernel.errors import OutputError
from qwen_megakernel.records import AudioChunk
from qwen_megakernel.sound.loudspeaker import loudspeaker, played

RATE = 1000


class PortAudioError(Exception):
    """The package's error."""


class Device:
    """A device whose `write` waits until `plays` is set."""

    def __init__(self) -> None:
        self.heard, self.calls = b"", []
        self.plays, self.fails = threading.Event(), False

    def write(self, data: bytes) -> None:
        self.plays.wait(10)
        if self.fails:
            raise PortAudioError("unplugged")
        self.heard += data

    def abort(self) -> None:
        self.calls.append("abort")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.calls.append("close")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    package = SimpleNamespace(
        query_devices=lambda kind: None,
        RawOutputStream=lambda rate, channels, dtype: device,
        PortAudioError=PortAudioError,
    )
    monkeypatch.setitem(sys.modules, "sounddevice", package)
    return device


def ramp(num_samples: int) -> np.ndarray:
    return np.arange(num_samples, dtype=np.int16)


def test_the_block_ends_when_the_last_sample_is_played(device: Device):
    with loudspeaker(RATE) as play:
        play(ramp(250))
        play(ramp(30))
        assert device.heard == b""  # the caller did not wait
        device.plays.set()
    assert device.heard == ramp(250).tobytes() + ramp(30).tobytes()
    assert device.calls == ["close"]


def test_after_an_interruption_the_loudspeaker_is_silent(device: Device, monkeypatch):
    writes = results_of(monkeypatch, ThreadPoolExecutor, "submit")

    def play_on() -> None:
        wait_until(lambda: writes[-1].cancelled())
        device.plays.set()

    with pytest.raises(KeyboardInterrupt), loudspeaker(RATE) as play:
        play(ramp(10 * RATE))
        threading.Thread(target=play_on).start()
        raise KeyboardInterrupt
    assert len(device.heard) <= RATE // 10 * 2
    assert device.calls == ["abort", "close"]


def test_a_device_that_fails_is_an_error(device: Device):
    device.fails = True
    device.plays.set()
    with pytest.raises(OutputError, match="unplugged"), loudspeaker(RATE) as play:
        play(ramp(10))


def test_chunks_pass_and_are_played(device: Device):
    device.plays.set()
    chunks = [AudioChunk(ramp(number), RATE, 0, 1, 0.0) for number in (7, 120)]
    assert list(played(iter(chunks), RATE)) == chunks
    assert device.heard == ramp(7).tobytes() + ramp(120).tobytes()
