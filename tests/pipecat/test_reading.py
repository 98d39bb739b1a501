"""Texts of a bot that are read as words: the spoken text, and the conversation's."""

import pytest
from fake_engine import FakeEngine
from pipecat.frames.frames import TTSStoppedFrame, TTSTextFrame, TTSUpdateSettingsFrame
from pipelines import TOKEN, Mode, Run, service
from tolerances import WORD_SECONDS

from benchmarks.letters import count_letters
from qwen_megakernel.pipecat.service import MegakernelTTSService

Settings = MegakernelTTSService.Settings


async def test_a_sentence_is_spoken_in_words_and_reaches_the_conversation_as_it_is_written():
    engine = FakeEngine()
    settings = Settings(normalize="on", lexicon={"Qwen": "kwen"})
    async with Run(service(engine, settings=settings)) as run:
        await run.say("Qwen costs $12.50 today.", stops=1)
    assert engine.streams[0].text.spoken == "kwen costs twelve dollars and fifty cents today."
    words = [word.text for word in run.frames(TTSTextFrame)]
    assert words == ["Qwen", "costs", "$12.50", "today."]


async def test_a_turn_that_is_fed_word_by_word_is_read_the_same():
    engine = FakeEngine()
    async with Run(service(engine, TOKEN, settings=Settings(normalize="on"))) as run:
        await run.turn("It is 3:", "05", " pm and", " $5.", ends=1)
    assert engine.streams[0].text.spoken == "It is three oh five p m and five dollars."
    words = [word.text for word in run.frames(TTSTextFrame)]
    assert words == ["It", "is", "3:05", "pm", "and", "$5."]


async def test_settings_of_reading_change_while_the_bot_runs_and_bad_ones_are_refused():
    engine = FakeEngine()
    async with Run(service(engine)) as run:
        await run.send(TTSUpdateSettingsFrame(delta=Settings(normalize="yes")))
        await run.until(lambda: run.errors)
        await run.say("5 kg.", stops=1)
        await run.send(TTSUpdateSettingsFrame(delta=Settings(normalize="on", lexicon={"a": "b"})))
        await run.say("5 kg a.")
        await run.until(lambda: len(engine.streams) == 2 and len(run.frames(TTSStoppedFrame)) == 2)
    assert [stream.text.spoken for stream in engine.streams] == ["5 kg.", "five kilograms b."]


async def test_words_are_heard_at_the_times_of_what_is_said_for_them(mode: Mode):
    async with Run(service(FakeEngine(), mode, settings=Settings(normalize="on"))) as run:
        await run.turn("It ", "costs $12", ".50 at 3:", "05 pm", " today.", ends=1)
    words = {word.text: word.pts / 1e9 for word in run.frames(TTSTextFrame)}
    assert list(words) == ["It", "costs", "$12.50", "at", "3:05", "pm", "today."]
    said = ["It", "costs", "twelve dollars and fifty cents", "at", "three oh five p m"]
    starts = [count_letters("".join(said[:index])) / 15 for index in range(1, 6)]
    heard = [words[word] - words["It"] for word in ("costs", "$12.50", "at", "3:05", "today.")]
    assert heard == pytest.approx(starts, abs=WORD_SECONDS)
