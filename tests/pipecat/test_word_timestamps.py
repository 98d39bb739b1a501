"""When the service pushes the words of a stream that knows their times; the clock of a listener."""

from types import SimpleNamespace

import pytest
from tolerances import nearly

from qwen_megakernel.pipecat.word_timestamps import LOOKAHEAD_S, PlayoutClock, WordTimer
from qwen_megakernel.timing.words import TimedWord, is_unspaced, whole_words, word_spans


def words_of(text: str) -> list[str]:
    return [text[begin:end] for begin, end in word_spans(text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello there, my friend.", ["Hello", "there,", "my", "friend."]),
        ("  50+  times — 😀 ", ["50+", "times", "—", "😀"]),
        ("안녕 하세요.", ["안녕", "하세요."]),
        ("你好，世界。", ["你", "好，", "世", "界。"]),
        ("我用 Python 3 编程！", ["我", "用", "Python 3", "编", "程！"]),
        ("カメラ、ok。", ["カ", "メ", "ラ、", "ok。"]),
        ("ｶﾒﾗ、ｶﾞｲﾄﾞ。", ["ｶ", "ﾒ", "ﾗ、", "ｶﾞ", "ｲ", "ﾄﾞ。"]),  # half-width, with marks of voicing
        ("", []),
    ],
)
def test_words_are_cut_as_their_script_writes_them(text, words):
    assert words_of(text) == words


def test_only_scripts_without_spaces_are_joined_without_spaces():
    assert is_unspaced("你好 Bob")
    assert not is_unspaced("안녕 Bob")


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("50", ""),
        ("50+ ", "50+ "),
        ("Hello the", "Hello "),
        ("你好", "你"),
        ("好。", ""),
        ("ｶﾞ", ""),
        ("ｶﾞｲ", "ｶﾞ"),
        ("", ""),
    ],
)
def test_a_word_that_may_still_grow_is_held_back(text, whole):
    assert text[: whole_words(text)] == whole


def test_pieces_of_a_text_become_the_words_of_the_whole():
    text = "Hello, 你好，世界。 It costs 50+ euros (or so)! ｶﾞｲﾄﾞ "
    for size in range(1, 6):
        held, words = "", []
        for start in range(0, len(text), size):
            held += text[start : start + size]
            end = whole_words(held)
            words += words_of(held[:end])
            held = held[end:]
        words += words_of(held)
        assert "".join(words) == text.replace(" ", "")
        assert "50+" in words and "界。" in words and "ｶﾞ" in words


class Stream:
    def __init__(self, text: str) -> None:
        self.text, self.heard_s, self.drift_s = SimpleNamespace(written=text), 100.0, 0.0
        self.times = self

    async def find(self) -> list[TimedWord]:
        text = self.text.written
        times = ((0.4 + self.drift_s) * index for index in range(len(text)))
        return [
            TimedWord(text[begin:end], start_s, start_s + 0.4, begin)
            for start_s, (begin, end) in zip(times, word_spans(text), strict=False)
            if start_s < self.heard_s
        ]


async def test_no_word_is_returned_beyond_the_audio_or_long_before_it_is_heard():
    timer = WordTimer(Stream("aaaa bbbb cccc dddd eeee ffff gggg hhhh"), start_s=2.0)
    assert [word.word for word in await timer.due(2.3, heard_s=2.2)] == ["aaaa"]
    assert await timer.due(2.3, heard_s=2.3) == []
    told = await timer.due(5.0, heard_s=3.0)
    assert [word.word for word in told] == ["bbbb", "cccc", "dddd"]
    assert told[-1].seconds < 3.0 + LOOKAHEAD_S
    last = await timer.finish()
    assert [word.word for word in last] == ["eeee", "ffff", "gggg", "hhhh"]
    assert [word.seconds for word in last] == nearly([3.6, 4.0, 4.4, 4.8])


async def test_a_word_that_the_stream_has_not_heard_is_not_told():
    stream = Stream("aaaa bbbb cccc")
    timer, stream.heard_s = WordTimer(stream), 0.5
    assert [word.word for word in await timer.due(9.0, heard_s=9.0)] == ["aaaa", "bbbb"]
    stream.heard_s = 9.0
    assert [word.word for word in await timer.finish()] == ["cccc"]


async def test_a_better_estimate_never_takes_words_back():
    stream = Stream("aaaa bbbb cccc dddd")
    timer, stream.drift_s = WordTimer(stream), 0.4
    told = await timer.due(2.0, 1.0)
    stream.drift_s = -0.3
    times = [word.seconds for word in [*told, *await timer.finish()]]
    assert len(times) == 4 and times == sorted(times)


async def test_each_character_is_told_once_where_a_text_turns_out_to_be_chinese():
    stream = Stream("aaaa bbbb ")
    timer = WordTimer(stream)
    told = await timer.due(9.0, heard_s=0.0)
    stream.text.written += "你好。"
    told += await timer.finish()
    assert [(word.word, word.unspaced) for word in told] == [
        ("aaaa", False),
        ("bbbb", True),
        ("你", True),
        ("好。", True),
    ]


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
    clock.send(10.5, 1.0)  # ahead of playback, so there is no gap
    assert clock.delay_s == 0.0
    clock.send(15.0, 1.0)  # three seconds after playback ended
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


async def test_words_whose_times_are_known_are_told_without_another_look():
    stream = Stream("aaaa bbbb cccc dddd eeee ffff gggg hhhh")
    looks: list[float] = []

    class Counted(Stream):
        async def find(self) -> list[TimedWord]:
            looks.append(self.heard_s)
            return await super().find()

    stream = Counted(stream.text.written)
    timer = WordTimer(stream)
    told = [word.word for heard in range(20) for word in await timer.due(3.2, heard_s=heard / 10)]
    assert told == ["aaaa", "bbbb", "cccc", "dddd", "eeee", "ffff"] and len(looks) <= 4  # of 20
