"""Word times against a speaker who keeps an even pace, and a listener with a clock."""

import pytest
from tolerances import PACE, nearly

from qwen_megakernel.pipecat.word_timestamps import (
    DEFAULT_PACE,
    LOOKAHEAD_S,
    PlayoutClock,
    WordTimer,
)
from qwen_megakernel.timing.words import count_letters, split_words, whole_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello there, my friend.", ["Hello", "there,", "my", "friend."]),
        ("  50+  times — 😀 ", ["50+", "times", "—", "😀"]),
        ("안녕 하세요.", ["안녕", "하세요."]),
        ("你好，世界。", ["你", "好，", "世", "界。"]),
        ("我用 Python 3 编程！", ["我", "用", "Python 3", "编", "程！"]),
        ("カメラ、ok。", ["カ", "メ", "ラ、", "ok。"]),
        ("", []),
    ],
)
def test_words_are_cut_as_their_script_writes_them(text, words):
    assert [word for word, _ in split_words(text)] == words


def test_only_scripts_without_spaces_are_joined_without_spaces():
    assert {unspaced for _, unspaced in split_words("你好 Bob")} == {True}
    assert {unspaced for _, unspaced in split_words("안녕 Bob")} == {False}


@pytest.mark.parametrize(
    ("text", "whole"),
    [("50", ""), ("50+ ", "50+ "), ("Hello the", "Hello "), ("你好", "你"), ("好。", ""), ("", "")],
)
def test_a_word_that_may_still_grow_is_held_back(text, whole):
    assert text[: whole_words(text)] == whole


def test_pieces_of_a_text_become_the_words_of_the_whole():
    text = "Hello, 你好，世界。 It costs 50+ euros (or so)! "
    for size in range(1, 6):
        held, words = "", []
        for start in range(0, len(text), size):
            held += text[start : start + size]
            end = whole_words(held)
            words += [word for word, _ in split_words(held[:end])]
            held = held[end:]
        words += [word for word, _ in split_words(held)]
        assert "".join(words) == text.replace(" ", "")
        assert "50+" in words and "界。" in words


def test_digits_ideographs_and_pauses_take_longer_than_letters():
    assert count_letters("a") < count_letters("a,") < count_letters("a.")
    assert count_letters("7") == count_letters("four")
    assert count_letters("你") == 3


@pytest.mark.parametrize("pace", [0.5 * DEFAULT_PACE, DEFAULT_PACE, 2 * DEFAULT_PACE])
def test_words_get_their_true_times_once_the_audio_has_ended(pace):
    text = "Once upon a time there was a very small house at the edge of a wood."
    timer = WordTimer(DEFAULT_PACE, start_s=3.0)
    timer.add(text)
    end_s = 3.0 + pace * count_letters(text)
    words = timer.finish(end_s)
    before = 0
    for word, expected in zip(words, text.split(), strict=True):
        assert word.word == expected
        assert word.seconds == nearly(3.0 + pace * before)
        before += count_letters(expected)


def test_no_word_is_returned_beyond_the_audio_or_long_before_it_is_heard():
    timer = WordTimer(0.1)  # a word begins every 0.4 s
    timer.add("aaaa bbbb cccc dddd eeee ffff gggg hhhh")
    assert [word.word for word in timer.due(0.3, heard_s=0.2)] == ["aaaa"]
    assert timer.due(0.3, heard_s=0.3) == []
    told = timer.due(3.0, heard_s=1.0)
    assert [word.word for word in told] == ["bbbb", "cccc", "dddd"]
    assert told[-1].seconds < 1.0 + LOOKAHEAD_S
    assert [word.word for word in timer.finish(3.2)] == ["eeee", "ffff", "gggg", "hhhh"]


def test_a_better_estimate_never_takes_words_back():
    timer = WordTimer(0.2)  # expects twice the true pace
    timer.add("aaaa bbbb cccc dddd")
    times = [word.seconds for word in [*timer.due(1.0, 0.5), *timer.finish(1.6)]]
    assert times == sorted(times)


def test_the_pace_of_a_voice_is_learned():
    pace, true_pace = DEFAULT_PACE, 0.12
    for _ in range(5):
        timer = WordTimer(pace)
        timer.add("twenty letters in here")
        timer.finish(true_pace * 19)
        pace = timer.learned_pace(true_pace * 19)
    assert pace == pytest.approx(true_pace, rel=PACE)


def test_a_short_text_teaches_no_pace():
    timer = WordTimer(DEFAULT_PACE)
    timer.add("Oh.")
    assert timer.learned_pace(3.0) == DEFAULT_PACE


def test_audio_behind_earlier_audio_is_heard_after_it():
    clock = PlayoutClock()
    clock.begin("a", now_s=10.0, words_from_s=10.0)
    clock.send(10.0, 4.0)
    clock.begin("b", now_s=10.1, words_from_s=13.0)  # its words follow the last word of "a"
    assert clock.delay_s == nearly(1.0)
    clock.send(10.1, 1.0)
    assert clock.heard_s("b", 14.5) == nearly(0.5)
    assert clock.heard_s("b", 12.0) == 0.0
    assert clock.heard_s("a", 12.0) == 0.0


def test_gaps_delay_words_and_not_what_was_heard():
    clock = PlayoutClock()
    clock.begin("a", 10.0, 10.0)
    clock.send(10.0, 1.0)
    clock.send(10.5, 1.0)  # ahead of playback: no hole
    assert clock.delay_s == 0.0
    clock.send(15.0, 1.0)  # three seconds after all was heard
    assert clock.delay_s == nearly(3.0)
    assert clock.heard_s("a", 15.5) == nearly(2.5)


def test_an_interruption_drops_what_was_not_heard():
    clock = PlayoutClock()
    clock.begin("a", 10.0, 10.0)
    clock.send(10.0, 9.0)
    clock.cut(11.0)
    clock.begin("b", 11.5, 11.5)
    assert clock.delay_s == 0.0


def test_an_interruption_leaves_uninterruptible_audio():
    clock = PlayoutClock()
    clock.begin("a", 10.0, 10.0)
    clock.send(10.0, 3.0, interruptible=False)
    clock.cut(11.0)
    clock.begin("b", 11.5, 11.5)
    assert clock.delay_s == nearly(1.5)
