"""The runaway guard: which speech it stops, and which it does not."""

import numpy as np
import pytest

from qwen_megakernel.engine import runaway_guard
from qwen_megakernel.engine.runaway_guard import RunawayGuard

SILENCE = np.zeros(1920, dtype=np.float32)
SPEECH = 0.1 * np.sin(np.arange(1920, dtype=np.float32) * 0.05)


def first_cut(runaway: RunawayGuard, codes) -> tuple[int, str] | None:
    for index, code in enumerate(codes):
        reason = runaway.check_codes(np.array([code, 1, 2, 3], np.int32))
        if reason:
            return index, reason
    return None


def test_the_budget_grows_with_the_text():
    rng = np.random.default_rng(0)
    for num_tokens in (1, 10, 40):
        runaway = RunawayGuard(10_000)
        runaway.num_text_tokens = num_tokens
        cut = first_cut(runaway, rng.integers(0, 2000, 2000))
        expected = runaway_guard.SPARE_FRAMES + runaway_guard.FRAMES_PER_TEXT_TOKEN * num_tokens
        assert cut == (expected, "length")


def test_the_hard_limit_wins_over_the_budget():
    runaway = RunawayGuard(7)
    runaway.num_text_tokens = 100
    assert runaway.frames_left == 7
    assert first_cut(runaway, range(100)) == (7, "length")


@pytest.mark.parametrize("period", [1, 2, 7, 12])
def test_a_loop_is_cut_after_six_seconds(period):
    runaway = RunawayGuard(10_000)
    runaway.num_text_tokens = 500
    codes = [*range(100, 140), *([5, 9, 2, 8, 1, 7, 3, 6, 4, 11, 13, 12][:period] * 100)]
    index, reason = first_cut(runaway, codes)
    assert reason == "repeat"
    latest = 40 + runaway_guard.REPEAT_FRAMES
    assert latest - runaway_guard.MAX_PERIOD <= index <= latest


def test_a_held_sound_and_varied_speech_are_left_alone():
    rng = np.random.default_rng(1)
    runaway = RunawayGuard(10_000)
    runaway.num_text_tokens = 500
    speech = [code for _ in range(10) for code in [*rng.integers(0, 2000, 30), *[7] * 25]]
    assert first_cut(runaway, speech) is None


def test_five_seconds_of_silence_are_cut_and_a_pause_is_not():
    runaway = RunawayGuard(10_000)
    pause = [SILENCE] * (runaway_guard.SILENT_FRAMES - 1) + [SPEECH]
    assert all(runaway.check_audio(pcm) is None for pcm in pause * 3)
    reasons = [runaway.check_audio(SILENCE) for _ in range(runaway_guard.SILENT_FRAMES)]
    assert reasons[-1] == "silence" and not any(reasons[:-1])
