"""Recordings that no recorder makes: each is cloned or refused, and none ends in a server error."""

import base64
import io
import struct
import time

import numpy as np
import pytest
import soundfile
from live_server import serving
from tiny_speech import tiny_engine
from waveforms import voice_like

RATE = 24000
SECONDS = 3
SPEECH = voice_like(SECONDS, RATE)
NOISE = np.random.default_rng(0).standard_normal
ANSWER_SECONDS = 60  # a recording costs at most 2 s, on a machine that does nothing else


def wav(
    data=None,
    *,
    rate=RATE,
    channels=1,
    bits=16,
    count=RATE,
    size=None,
    kind=1,
    riff=None,
    block=None,
) -> bytes:
    """Return a WAV file whose header may lie; without `data`, of noise."""
    if data is None:
        data = (3000 * NOISE(count * channels)).astype("<i2").tobytes()
    block = channels * bits // 8 if block is None else block
    numbers = (kind, channels, rate, (rate * block) % 2**32, block % 2**16, bits)
    body = b"WAVEfmt " + struct.pack("<IHHIIHH", 16, *numbers)
    body += b"data" + struct.pack("<I", len(data) if size is None else size) + data
    return b"RIFF" + struct.pack("<I", len(body) if riff is None else riff) + body


def floats(samples, bits=32) -> bytes:
    return wav(np.asarray(samples).astype(f"<f{bits // 8}").tobytes(), kind=3, bits=bits)


def encoded(container, subtype=None, samples=SPEECH, rate=RATE) -> bytes:
    file, channels = io.BytesIO(), 1 if samples.ndim == 1 else samples.shape[1]
    with soundfile.SoundFile(file, "w", rate, channels, subtype, format=container) as sound:
        for start in range(0, len(samples), rate):  # libsndfile's stack is too small for minutes
            sound.write(samples[start : start + rate])
    return file.getvalue()


def silence(seconds, rate=RATE, channels=1):
    return np.zeros((round(seconds * rate), channels), np.int16)


def without_length(flac: bytes) -> bytes:
    """Return a FLAC file whose header does not say how many samples there are."""
    return flac[:21] + bytes([flac[21] & 0xF0]) + bytes(4) + flac[26:]


# Files that are cloned.
SOUND = {
    "WAV": lambda: encoded("WAV"),
    "WAV of 11025 Hz": lambda: encoded("WAV", samples=voice_like(SECONDS, 11025), rate=11025),
    "8 channels": lambda: wav(channels=8, count=48000),
    "384 kHz": lambda: wav(rate=384000, count=384001),
    "ADPCM": lambda: encoded("WAV", "MS_ADPCM"),
    "GSM": lambda: encoded("WAV", "GSM610", voice_like(SECONDS, 8000), 8000),
}
# Files that are refused.
FAULTY = {
    "9 channels": lambda: wav(channels=9),
    "AU": lambda: encoded("AU"),
    "AIFF": lambda: encoded("AIFF"),
    "W64": lambda: encoded("W64"),
    "RF64": lambda: encoded("RF64"),
    "CAF": lambda: encoded("CAF"),
    "1 sample": lambda: wav(count=1),
    "no sample": lambda: wav(count=0),
    "1000 channels": lambda: wav(channels=1000, count=100),
    "no channel": lambda: wav(channels=0, block=2),
    "65535 channels": lambda: wav(channels=65535, count=2),
    "0 Hz": lambda: wav(rate=0),
    "-1 Hz": lambda: wav(rate=2**32 - 1),
    "NaN": lambda: floats(np.full(48000, np.nan)),
    "infinity": lambda: floats(np.full(48000, np.inf)),
    "peaks of 1e37": lambda: floats(1e37 * SPEECH),
    "float64 of 1e300": lambda: floats(1e300 * NOISE(48000), bits=64),
    "denormal": lambda: floats(1e-39 * SPEECH),
    "an hour of FLAC": lambda: encoded("FLAC", samples=silence(3600)),
    "5 minutes of Vorbis": lambda: encoded("OGG", "VORBIS", silence(300)),
    "5 minutes of MP3": lambda: encoded("MP3", samples=silence(300)),
    "FLAC of 655350 Hz": lambda: encoded("FLAC", samples=silence(14, 655350), rate=655350),
    "FLAC without a length": lambda: without_length(encoded("FLAC", samples=silence(600))),
    "garbage": lambda: np.random.default_rng(3).bytes(2**20),
    "garbage behind RIFF": lambda: (
        b"RIFF\xff\xff\xff\xffWAVE" + np.random.default_rng(4).bytes(2**20)
    ),
    "huge ID3": lambda: b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f" + bytes(2**20),
}
# Files whose headers lie, or whose rates are far from audio's. libsndfile decides what it reads.
ODD = {
    "data of 4 GB": lambda: wav(size=2**32 - 1, riff=2**32 - 1),
    "data of 2 GB": lambda: wav(size=2**31 - 1, riff=2**31 - 1),
    "1 MHz": lambda: wav(rate=1_000_000, count=2_000_000),
    "383999 Hz": lambda: wav(rate=383999, count=400_000),
    **{
        f"{rate} Hz": lambda rate=rate, count=count: wav(rate=rate, count=count)
        for rate, count in ((1, 50), (2, 100), (7, 300), (10, 50), (33, 33 * 50))
    },
}


@pytest.fixture(scope="module")
def live(cache_folder):
    with tiny_engine("tiny-random-base") as engine, serving(engine) as server:
        yield server


@pytest.mark.parametrize(
    ("make", "statuses"),
    [
        pytest.param(make, statuses, id=name)
        for files, statuses in ((SOUND, {200}), (FAULTY, {400}), (ODD, {200, 400}))
        for name, make in files.items()
    ],
)
def test_odd_audio_is_cloned_or_refused_in_bounded_time(live, make, statuses):
    body = {"ref_audio": base64.b64encode(make()).decode(), "max_new_tokens": 3}
    in_context = {"ref_text": "It is cold today, and we are late."}
    # What is refused is refused when it is decoded, before the two ways differ.
    for way in [in_context] if statuses == {400} else [in_context, {"x_vector_only_mode": True}]:
        started = time.monotonic()
        answer = live.client.post("/v1/audio/speech", json={"input": "Hi."} | body | way)
        assert answer.status_code in statuses, answer.text[:300]
        assert time.monotonic() - started < ANSWER_SECONDS
