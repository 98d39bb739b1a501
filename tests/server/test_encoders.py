"""Encoders of streams: sent bytes stay valid, and samples held back come at the end."""

import io
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile
import tiny_speech
from fixtures import module_value

from qwen_megakernel import marking
from qwen_megakernel.audio import write_wav
from qwen_megakernel.errors import MissingPackageError
from qwen_megakernel.marking import COMMENT, Marking
from qwen_megakernel.server.encoders import AudioFormat, wav_header
from qwen_megakernel.server.settings import MEDIA_TYPES

RATE = 24000
TEXT = "Your table for two is ready. We will meet you at the hotel on Friday."


def hum(num_samples):
    return (8000 * np.sin(np.arange(num_samples) / 20)).astype(np.int16)


# Four seconds of real speech.
demo_speech = module_value(lambda: (32767 * tiny_speech.demo_speech(TEXT)).astype(np.int16))


@pytest.mark.parametrize(("response_format", "mark"), [("flac", b"fLaC"), ("mp3", b"Info")])
def test_a_head_is_sent_once_though_its_encoder_writes_it_again(response_format, mark):
    audio = AudioFormat(response_format, RATE)
    encoder = audio.encoder()
    pieces = [encoder.encode(hum(1920)) for _ in range(20)]
    last = encoder.finish()
    data = b"".join(pieces) + last
    whole = audio.file(np.concatenate([hum(1920)] * 20))
    assert data.count(mark) <= whole.count(mark) == 1  # MP3 sends an empty place for it
    assert len(data) == len(whole)  # the same file, except for the header


def test_a_whole_wav_has_its_length_and_a_streamed_one_none():
    samples, audio = hum(5000), AudioFormat("wav", RATE)
    with wave.open(io.BytesIO(audio.file(samples))) as file:
        assert (file.getnframes(), file.getframerate(), file.getsampwidth()) == (5000, RATE, 2)
        assert file.readframes(5000) == samples.tobytes()
    encoder = audio.encoder()
    assert encoder.encode(samples) == wav_header(RATE) + samples.tobytes()
    assert encoder.finish() == b""
    assert wav_header(RATE)[40:] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("response_format", ["wav", "flac", "mp3", "opus"])
@pytest.mark.parametrize("comment", ["odd", "even", COMMENT])
def test_a_comment_is_in_the_file_beside_the_same_samples(response_format, comment, monkeypatch):
    monkeypatch.setattr(marking, "COMMENT", comment)
    encodings = ("pcm", "ulaw") if response_format == "wav" else ("pcm",)
    for encoding in encodings:
        audio = AudioFormat(response_format, 8000, encoding)
        encoder = audio.encoder(comment)
        streamed = encoder.encode(hum(8000)) + encoder.finish()
        whole, plain = audio.file(hum(8000), Marking()), audio.file(hum(8000))
        for data, expected in ((streamed, comment), (whole, comment), (plain, "")):
            with soundfile.SoundFile(io.BytesIO(data)) as file:
                assert file.comment == expected
        heard = [soundfile.read(io.BytesIO(data))[0] for data in (whole, plain)]
        assert np.array_equal(*heard)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3"])
def test_a_saved_file_has_its_comment_or_none(tmp_path: Path, name: str):
    write_wav(tmp_path / name, hum(8000), RATE, mark=Marking())
    with soundfile.SoundFile(tmp_path / name) as file:
        assert file.comment == COMMENT
    write_wav(tmp_path / name, hum(8000), RATE)
    with soundfile.SoundFile(tmp_path / name) as file:
        assert file.comment == ""


@pytest.mark.parametrize(
    ("response_format", "options", "least", "most"),
    [
        ("opus", {}, 24, 36),
        ("opus", {"kbits": 16}, 12, 20),
        ("mp3", {}, 60, 68),
        ("aac", {}, 48, 80),
    ],
)
def test_lossy_formats_take_the_bits_of_speech(demo_speech, response_format, options, least, most):
    if response_format == "aac":
        pytest.importorskip("av")
    audio = AudioFormat(response_format, RATE, **options)
    encoder = audio.encoder()
    streamed = encoder.encode(demo_speech) + encoder.finish()
    for data in (streamed, audio.file(demo_speech)):
        assert least < len(data) * 8 / (len(demo_speech) / RATE) / 1000 < most


@pytest.mark.parametrize(
    ("response_format", "asked", "nearest"),
    [("opus", 1, 6), ("opus", 650, 256), ("mp3", 1, 8), ("mp3", 650, 160)],
)
def test_a_bit_rate_that_a_format_lacks_is_its_nearest(response_format, asked, nearest):
    asked, nearest = (AudioFormat(response_format, RATE, kbits=each) for each in (asked, nearest))
    assert asked.sndfile_options() == nearest.sndfile_options()
    assert asked.file(hum(1920))


def test_aac_without_pyav_names_no_folder_of_the_server(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingPackageError, match="PyAV") as refused:
        AudioFormat("aac", RATE).encoder()
    assert refused.value.http_status == 501
    assert refused.value.hint == "The server's extra [aac] has it."


@pytest.mark.parametrize("response_format", MEDIA_TYPES)
def test_speech_without_a_sample_is_a_file_that_can_be_read(response_format):
    if response_format == "aac":
        pytest.importorskip("av")
    audio = AudioFormat(response_format, RATE)
    encoder = audio.encoder()
    for data in (audio.file(hum(0)), encoder.encode(hum(0)) + encoder.finish()):
        if response_format in ("pcm", "ulaw", "alaw", "aac"):  # a row of frames without a head
            assert data == b""
        else:
            with soundfile.SoundFile(io.BytesIO(data)) as file:
                assert file.channels == 1
