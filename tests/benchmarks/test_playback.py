"""Gaps in playback and silence at the beginning, as a listener notices them."""

import numpy as np
from tolerances import nearly
from waveforms import tone

from benchmarks.playback import leading_silence_ms, playback_gaps
from qwen_megakernel.audio import to_int16

RATE = 24000


def test_gaps_of_a_player_that_waits_for_its_buffer():
    times, durations = [100, 150, 400, 420], [80, 160, 80, 80]
    # Without a buffer, the player plays 100..180 and 180..340, waits until 400, plays 400..560.
    assert playback_gaps(times, durations, 0) == [60]
    assert playback_gaps(times, durations, 59) == [1]
    assert playback_gaps(times, durations, 60) == []


def test_each_gap_moves_what_follows():
    assert playback_gaps([0, 100, 230], [80, 80, 80], 0) == [20, 50]
    assert playback_gaps([], [], 0) == []


def test_leading_silence_ends_with_the_first_audible_windows():
    silence, sound = np.zeros(RATE // 2, np.int16), to_int16(tone(0.5, RATE, level=0.5))
    assert leading_silence_ms(sound, RATE) == 0
    assert leading_silence_ms(sound / np.float32(32768), RATE) == 0
    # The window that starts at 490 ms ends with 10 ms of sound.
    assert leading_silence_ms(np.concatenate([silence, sound]), RATE) == 490


def test_audible_begins_at_45_db_below_full_scale():
    quiet, loud = (tone(0.5, RATE, level=2**0.5 * 10 ** (db / 20)) for db in (-46, -44))
    assert leading_silence_ms(quiet, RATE) == 500
    assert leading_silence_ms(loud, RATE) == 0


def test_one_loud_window_is_not_speech():
    click = np.zeros(RATE // 2, np.int16)
    click[:200] = 9999  # later windows overlap: only the first 10 ms lie in a single one
    assert leading_silence_ms(click, RATE) == 500


def test_silence_is_silent_all_along():
    assert leading_silence_ms(np.zeros(12000, np.int16), RATE) == 500
    assert leading_silence_ms(np.zeros(7, np.int16), RATE) == nearly(7 / 24)
