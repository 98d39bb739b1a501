"""The search finds the sounds in the samples of a voice whose letters have known times."""

import numpy as np
import pytest
from spelling_voice import RATE, spell
from tolerances import LOUDNESS_F32, WORD_AT_A_STOP, WORD_OF_A_BEGINNING, WORD_ON_A_HOP

from qwen_megakernel.timing.alignment import align
from qwen_megakernel.timing.loudness import HOPS_PER_SECOND, Loudness
from qwen_megakernel.timing.sounds import sounds_of

TEXT = "sonat filo, tasi nof lalo. fansi ota, naso"


def loudness(samples: np.ndarray, rate: int = RATE, step: int = 1920) -> np.ndarray:
    heard = Loudness()
    for begin in range(0, len(samples), step):
        heard.add(samples[begin : begin + step], rate)
    return heard.rows()


def word_times(text: str, hops: np.ndarray) -> np.ndarray:
    sounds = sounds_of(text)[: len(hops)]
    firsts = [index for index, sound in enumerate(sounds) if sound.pause]
    lasts = [*(index - 1 for index in firsts[1:]), len(sounds) - 1]
    return np.stack([hops[firsts, 0], hops[lasts, 1]], axis=1) / HOPS_PER_SECOND


@pytest.mark.parametrize("seed", range(5))
def test_words_are_found_where_they_were_said(seed: int):
    spelled = spell(TEXT, seed=seed)
    found = word_times(TEXT, align(loudness(spelled.samples), sounds_of(TEXT)))
    errors = np.abs(found - spelled.word_times)
    assert np.median(errors) <= WORD_ON_A_HOP
    assert errors.max() < WORD_AT_A_STOP


def test_a_long_silence_between_two_words_is_found():
    first, second = spell("sonat filo", tail_s=3.0), spell("tasi nof")
    samples = np.concatenate([first.samples, second.samples])
    found = word_times(
        "sonat filo tasi nof", align(loudness(samples), sounds_of("sonat filo tasi nof"))
    )
    expected = [
        *first.word_times,
        *((a + first.seconds, b + first.seconds) for a, b in second.word_times),
    ]
    assert np.abs(found - expected).max() < WORD_AT_A_STOP


@pytest.mark.parametrize("share", [0.3, 0.55, 0.8])
def test_of_a_beginning_the_words_that_were_heard_are_found(share: float):
    spelled = spell(TEXT, seed=3)
    samples = spelled.samples[: int(share * len(spelled.samples))]
    rows = loudness(samples)
    # The expected pace is a quarter too slow or a quarter too fast.
    for pace in (7.0, 11.0):
        found = word_times(TEXT, align(rows, sounds_of(TEXT), pace))
        said = [times for times in spelled.word_times if times[0] < len(samples) / RATE]
        assert len(found) in range(len(said) - 1, len(said) + 2)
        count = min(len(found), len(said)) - 1
        assert np.abs(found[:count] - said[:count]).max() < WORD_OF_A_BEGINNING


@pytest.mark.parametrize("num_hops", [1, 2, 5, 30])
def test_fewer_hops_than_sounds_are_shared_out_in_order(num_hops: int):
    for pace in (None, 8.0):
        found = align(np.zeros((num_hops, 2), np.float32), sounds_of(TEXT), pace)
        flat = found.ravel()
        assert (np.diff(flat) >= 0).all() and flat[0] >= 0 and flat[-1] <= num_hops


def test_silence_alone_and_noise_alone_keep_the_order():
    rng = np.random.default_rng(0)
    for samples in (np.zeros(3 * RATE), 3000 * rng.standard_normal(3 * RATE)):
        found = align(loudness(samples.astype(np.int16)), sounds_of(TEXT))
        assert len(found) == len(sounds_of(TEXT))
        assert (np.diff(found.ravel()) >= 0).all() and found.max() <= 3 * HOPS_PER_SECOND


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000])
def test_chunks_of_any_length_and_rate_have_the_same_hops(rate: int):
    samples = (8000 * np.sin(np.arange(rate) / 9)).astype(np.int16)
    whole, pieces = loudness(samples, rate, rate), loudness(samples, rate, 1237)
    np.testing.assert_allclose(whole, pieces, rtol=0, atol=LOUDNESS_F32)
    assert len(whole) == rate // (rate // HOPS_PER_SECOND)
