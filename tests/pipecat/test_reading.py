"""Texts of a bot that are read in words: what is spoken, and what the conversation gets."""

import pytest
from fake_engine import FakeEngine
from pipecat.frames.frames import (
    LLMFullResponseEndFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipelines import TOKEN, Run, service
from tolerances import nearly

from qwen_megakernel.errors import UsageError
from qwen_megakernel.pipecat.service import MegakernelTTSService
from qwen_megakernel.pipecat.word_timestamps import WordTimer
from qwen_megakernel.text.reading.reader import Reading
from qwen_megakernel.timing.words import count_letters

Settings = MegakernelTTSService.Settings


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


def test_a_lexicon_that_is_none_is_refused_at_the_start():
    with pytest.raises(UsageError, match="lexicon is a int"):
        service(FakeEngine(), settings=Settings(lexicon=5))


def test_a_word_takes_as_long_as_what_is_said_for_it():
    text = "Pay $12.50 or **less** now"
    reader = Reading().reader("on", "english", None)
    assert reader
    reader.whole(text)
    timer = WordTimer(pace=0.1)
    timer.add(text, reader.spoken.pieces)
    times = {word.word: word.seconds for word in timer.finish(made_s=10.0)}
    letters = [count_letters(word) for word in ("Pay", "twelve dollars and fifty cents", "or")]
    letters += [count_letters("less"), count_letters("now")]
    pace = 10.0 / sum(letters)
    assert list(times) == text.split()
    starts = [sum(letters[:index]) * pace for index in range(len(letters))]
    assert list(times.values()) == nearly(starts)
