"""Recordings are read as the official package reads them; bad ones are refused."""

import io
import logging
import os
import re
import shlex
import struct
import sys
from unittest.mock import Mock

import librosa
import numpy as np
import pytest
import soundfile
import tiny_speech
import waveforms
from commands import ROOT
from fixtures import module_value
from tolerances import MP3_F32

from qwen_megakernel import audio
from qwen_megakernel.cloning import recordings
from qwen_megakernel.errors import RecordingError


@pytest.mark.ci
@pytest.mark.parametrize("suffix", [".wav", ".flac", ".ogg", ".mp3"])
@pytest.mark.parametrize("channels", [1, 2])
def test_files_are_read_as_librosa_reads_them(tmp_path, suffix, channels):
    path = tmp_path / f"reference{suffix}"
    soundfile.write(path, waveforms.noise(1, 16000, channels=channels), 16000)
    samples, rate = recordings.read(path)
    expected, expected_rate = librosa.load(path, sr=None, mono=True)
    assert rate == expected_rate == 16000 and samples.dtype == np.float32
    # The official package decodes MP3 in blocks of another length, so the last bits differ.
    assert np.abs(samples - expected).max() <= (MP3_F32 if suffix == ".mp3" else 0)


def test_a_streamed_flac_whose_header_has_no_length_is_read_to_its_end(tmp_path):
    path, samples = tmp_path / "streamed.flac", waveforms.noise(2.5, 24000)
    soundfile.write(path, samples, 24000)
    whole, data = recordings.read(path)[0], bytearray(path.read_bytes())
    data[21] &= 0xF0  # STREAMINFO ends with 36 bits for the number of samples; 0: unknown
    data[22:26] = bytes(4)
    path.write_bytes(data)
    assert soundfile.info(path).frames > 2**60
    assert np.array_equal(recordings.read(path)[0], whole) and len(whole) == 60_000


def test_a_second_of_a_rate_that_no_recorder_has_takes_no_memory():
    """A WAV of 1,000 channels whose header states 2 GHz: one second of it would be eight TB."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros((100, 1000), np.int16), 8000, format="WAV")
    data = file.getvalue().replace(struct.pack("<I", 8000), struct.pack("<I", 2**31 - 1), 1)
    samples, rate = recordings.read(io.BytesIO(data), "reference")
    assert len(samples) == 100 and rate == 2**31 - 1


@pytest.mark.ci
@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 24000, 44100, 48000, 96000])
def test_resampling_is_librosas(rate):
    samples = waveforms.voice_like(0.71, rate)
    expected = librosa.resample(samples, orig_sr=rate, target_sr=24000)
    ours = recordings.resample(samples, rate, 24000)
    assert ours.dtype == np.float32 and np.array_equal(ours, expected)


def test_integers_are_scaled_and_channels_averaged():
    samples = np.array([[16384, 0], [-32768, -32768]], dtype=np.int16)
    assert recordings.to_mono(samples).tolist() == [0.25, -1.0]
    for kind, middle in ((np.uint8, 128), (np.uint16, 32768), (np.int8, 0), (np.int32, 0)):
        limits = np.iinfo(kind)
        three = recordings.to_mono(np.array([limits.min, middle, limits.max], dtype=kind))
        assert three[0] == -1 and three[1] == 0 and 0.99 < three[2] <= 1
    for bad in (np.zeros((2, 2, 2)), np.array(["a"])):
        with pytest.raises(RecordingError, match="shape"):
            recordings.to_mono(bad)


def test_files_that_are_not_audio_are_refused(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not audio")
    for path, reason in ((text, "cannot be read"), (tmp_path / "absent.wav", "no such file")):
        with pytest.raises(RecordingError, match=reason) as caught:
            recordings.read(path)
        assert str(path) in caught.value.what
    with pytest.raises(RecordingError) as caught:
        recordings.read(io.BytesIO(b"not audio"), name="It")
    assert caught.value.what == "It cannot be read as audio: Format not recognised."
    with pytest.raises(RecordingError, match="cannot be read"):
        recordings.read(tmp_path)


def test_integers_without_a_full_scale_are_refused():
    with pytest.raises(RecordingError, match="int64, whose full scale is not known"):
        recordings.to_mono((20_000 * waveforms.noise(2, 24000)).astype(np.int64))


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (waveforms.noise(0.2, 24000), "0.2 s long"),
        (waveforms.noise(0.99, 24000), "1 to 60 s"),
        (waveforms.noise(60.1, 24000), "1 to 60 s"),
        (np.zeros(48000, np.float32), "silent"),
        (1e-4 * waveforms.noise(2, 24000), "silent"),
        (np.full(48000, np.nan, np.float32), "NaN"),
        (np.r_[waveforms.noise(2, 24000), np.float32(np.inf)], "sample 48000"),
        (np.empty(0, np.float32), "0.0 s long"),
        (1e37 * waveforms.voice_like(2, 24000), r"has samples of \d\.\d+e\+36; float samples have"),
    ],
)
def test_recordings_without_a_voice_are_refused(samples, message):
    with pytest.raises(RecordingError, match=message):
        recordings.check(samples, 24000, "a.wav")


@pytest.mark.parametrize("rate", [1, 7, 999])
def test_a_rate_at_which_no_voice_is_left_is_refused(rate):
    samples = waveforms.noise(2, 24000)[: 2 * rate]
    message = rf"a.wav has {rate} samples per second; it must have at least 1000\."
    with pytest.raises(RecordingError, match=message):
        recordings.check_samples(samples, rate, "a.wav")
    recordings.check_samples(waveforms.noise(2, 24000)[:2000], 1000, "a.wav")


def test_a_clipped_recording_is_accepted_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        recordings.check(waveforms.voice_like(2, 24000), 24000, "good.wav")
    assert not caplog.records
    recordings.check(np.clip(20 * waveforms.noise(2, 24000), -1, 1), 24000, "loud.wav")
    assert "loud.wav is clipped" in caplog.text


@pytest.mark.parametrize(
    ("transcript", "seconds"),
    [
        ("Three words only.", 12.4),
        ("It goes on and on. " * 30, 3),
        ("", 3),
        ("...", 3),
        ("你好", 12),
    ],
)
def test_transcripts_of_something_else_are_refused(transcript, seconds):
    with pytest.raises(RecordingError, match=r"Transcript has|empty"):
        recordings.check_transcript(transcript, seconds)


def test_the_message_is_that_of_the_catalogue():
    with pytest.raises(RecordingError) as caught:
        recordings.check_transcript("Just three words.", 12.4)
    assert caught.value.what.startswith("Transcript has 3 words for 12.4 s of speech")
    hint = "Give the full transcript, or none (--xvector; over HTTP x_vector_only_mode)."
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("transcript", "seconds", "doubted"),
    [
        ("Your table for two is ready, and we will meet you there.", 4, False),
        ("Hello there.", 1.2, False),
        ("今天天气很好,我们去公园散步吧。", 3.5, False),
        ("おはようございます、お元気ですか。", 3, False),
        ("We meet again.", 5, True),
        ("Your table for two is ready, and we will meet you there.", 1.5, True),
    ],
)
def test_unlikely_transcripts_are_doubted(transcript, seconds, doubted, caplog):
    with caplog.at_level(logging.WARNING):
        recordings.check_transcript(transcript, seconds)
    assert bool(caplog.records) == doubted


RATE = 24000
WORDS = (
    *("Your", "table", "for", "two", "is", "ready,", "and", "we", "will", "meet", "you", "at"),
    *("the", "hotel", "on", "Friday,", "which", "is", "cold."),
)
TIME = np.arange(3 * RATE) / RATE
SAMPLES = [
    (f"docs/samples/{name}", text)
    for name, text in re.findall(
        r"\| \[(\S+)\]\S+ \| (.+) \|", (ROOT / "docs/samples/README.md").read_text()
    )
]


TONE = 0.3 * np.sin(2 * np.pi * 220 * TIME)
FADES = np.clip(np.minimum(TIME, 3 - TIME), 0, 1)
SILENCE = np.zeros(RATE)


@pytest.mark.parametrize(
    ("samples", "doubted"),
    [
        (TONE, True),
        (waveforms.noise(3, RATE), True),
        (FADES * TONE, True),
        (FADES * waveforms.noise(3, RATE), True),
        (np.r_[SILENCE, TONE, SILENCE], True),
        (TONE * (np.sin(2 * np.pi * 1.5 * TIME) > 0), True),
        (waveforms.voice_like(3, RATE), False),
    ],
    ids=["tone", "noise", "fading tone", "fading noise", "tone in silence", "beeps", "syllables"],
)
def test_what_sounds_the_same_all_the_time_is_doubted(samples, doubted, caplog):
    recordings.check(samples.astype(np.float32), RATE, "a.wav")
    told = "a.wav sounds the same from beginning to end, like a tone or noise. Is it speech?"
    assert caplog.messages == doubted * [told]


def test_recordings_whose_last_band_begins_above_the_highest_bin_are_checked(caplog):
    """A moment of 0.03 s that has an odd number of samples has no bin at half of the rate."""
    rates = []
    for rate in range(1000, 48_001):
        num_samples = max(1, round(0.03 * rate))
        last_band = 500 * ((min(8000, rate / 2) - 1e-6) // 500)
        if last_band > (num_samples // 2) * rate / num_samples:
            rates.append(rate)
    assert len(rates) == 255 and 11_025 in rates
    for rate in rates:
        recordings.check(waveforms.voice_like(1, rate), rate, f"{rate} Hz")
    assert not [message for message in caplog.messages if message.startswith("11025 Hz")]


@pytest.mark.parametrize("noise", [0, 0.1])  # no noise, and noise at -40 dBFS
def test_speech_with_its_own_transcript_is_not_doubted(demo_speech, noise, caplog):
    samples = demo_speech + noise * waveforms.noise(len(demo_speech) / RATE, RATE)
    recordings.check(samples, RATE, "a.wav")
    for path, text in SAMPLES:
        samples, rate = recordings.read(ROOT / path)
        recordings.check(samples, rate, path)
        recordings.check_transcript(text, recordings.seconds_of_sound(samples, rate))
    assert len(SAMPLES) == 10 and not caplog.messages


@pytest.mark.parametrize(("num_words", "doubted"), [(6, True), (len(WORDS), False)])
def test_a_third_of_a_transcript_is_doubted(demo_speech, num_words, doubted, caplog):
    seconds = recordings.seconds_of_sound(demo_speech, RATE)
    recordings.check_transcript(" ".join(WORDS[:num_words]), seconds)
    assert bool(caplog.messages) == doubted


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, names are valid UTF-8")
@pytest.mark.parametrize("suffix", ["wav", "ogg"])
def test_names_may_have_bytes_that_are_no_characters(tmp_path, suffix):
    folder = tmp_path / os.fsdecode(b"Gr\xfc")
    folder.mkdir()
    path = folder / os.fsdecode(b"\xfc." + suffix.encode())
    audio.write_wav(path, np.ones(2400, np.int16), 24000)
    samples, rate = recordings.read(path)
    assert (len(samples), rate) == (2400, 24000)


def test_a_file_that_ffmpeg_reads_comes_with_its_command(tmp_path):
    (tmp_path / "my memo.m4a").write_bytes(b"\0\0\0\x20ftypM4A ")
    with pytest.raises(RecordingError) as caught:
        recordings.read(tmp_path / "my memo.m4a")
    words = shlex.split(caught.value.hint.removeprefix("Convert it: "))
    assert words == ["ffmpeg", "-i", f"{tmp_path}/my memo.m4a", f"{tmp_path}/my memo.wav"]
    named = tmp_path / "a.wav"  # a film's name does not make it a recording
    (tmp_path / "my memo.m4a").rename(named)
    with pytest.raises(RecordingError) as caught:
        recordings.read(named)
    assert caught.value.hint == f"Convert it: ffmpeg -i {named} {tmp_path}/a.flac"
    named.write_bytes(b"")
    with pytest.raises(RecordingError, match=r"a\.wav cannot be read as audio: it is empty"):
        recordings.read(named)


demo_speech = module_value(lambda: tiny_speech.demo_speech(" ".join(WORDS)))


def test_a_file_that_may_not_be_read_is_named_with_the_reason(tmp_path, monkeypatch):
    path = tmp_path / "a.wav"
    path.write_bytes(b"RIFF")  # libsndfile opens neither this nor another user's file
    monkeypatch.setattr("builtins.open", Mock(side_effect=PermissionError(13, "Not yours")))
    with pytest.raises(RecordingError, match=r"a\.wav cannot be read as audio: Not yours\."):
        recordings.read(path)
