"""Texts of a bot that are read in words: what is spoken, and what the conversation gets."""

import pytest
from fake_engine import FakeEngine
from pipecat.frames.frames import (
    LLMFullResponseEndFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipelines import TOKEN, Mode, Run, service
from tolerances import WORD_SECONDS, nearly

from qwen_megakernel.errors import UsageError
from qwen_megakernel.pipecat.service import MegakernelTTSService
from qwen_megakernel.pipecat.word_timestamps import WordTimer
from qwen_megakernel.text.reading.reader import Reading, TextReader
from qwen_megakernel.timing.words import count_letters

Settings = MegakernelTTSService.Settings


@pytest.fixture
def reader() -> TextReader:
    return Reading().reader("on", "english", None)


async def test_a_sentence_is_spoken_in_words_and_reaches_the_conversation_as_it_is_written():
    engine = FakeEngine()
    settings = Settings(normalize="on", lexicon={"Qwen": "kwen"})
    async with Run(service(engine, settings=settings)) as run:
        await run.say("Qwen costs $12.50 today.")
        await run.until(TTSStoppedFrame)
    assert engine.streams[0].text == "kwen costs twelve dollars and fifty cents today."
    words = [word.text for word in run.frames(TTSTextFrame)]
    assert words == ["Qwen", "costs", "$12.50", "today."]


async def test_a_turn_that_is_fed_word_by_word_is_read_the_same():
    engine = FakeEngine()
    async with Run(service(engine, TOKEN, settings=Settings(normalize="on"))) as run:
        await run.turn("It is 3:", "05", " pm and", " $5.")
        await run.until(LLMFullResponseEndFrame)
    assert engine.streams[0].text == "It is three oh five p m and five dollars."
    words = [word.text for word in run.frames(TTSTextFrame)]
    assert words == ["It", "is", "3:05", "pm", "and", "$5."]


async def test_settings_of_reading_change_while_the_bot_runs_and_bad_ones_are_refused():
    engine = FakeEngine()
    async with Run(service(engine)) as run:
        await run.send(TTSUpdateSettingsFrame(delta=Settings(normalize="yes")))
        await run.until(lambda: run.errors)
        await run.say("5 kg.")
        await run.until(TTSStoppedFrame)
        await run.send(TTSUpdateSettingsFrame(delta=Settings(normalize="on", lexicon={"a": "b"})))
        await run.say("5 kg a.")
        await run.until(lambda: len(engine.streams) == 2 and len(run.frames(TTSStoppedFrame)) == 2)
    assert [stream.text for stream in engine.streams] == ["5 kg.", "five kilograms b."]


@pytest.mark.parametrize(
    ("lexicon", "message"),
    [(5, "lexicon is a int"), ({"a": "b", "A": "c"}, "entry 2: 'A' is respelled 'c', but entry 1")],
)
def test_a_faulty_lexicon_is_refused_at_the_start(lexicon: object, message: str):
    with pytest.raises(UsageError, match=message):
        service(FakeEngine(), settings=Settings(lexicon=lexicon))


async def test_words_are_heard_at_the_times_of_what_is_said_for_them(mode: Mode):
    async with Run(service(FakeEngine(), mode, settings=Settings(normalize="on"))) as run:
        await run.turn("It ", "costs $12", ".50 at 3:", "05 pm", " today.")
        await run.until(LLMFullResponseEndFrame)
    words = {word.text: word.pts / 1e9 for word in run.frames(TTSTextFrame)}
    assert list(words) == ["It", "costs", "$12.50", "at", "3:05", "pm", "today."]
    said = ["It", "costs", "twelve dollars and fifty cents", "at", "three oh five p m"]
    starts = [count_letters("".join(said[:index])) / 15 for index in range(1, 6)]
    heard = [words[word] - words["It"] for word in ("costs", "$12.50", "at", "3:05", "today.")]
    assert heard == pytest.approx(starts, abs=WORD_SECONDS)


def timer_of(reader: TextReader) -> WordTimer:
    return WordTimer(pace=0.1, spoken=lambda: reader.spoken.pieces)


def test_a_word_that_is_held_back_is_not_reported_before_it_is_spoken(reader: TextReader):
    timer = timer_of(reader)
    for words in ("It ", "is ", "3:05 "):
        reader.feed(words)
        timer.add(words)
    assert [word.word for word in timer.due(made_s=9.0, heard_s=9.0)] == ["It", "is"]
    reader.feed("pm ")
    timer.add("pm ")
    assert [word.word for word in timer.due(made_s=9.0, heard_s=9.0)] == ["3:05", "pm"]
    reader.feed("now")
    timer.add("now")
    assert timer.due(made_s=9.0, heard_s=9.0) == []
    reader.end()
    letters = count_letters("It is three oh five p m")
    (last,) = timer.finish(made_s=0.1 * (letters + count_letters("now")))
    assert last.seconds == nearly(0.1 * letters)


def test_a_text_in_pieces_has_the_times_of_the_whole():
    text = "**Pay** $12.50 by 3:05 pm to Dr. Smith, or 1,234 &amp; more `code` - now. "
    times = []
    for pieces in ([text], [f"{word} " for word in text.split()]):
        reader = Reading().reader("on", "english", None)
        timer = timer_of(reader)
        for piece in pieces:
            reader.feed(piece)
            timer.add(piece)
            assert timer.due(made_s=0.0, heard_s=0.0) == []
        reader.end()
        words = timer.finish(made_s=9.0)
        assert [word.word for word in words] == text.split()
        times.append([word.seconds for word in words])
    assert times[1] == nearly(times[0])


def test_a_word_takes_as_long_as_what_is_said_for_it(reader: TextReader):
    text = "Pay $12.50 or **less** now"
    reader.whole(text)
    timer = timer_of(reader)
    timer.add(text)
    times = {word.word: word.seconds for word in timer.finish(made_s=10.0)}
    letters = [count_letters(word) for word in ("Pay", "twelve dollars and fifty cents", "or")]
    letters += [count_letters("less"), count_letters("now")]
    pace = 10.0 / sum(letters)
    assert list(times) == text.split()
    starts = [sum(letters[:index]) * pace for index in range(len(letters))]
    assert list(times.values()) == nearly(starts)
