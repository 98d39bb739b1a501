"""The watermark: the same whatever the chunks, found after a telephone, and its key's file."""

import os
from pathlib import Path

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st
from limits import full_disk
from tolerances import MARK_EDGE_S, MARK_SHARE
from waveforms import voice_like

from qwen_megakernel.audio import to_g711, to_int16
from qwen_megakernel.errors import OutputError, UsageError
from qwen_megakernel.marking import MarkKey
from qwen_megakernel.sound.mark_detector import Mark, find_marks
from qwen_megakernel.sound.watermark import BAND_EDGES, SHORT_S, Watermark, rotations_of

RATE = 24000
KEY = MarkKey(bytes(range(32)), operator=48879)
OTHER = bytes(range(1, 33))


def speech(seconds: int, rate: int = RATE) -> np.ndarray:
    return voice_like(seconds, rate)


def marked(samples: np.ndarray, rate: int = RATE, key: MarkKey = KEY) -> np.ndarray:
    return Watermark(key, rate).push(samples)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 4000), max_size=8))
def test_chunks_make_no_difference_and_nothing_is_held_back(sizes: list[int]):
    samples = speech(1)
    mark = Watermark(KEY, RATE)
    pieces = [mark.push(piece) for piece in np.split(samples, np.cumsum(sizes))]
    assert [len(piece) for piece in pieces[:-1]] == [
        len(piece) for piece in np.split(samples, np.cumsum(sizes))[:-1]
    ]
    assert np.array_equal(np.concatenate(pieces), marked(samples))


def test_a_sample_does_not_depend_on_later_ones():
    samples = speech(1)
    changed = samples.copy()
    changed[10_000:] *= -1
    assert np.array_equal(marked(samples)[:10_000], marked(changed)[:10_000])


def test_the_mark_is_much_weaker_than_the_speech_and_silence_stays_silent():
    samples = speech(5)
    mark = marked(samples) - samples
    assert 0 < np.square(mark).sum() < MARK_SHARE * np.square(samples).sum()
    assert not marked(np.zeros(RATE, np.float32)).any()


def test_the_mark_ends_with_the_speech():
    samples = speech(1)
    end = 3 * RATE // 4
    samples[end:] = 0
    assert marked(samples)[:end].any()
    assert not marked(samples)[end + round(SHORT_S * RATE) :].any()


def test_speech_that_has_all_its_power_in_the_bands_gets_no_stronger_mark():
    samples = np.random.default_rng(1).normal(scale=0.1, size=5 * RATE)
    hertz = np.fft.rfftfreq(len(samples), 1 / RATE)
    spectrum = np.fft.rfft(samples) * ((hertz > BAND_EDGES[0]) & (hertz < BAND_EDGES[-1]))
    samples = np.fft.irfft(spectrum).astype(np.float32)
    mark = marked(samples) - samples
    assert np.square(mark).sum() < MARK_SHARE * np.square(samples).sum()


@pytest.mark.parametrize("rate", [8000, 11025, 16000, 22050, 44100, 48000])
def test_five_seconds_at_any_sample_rate_name_the_operator(rate: int):
    (found,) = find_marks(marked(speech(5, rate), rate), rate, KEY.secret)
    assert (found.operator, found.start_s, found.speed) == (KEY.operator, 0, 1)


def test_a_telephone_and_a_cut_keep_the_mark():
    heard = soxr.resample(marked(speech(7)), RATE, 8000)[7321 : 7321 + 5 * 8000]
    codes = np.frombuffer(to_g711(to_int16(heard), "ulaw"), np.uint8)
    inverted = (~codes).astype(np.int32)
    sizes = (((inverted & 15) << 3) + 132 << ((inverted >> 4) & 7)) - 132
    telephone = np.where(inverted & 128, -sizes, sizes) / 32768
    (found,) = find_marks(telephone, 8000, KEY.secret)
    assert found.operator == KEY.operator


def test_unmarked_speech_and_that_of_another_key_have_no_mark():
    assert find_marks(speech(5), RATE, KEY.secret, search_speeds=False) == []
    assert find_marks(marked(speech(5)), RATE, OTHER, search_speeds=False) == []


def test_silence_and_nothing_have_no_mark():
    for num_samples in (0, 1, 3 * RATE):
        silence = np.zeros(num_samples, np.float32)
        assert find_marks(silence, RATE, KEY.secret, search_speeds=False) == []


def test_the_marked_part_of_a_recording_is_found():
    samples = np.concatenate([speech(10), marked(speech(10)), speech(10)])
    (found,) = find_marks(samples, RATE, KEY.secret)
    assert isinstance(found, Mark) and found.operator == KEY.operator
    assert abs(found.start_s - 10) <= MARK_EDGE_S and abs(found.end_s - 20) <= MARK_EDGE_S


@pytest.mark.parametrize("delay_s", [0, 0.3])
def test_of_two_operators_at_once_none_is_named(delay_s: float):
    """A second one may be found at another place than the first, and fit as well there."""
    samples = speech(5)
    second = marked(samples, key=MarkKey(KEY.secret, 12345)) - samples
    both = marked(samples) + np.roll(second, round(delay_s * RATE))
    (found,) = find_marks(both, RATE, KEY.secret)
    assert found.operator is None


def test_words_of_the_code_differ_in_three_noises():
    words = rotations_of(np.arange(2**16))
    for word in np.random.default_rng(1).choice(2**16, 50):
        differs = (words != words[:, word, None]).sum(axis=0)
        assert differs.min() == 0 and np.partition(differs, 1)[1] == 3


def test_a_new_key_can_be_read_by_its_user_alone_and_is_never_replaced(tmp_path: Path):
    path = tmp_path / "mark.key"
    key = MarkKey.create(path, 7)
    assert path.stat().st_mode & 0o777 == 0o600
    assert MarkKey.read(path) == key and key.operator == 7
    with pytest.raises(OutputError, match="File exists"):
        MarkKey.create(path)
    assert MarkKey.read(path) == key
    assert key.secret.hex() not in repr(key)


def test_a_full_disk_leaves_no_half_of_a_key(tmp_path: Path):
    with full_disk(20), pytest.raises(OutputError, match="Cannot write a key"):
        MarkKey.create(tmp_path / "mark.key", 7)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (f"{'00' * 32} 1", 0o644, "has mode 644; other users may read it"),
        (f"{'00' * 31} 1", 0o600, "is not the file of a key"),
        ("", 0o600, "is not the file of a key"),
        (f"{'00' * 32}", 0o600, "is not the file of a key"),
        (f"{'00' * 32} 65536", 0o600, "The operator is 65536; it must be in 0 .. 65535"),
        ("é", 0o600, "is not the file of a key"),
    ],
)
def test_a_bad_key_is_refused(tmp_path: Path, text: str, mode: int, words: str):
    path = tmp_path / "mark.key"
    path.write_text(text, encoding="utf-8")
    os.chmod(path, mode)
    with pytest.raises(UsageError, match=words):
        MarkKey.read(path)


def test_a_missing_key_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="No such file"):
        MarkKey.read(tmp_path / "none.key")
