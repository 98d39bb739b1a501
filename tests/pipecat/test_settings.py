"""Settings of the Pipecat service, at the start and while it runs."""

import math
from unittest.mock import Mock

import numpy as np
import pytest
from fake_engine import FakeEngine
from pipecat.frames.frames import (
    ErrorFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.services.settings import TTSSettings
from pipecat.transcriptions.language import Language
from pipelines import TOKEN, Run, logged, service

from qwen_megakernel import families
from qwen_megakernel.errors import UnknownLanguage, UnknownVoice, UsageError
from qwen_megakernel.pipecat.service import MegakernelTTSService
from qwen_megakernel.voice import Voice

Settings = MegakernelTTSService.Settings


async def test_settings_reach_the_engine():
    engine = FakeEngine()
    drawn = {"seed": 5, "temperature": 0.5, "subtalker_top_k": 9}
    settings = Settings(voice="vivian", language=Language.DE, instruct="Whisper.", **drawn)
    async with Run(service(engine, settings=settings)) as run:
        await run.say("Hallo.", stops=1)
    request = engine.streams[0].request
    assert (request.voice, request.language, request.instruct) == ("vivian", "german", "Whisper.")
    assert (request.seed, request.sampling.talker.temperature) == (5, 0.5)
    assert request.sampling.predictor.top_k == 9


def test_a_misspelt_setting_is_corrected():
    with pytest.raises(UsageError, match=r'no option speeed(.|\n)*Did you mean "speed"'):
        Settings(speeed=2)
    with pytest.raises(UsageError, match=r'no option modle(.|\n)*Did you mean "model"'):
        Settings(modle="demo-voice")  # a field that Pipecat's own settings have


async def test_a_misspelt_setting_of_a_dict_is_named():
    with logged() as lines:
        async with Run(service(FakeEngine())) as run:
            await run.send(TTSUpdateSettingsFrame(settings={"speeed": 2}))
            await run.say("Hello.", stops=1)
    assert any('ignored: speeed. Did you mean "speed"?' in line for line in lines)


@pytest.mark.parametrize(
    ("language", "stored", "splitter"),
    [
        (Language.ZH, "chinese", "zh"),
        (Language.EN_GB, "english", "en"),
        ("Japanese", "japanese", "ja"),
        ("de-AT", "german", "de"),
        (Language.SW, "auto", "sw"),
        ("auto", "auto", "en"),
        (None, "auto", "en"),
    ],
)
async def test_languages_become_names_for_the_model_and_codes_for_the_splitter(
    language, stored, splitter
):
    given = service(FakeEngine(), settings=Settings(language=language))
    assert (given.settings.language, given.text_aggregation_language) == (stored, splitter)
    updated = service(FakeEngine(), settings=Settings(language="english"))
    async with Run(updated) as run:
        await run.send(TTSUpdateSettingsFrame(delta=Settings(language=language)))
        await run.say("Mark.", stops=1)
    assert (updated.settings.language, updated.text_aggregation_language) == (stored, splitter)


async def test_settings_change_between_sentences():
    async with Run(service(FakeEngine(), settings=Settings(voice="aiden"))) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("One. Two"))
        await run.send(TTSUpdateSettingsFrame(delta=TTSSettings(voice="vivian")))
        await run.send(TTSUpdateSettingsFrame(delta=Settings(language="zh", temperature=0.1)))
        await run.send(LLMTextFrame(" more."), LLMFullResponseEndFrame(), stops=1)
    one, two = (stream.request for stream in run.engine.streams)
    assert (one.voice, one.language) == ("aiden", "auto")
    assert (two.voice, two.language, two.sampling.talker.temperature) == ("vivian", "chinese", 0.1)
    assert run.order(TTSStartedFrame, TTSStoppedFrame) == [TTSStartedFrame, TTSStoppedFrame]


async def test_a_change_within_a_token_turn_opens_a_new_context():
    async with Run(service(FakeEngine(), TOKEN, settings=Settings(voice="aiden"))) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("Before it. "))
        await run.until(TTSStartedFrame)
        await run.send(TTSUpdateSettingsFrame(delta=Settings(voice="vivian")))
        await run.send(LLMTextFrame("After it."), LLMFullResponseEndFrame(), stops=2)
    assert [(stream.request.voice, stream.text.spoken) for stream in run.engine.streams] == [
        ("aiden", "Before it. "),
        ("vivian", "After it."),
    ]
    assert " ".join(frame.text for frame in run.frames(TTSTextFrame)) == "Before it. After it."
    assert run.pcm == run.sent


@pytest.mark.parametrize("formats", [("plain", "ssml"), ("ssml", "plain")])
async def test_markup_begins_and_ends_within_a_turn(mode, formats):
    """What comes before the change is spoken to its end, and has its own format."""
    before, after = (MegakernelTTSService.Settings(text_format=each) for each in formats)
    tts = service(FakeEngine(rtf=0.2), mode, settings=before)
    async with Run(tts) as run:
        await run.send(
            *(LLMFullResponseStartFrame(), LLMTextFrame("This goes before it. Here ")),
            TTSUpdateSettingsFrame(delta=after),
            *(LLMTextFrame("it goes on."), LLMFullResponseEndFrame()),
        )
        await run.until(LLMFullResponseEndFrame)
    assert [stream.text_format for stream in run.engine.streams] == [*formats]
    assert [stream.finish_reason for stream in run.engine.streams] == ["eos", "eos"]
    assert run.pcm == run.sent
    words = [word.text for word in run.frames(TTSTextFrame)]
    assert " ".join(words) == "This goes before it. Here it goes on."


@pytest.mark.parametrize(
    "delta",
    [
        Settings(voice="nobody", seed=3),
        Settings(language="Klingon", seed=3),
        Settings(temperature=-1.0, seed=3),
        Settings(seed=-3),
        Settings(language=5, seed=3),
        Settings(voice=["vivian"], seed=3),
        Settings(voice="anna", style=5, seed=3),
        Settings(lexicon="a\0b", seed=3),
    ],
    ids=["voice", "language", "sampling", "seed", "no language", "no voice", "style", "file"],
)
async def test_settings_that_cannot_work_are_refused_as_a_whole(delta):
    voices = {"anna": Voice("anna", np.ones(4, np.float32))}
    settings = Settings(voice="aiden", seed=1)
    async with Run(service(FakeEngine(), voices=voices, settings=settings)) as run:
        await run.send(TTSUpdateSettingsFrame(delta=delta))
        await run.say("As before.", stops=1)
        assert run.tts.is_usable
    (error,) = run.errors
    assert type(error) is ErrorFrame and error.error.startswith("Settings not changed: ")
    assert run.engine.streams[0].request.voice == "aiden" and run.engine.streams[0].seed == 1


async def test_the_lexicon_of_refused_settings_is_not_used(monkeypatch):
    async with Run(service(FakeEngine())) as run:
        refusal = Mock(side_effect=UsageError("planted"))
        monkeypatch.setattr(run.engine, "check_continuity", refusal)
        delta = Settings(lexicon={"before": "behind"}, continuity="context")
        await run.send(TTSUpdateSettingsFrame(delta=delta))
        await run.say("As before.", stops=1)
    assert len(run.errors) == 1 and run.engine.streams[0].text.spoken == "As before."


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"settings": Settings(voice="nobody")}, UnknownVoice, "nobody"),
        ({"settings": Settings(language="Klingon")}, UnknownLanguage, "Klingon"),
        ({"settings": Settings(top_p=3.0)}, UsageError, "top_p is 3"),
        ({"settings": Settings(speed="fast")}, UsageError, "speed is 'fast'"),
        ({"settings": Settings(volume=99)}, UsageError, "volume is 99"),
        ({"settings": Settings(lexicon=5)}, UsageError, "lexicon is 5"),
        (
            {"settings": Settings(lexicon={"a": "b", "A": "c"})},
            *(UsageError, "entry 2: 'A' is respelled 'c', but entry 1"),
        ),
        ({"sample_rate": 100}, UsageError, "sample_rate is 100; it must be in 8000 .. 48000."),
        (
            {"voices": {"a": "nofile"}},
            UsageError,
            r"voices\['a'\] is 'nofile'(.|\n)*Voice.load\(FILE\)",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        service(FakeEngine(), **arguments)


def test_a_model_and_an_engine_are_one_too_many():
    with pytest.raises(UsageError, match="not both"):
        MegakernelTTSService(model_path="tiny-random", engine=FakeEngine())


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ({"model": "demo-voice"}, "model_path="),
        ({"voice": "vivian"}, "Settings\\(voice="),
        ({"voice_id": "vivian"}, "Settings\\(voice="),
        ({"temperature": 0.5}, "Settings\\(temperature="),
        ({"sample_rate": 1}, "sample_rate is 1; it must be in 8000 .. 48000"),
        ({"push_stop_frames": False}, "itself"),
        ({"reuse_context_id_within_turn": False}, "the sentences of a turn share a context"),
        ({"bogus": 1}, "takes no bogus"),
        ({"settings": {"voice": "vivian"}}, "Settings\\(...\\)"),
        ({"engine": "demo-voice"}, "model_path="),
        ({"voices": "folder"}, "belongs to the engine"),
        ({"settings": Settings(speed=9)}, "speed is 9;"),
        ({"settings": Settings(temperature=0)}, "temperature is 0"),
        ({"settings": Settings(lexicon={"": "a"})}, "lexicon"),
        ({"first_chunk_frames": 0}, "first_chunk_frames is 0"),
        ({"text_aggregation_mode": "tokens"}, "is 'tokens'; known: sentence, token"),
        ({"engine_timeout_s": "x"}, "engine_timeout_s is 'x'; it must be a number"),
        ({"engine_timeout_s": 0}, "engine_timeout_s is 0; it must be above 0 and finite"),
        ({"engine_timeout_s": math.nan}, "engine_timeout_s is nan; it must be above 0"),
        ({"stop_frame_timeout_s": None}, "stop_frame_timeout_s is None; it must be a number"),
        ({"stop_frame_timeout_s": math.inf}, "stop_frame_timeout_s is inf; it must be above 0"),
    ],
)
def test_arguments_that_cannot_work_are_refused_before_a_model_is_loaded(
    argument, hint, monkeypatch
):
    monkeypatch.setattr(families, "load_engine", lambda *_: pytest.fail("loaded"))
    with pytest.raises(UsageError, match=hint):
        MegakernelTTSService(**argument)


def test_arguments_of_the_base_class_reach_it():
    tts = service(FakeEngine(), name="voice of the agent", silence_time_s=0.5)
    assert tts.name == "voice of the agent" and tts._silence_time_s == 0.5


async def test_no_setting_is_left_open():
    tts = service(FakeEngine())
    assert set(tts.settings.given_fields()) == {
        name for name in Settings.__dataclass_fields__ if name not in ("extra", "_aliases")
    }
    assert tts.settings.model == "hum"


async def test_a_language_that_is_not_spoken_is_named_once():
    with logged() as lines:
        async with Run(service(FakeEngine())) as run:
            for language in (Language.SV, Language.EN, Language.SV):
                await run.send(TTSUpdateSettingsFrame(delta=Settings(language=language)))
            await run.say("Hej.", stops=1)
    assert sum("does not speak sv" in line for line in lines) == 1
