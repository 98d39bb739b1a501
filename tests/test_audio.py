"""16-bit PCM, audio files that are complete or absent."""

import errno
import multiprocessing
import os
import re
import signal
import wave
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile
import waveforms
from limits import full_disk
from tolerances import LOSSY_LOUDNESS

from qwen_megakernel import audio
from qwen_megakernel.audio import WavWriter, to_float32, to_int16, write_wav
from qwen_megakernel.choices import MP3_RATES
from qwen_megakernel.errors import GenerationError, OutputError, UsageError

RATE = 24000


def tone(seconds: float) -> np.ndarray:
    return to_int16(waveforms.tone(seconds, RATE, level=0.5))


def read_wav(path: Path) -> np.ndarray:
    """Read a file with the standard library, which requires a correct header."""
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        data = file.readframes(file.getnframes())
        assert len(data) == 2 * file.getnframes()
        return np.frombuffer(data, "<i2")


def test_every_int16_comes_back():
    samples = np.arange(-32768, 32768, dtype=np.int16)
    floats = to_float32(samples)
    assert floats.dtype == np.float32 and np.array_equal(floats, samples / 32768)
    assert np.array_equal(to_int16(floats), samples)


def test_samples_are_rounded_to_nearest_and_clipped():
    pcm = np.array([0.4, 0.6, -0.6, 0.5, 1.5, 32768, 99999, -32768, -40000], np.float32) / 32768
    assert to_int16(pcm).tolist() == [0, 1, -1, 0, 2, 32767, 32767, -32768, -32768]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused(bad: float):
    with pytest.raises(GenerationError, match="Sample 3 "):
        to_int16(np.array([0, 0, 0, bad, bad], np.float32))


def test_write_wav_writes_floats_and_int16(tmp_path: Path):
    samples = tone(0.3)
    write_wav(tmp_path / "a.wav", samples, RATE)
    write_wav(str(tmp_path / "b.wav"), samples.astype(np.float32) / 32768, RATE)
    assert np.array_equal(read_wav(tmp_path / "a.wav"), samples)
    assert np.array_equal(read_wav(tmp_path / "b.wav"), samples)
    assert sorted(os.listdir(tmp_path)) == ["a.wav", "b.wav"]


def test_write_wav_refuses_to_write_nothing(tmp_path: Path):
    with pytest.raises(UsageError, match="no audio to write"):
        write_wav(tmp_path / "a.wav", np.zeros(0, np.int16), RATE)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("samples", [np.zeros(4, np.int32), np.zeros((4, 2), np.int16), [True]])
def test_samples_that_are_no_pcm_of_one_channel_are_refused(tmp_path: Path, samples):
    with pytest.raises(UsageError, match="they must be int16 of one channel"):
        write_wav(tmp_path / "a.wav", samples, RATE)
    floats = np.zeros(4, np.float32)
    with (
        WavWriter(tmp_path / "a.wav", RATE) as writer,
        pytest.raises(UsageError, match=r"float32 of shape \(4,\)(.|\n)*to_int16"),
    ):
        writer.write(floats)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("extension", ["wav", "flac", "ogg", "mp3", "WAV"])
def test_the_extension_picks_the_format(tmp_path: Path, extension: str):
    path = tmp_path / f"a.{extension}"
    samples = tone(1.0)
    with WavWriter(path, RATE) as writer:
        for chunk in np.split(samples, [10, 1930, 20000]):
            writer.write(chunk)
    info = soundfile.info(path)
    assert info.format == extension.upper()
    assert info.samplerate == RATE
    read, _ = soundfile.read(path, dtype="int16")
    lag = 1105 if extension == "mp3" else 0  # the encoder's delay, which some readers cut off
    assert len(samples) <= len(read) <= len(samples) + lag + 2304
    if info.subtype == "PCM_16":
        assert np.array_equal(read, samples)
    else:
        kept = np.abs(read[4000:16000]).mean() / np.abs(samples[4000:16000]).mean()
        assert abs(kept - 1) < LOSSY_LOUDNESS


@pytest.mark.parametrize("extension", ["wav", "flac", "ogg", "mp3"])
@pytest.mark.parametrize("rate", [8000, 9000, 22050, 37800, 47999, 48000])
def test_a_file_has_the_rate_or_is_refused_before_it_is_begun(tmp_path, extension, rate):
    path = tmp_path / f"a.{extension}"
    if extension == "mp3" and rate not in MP3_RATES:
        for begin in (lambda: audio.check_path(path, rate=rate), lambda: WavWriter(path, rate)):
            with pytest.raises(UsageError, match=f"sample_rate is {rate}, and mp3 has only 8000, "):
                begin()
        assert not list(tmp_path.iterdir())
    else:
        audio.check_path(path, "pcm", rate)
        write_wav(path, np.zeros(100, np.int16), rate)
        assert soundfile.info(path).samplerate == rate


@pytest.mark.parametrize(
    ("name", "rate", "known"),
    [
        *((name, 0, "whole number in 1 .. ") for name in ("a.wav", "a.flac", "a.ogg")),
        *((name, -8000, "whole number in 1 .. ") for name in ("a.wav", "a.ogg")),
        *((name, 24000.5, "must be a whole number in 1 .. ") for name in ("a.wav", "a.ogg")),
        ("a.wav", 2**31, "1 .. 2147483647"),
        ("a.flac", 700_000, "1 .. 655350"),
        ("a.ogg", 200_001, "1 .. 200000"),
        ("a.mp3", 0, "mp3 has only 8000, "),
    ],
)
def test_a_rate_that_its_format_does_not_have_is_refused(tmp_path, name, rate, known):
    with pytest.raises(UsageError, match=rf"{name}: sample_rate is {rate}(;|,) .*{known}"):
        WavWriter(tmp_path / name, rate)
    assert os.listdir(tmp_path) == []


def test_minutes_of_vorbis_in_one_write(tmp_path: Path):
    """The encoder crashes the process if it is given this much at once."""
    write_wav(tmp_path / "long.ogg", np.zeros(180 * RATE, np.int16), RATE)
    assert soundfile.info(tmp_path / "long.ogg").frames == 180 * RATE


@pytest.mark.parametrize("name", ["a.xyz", "a", "a.aiff", ".wav"])
def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path, name: str):
    with pytest.raises(UsageError, match=r"(?s)Cannot write .*\.wav, \.flac, \.ogg, \.mp3"):
        WavWriter(tmp_path / name, RATE)
    assert os.listdir(tmp_path) == []


def test_a_missing_extension_is_reported(tmp_path: Path):
    with pytest.raises(UsageError, match=r"a: no extension\.\nKnown: \.wav"):
        WavWriter(tmp_path / "a", RATE)


def test_a_missing_folder_is_refused_before_any_work(tmp_path: Path):
    path = tmp_path / "missing" / "a.wav"
    with pytest.raises(OutputError, match=f"Cannot write {path}: there is no folder {path.parent}"):
        WavWriter(path, RATE)


def test_a_folder_and_a_device_are_not_replaced(tmp_path: Path):
    (tmp_path / "a.wav").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "null.wav").symlink_to("/dev/null")
    kinds = {"a.wav": "is a folder", "a": "is a folder", "null.wav": "exists and is not a file"}
    for name, kind in kinds.items():
        with pytest.raises(OutputError, match=kind):
            WavWriter(tmp_path / name, RATE)
    assert (tmp_path / "null.wav").is_char_device()


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path):
    path = tmp_path / "a.wav"
    write_wav(path, tone(0.1), RATE)
    with WavWriter(path, RATE) as writer:
        writer.write(tone(0.5))
        assert len(read_wav(path)) == 2400
    assert len(read_wav(path)) == 12000
    assert os.listdir(tmp_path) == ["a.wav"]


def test_a_link_is_followed_not_replaced(tmp_path: Path):
    (tmp_path / "link.wav").symlink_to(tmp_path / "real.wav")
    write_wav(tmp_path / "link.wav", tone(0.1), RATE)
    assert (tmp_path / "link.wav").is_symlink()
    assert len(read_wav(tmp_path / "real.wav")) == 2400


def test_no_audio_leaves_no_file_and_keeps_an_old_one(tmp_path: Path):
    write_wav(tmp_path / "old.wav", tone(0.1), RATE)
    for name in ("new.wav", "old.wav"):
        with WavWriter(tmp_path / name, RATE) as writer:
            writer.write(np.zeros(0, np.int16))
    assert os.listdir(tmp_path) == ["old.wav"]
    assert len(read_wav(tmp_path / "old.wav")) == 2400


def test_closing_twice_is_safe(tmp_path: Path):
    writer = WavWriter(tmp_path / "a.wav", RATE)
    writer.write(tone(0.1))
    writer.close()
    writer.close()
    assert len(read_wav(tmp_path / "a.wav")) == 2400


def speak_until_interrupted(path: Path, spoken: multiprocessing.Event) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with WavWriter(path, RATE) as writer:
        writer.write(tone(0.4))
        spoken.set()
        signal.pause()


def test_ctrl_c_leaves_what_was_spoken(tmp_path: Path):
    context = multiprocessing.get_context("fork")
    spoken = context.Event()
    speaker = context.Process(target=speak_until_interrupted, args=(tmp_path / "a.wav", spoken))
    speaker.start()
    assert spoken.wait(20)
    os.kill(speaker.pid, signal.SIGINT)
    speaker.join(20)
    assert speaker.exitcode == 1  # ended by KeyboardInterrupt
    assert np.array_equal(read_wav(tmp_path / "a.wav"), tone(0.4))
    assert os.listdir(tmp_path) == ["a.wav"]


def test_an_interruption_leaves_the_file_that_was_there(tmp_path: Path):
    for path in (tmp_path / "a.wav", tmp_path / "a.part.wav"):
        with pytest.raises(KeyboardInterrupt), WavWriter(tmp_path / "a.wav", RATE) as writer:
            writer.write(tone(0.1))
            raise KeyboardInterrupt
        assert writer.path == path and len(read_wav(path)) == 2400
    with WavWriter(tmp_path / "a.wav", RATE) as writer:
        writer.write(tone(0.4))
    assert len(read_wav(tmp_path / "a.wav")) == 9600


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_file_is_finished_waits(tmp_path: Path, monkeypatch, number: int):
    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    def replace(*paths: Path) -> None:
        signal.raise_signal(number)
        os.rename(*paths)

    monkeypatch.setattr(os, "replace", replace)
    before = signal.signal(number, ended)
    try:
        with pytest.raises(KeyboardInterrupt), WavWriter(tmp_path / "a.wav", RATE) as writer:
            writer.write(tone(0.1))
        assert signal.getsignal(number) is ended
    finally:
        signal.signal(number, before)
    assert os.listdir(tmp_path) == ["a.wav"] and len(read_wav(tmp_path / "a.wav")) == 2400


@pytest.mark.parametrize("extension", ["wav", "flac", "ogg", "mp3"])
@pytest.mark.parametrize(("num_bytes", "num_samples"), [(0, 100), (0, 48000), (8000, 48000)])
def test_a_full_disk_is_reported_and_leaves_no_file(tmp_path, extension, num_bytes, num_samples):
    path = tmp_path / f"a.{extension}"
    noise = np.random.default_rng(0).integers(-9999, 9999, num_samples).astype(np.int16)
    with full_disk(num_bytes), pytest.raises(OutputError) as raised:
        write_wav(path, noise, RATE)
    assert re.match(rf"(?s)Cannot write {path}: .*MB are free", str(raised.value))
    assert ".part" not in str(raised.value)
    assert os.listdir(tmp_path) == []


def test_a_file_that_cannot_be_renamed_is_reported(tmp_path: Path, monkeypatch):
    writer = WavWriter(tmp_path / "a.wav", RATE)
    writer.write(tone(0.1))
    read_only = OSError(errno.EROFS, "Read-only file system")
    monkeypatch.setattr(os, "replace", Mock(side_effect=read_only))
    with pytest.raises(OutputError, match="Read-only file system"):
        writer.close()
    assert os.listdir(tmp_path) == []
