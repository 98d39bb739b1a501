"""The telephone's 8 bits (ITU-T G.711): the standard's values, files and encoders of streams."""

import io
import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile

from qwen_megakernel.audio import WavWriter, to_g711, write_wav
from qwen_megakernel.errors import UsageError
from qwen_megakernel.server.encoders import AudioFormat

RATE = 8000


def values_of(encoding: str) -> np.ndarray:
    """Return the 16-bit value of each of the 256 codes, by the segments of the standard's tables.

    mu-law (table 2): all bits inverted; a segment e and a step m are (2 m + 33) 2^e - 33, of 14
    bits. A-law (table 1): even bits inverted; (2 m + 1) in segment 0, else (2 m + 33) 2^(e - 1), of
    13 bits. The first bit of a code is 1 for positive values.
    """
    codes = np.arange(256) ^ (0xFF if encoding == "ulaw" else 0x55)
    segment, step = codes >> 4 & 7, codes & 15
    if encoding == "ulaw":
        sizes, sign = 4 * ((2 * step + 33) * 2**segment - 33), np.where(codes & 128, -1, 1)
    else:
        linear = (2 * step + 33) * 2.0 ** (segment - 1)
        sizes = 8 * np.where(segment, linear, 2 * step + 1)
        sign = np.where(codes & 128, 1, -1)
    return (sign * sizes).astype(int)


@pytest.mark.parametrize(("encoding", "largest"), [("ulaw", 32124), ("alaw", 32256)])
def test_every_value_of_the_standards_tables_has_its_code(encoding: str, largest: int):
    values = values_of(encoding)
    assert values.max() == -values.min() == largest
    codes = np.frombuffer(to_g711(values.astype(np.int16), encoding), np.uint8)
    assert np.array_equal(values[codes], values)


def test_other_encodings_and_samples_are_refused():
    with pytest.raises(UsageError, match=r"encoding is 'mulaw'; known: ulaw, alaw\.\nDid you mean"):
        to_g711(np.zeros(8, np.int16), "mulaw")
    for samples in ([1, 2], np.zeros(8, np.float32), np.zeros((8, 2), np.int16)):
        with pytest.raises(UsageError, match=r"they must be int16 of one channel"):
            to_g711(samples, "ulaw")


@pytest.mark.parametrize("encoding", ["ulaw", "alaw"])
def test_every_sample_has_a_code_next_to_it(encoding: str):
    samples = np.arange(-32768, 32768).astype(np.int16)
    values = values_of(encoding)
    found = values[np.frombuffer(to_g711(samples, encoding), np.uint8)]
    assert len(found) == 65536
    levels = np.unique(values)
    above = np.searchsorted(levels, samples.astype(int)).clip(1, len(levels) - 1)
    assert ((found == levels[above]) | (found == levels[above - 1])).all()
    assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize(("encoding", "tag"), [("ulaw", 7), ("alaw", 6)])
def test_a_wav_has_them_whole_streamed_and_in_a_file(encoding: str, tag: int, tmp_path: Path):
    samples = (8000 * np.sin(np.arange(1001) / 20)).astype(np.int16)
    codes = to_g711(samples, encoding)
    audio = AudioFormat("wav", RATE, encoding)
    whole, encoder = audio.file(samples), audio.encoder()
    streamed = encoder.encode(samples[:500]) + encoder.encode(samples[500:]) + encoder.finish()
    with WavWriter(tmp_path / "a.wav", RATE, encoding) as writer:
        writer.write(samples[:1000])
        writer.write(samples[1000:])
    write_wav(tmp_path / "b.wav", samples, RATE, encoding)
    written = [(tmp_path / name).read_bytes() for name in ("a.wav", "b.wav")]
    for data in (whole, streamed, *written):
        assert data[:4] == b"RIFF" and data[20] == tag
        assert codes in data
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            assert (file.subtype, file.samplerate) == (encoding.upper(), RATE)
            assert np.array_equal(file.read(1001, dtype="int16"), values_of(encoding)[list(codes)])
        with pytest.raises(wave.Error, match="unknown format"), wave.open(io.BytesIO(data)):
            pass
    for data in (whole, *written):
        assert int.from_bytes(data[4:8], "little") == len(data) - 8
    assert streamed[4:8] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("encoding", ["ulaw", "alaw"])
def test_a_stream_of_them_is_the_codes_alone(encoding: str):
    samples = (8000 * np.sin(np.arange(500) / 20)).astype(np.int16)
    audio = AudioFormat(encoding, RATE)
    encoder = audio.encoder()
    pieces = [encoder.encode(piece) for piece in np.split(samples, [0, 1, 300])]
    assert b"".join(pieces) + encoder.finish() == to_g711(samples, encoding)
    assert audio.file(samples) == to_g711(samples, encoding)
    assert audio.file(samples[:0]) == b""


@pytest.mark.parametrize(
    ("name", "encoding", "message"),
    [
        ("a.flac", "ulaw", "encoding is ulaw, which only wav has"),
        ("a.wav", "gsm", "encoding is 'gsm'; known: pcm, ulaw, alaw"),
    ],
)
def test_what_no_file_has_is_refused(tmp_path: Path, name: str, encoding: str, message: str):
    with pytest.raises(UsageError, match=message):
        WavWriter(tmp_path / name, RATE, encoding)
    assert not list(tmp_path.iterdir())
