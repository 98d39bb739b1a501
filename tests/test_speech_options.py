"""The one list of options, and the surfaces that are made from it."""

import argparse
from dataclasses import fields
from typing import get_type_hints

import pytest
from commands import run
from fake_engine import FakeEngine
from pydantic import ValidationError

from qwen_megakernel.cli import options as commands
from qwen_megakernel.cli import parsing
from qwen_megakernel.engine.speech_engine import SpeechEngine
from qwen_megakernel.errors import UsageError
from qwen_megakernel.pipecat.service import MegakernelTTSService
from qwen_megakernel.server.schemas import OFFERED, SpeechSettings
from qwen_megakernel.speech_options import (
    OFFICIAL_NAMES,
    OPTIONS,
    Draw,
    Option,
    Sampling,
    SoundOptions,
    SpeechKeywords,
    SpeechOptions,
)
from qwen_megakernel.voice import Voice

Settings = MegakernelTTSService.Settings
LIMITED = [pytest.param(each, id=name) for name, each in OPTIONS.items() if each.limits]


def outside(option: Option) -> list[float]:
    """Return the numbers next to the limits of an option, on their wrong side."""
    step = 1 if option.kind is int else 1e-3
    beside = {"ge": -step, "gt": 0, "le": step, "lt": 0}
    return [
        limit + beside[name] * max(1, abs(limit) if option.kind is float else 1)
        for name, limit in option.limits.items()
    ]


def test_type_checkers_see_the_options_with_their_types():
    hints = get_type_hints(SpeechKeywords, localns={"Voice": Voice})
    assert hints.keys() == OPTIONS.keys()
    plain = {name: each.kind | None for name, each in OPTIONS.items() if each.kind is not object}
    assert hints.items() >= plain.items()
    assert {"voice", "lexicon"} == OPTIONS.keys() - plain.keys()
    for method in (SpeechEngine.stream, SpeechEngine.astream, SpeechEngine.synthesize):
        assert "SpeechKeywords" in str(method.__annotations__["options"])


@pytest.mark.parametrize("option", LIMITED)
def test_a_value_outside_the_limits_is_refused_by_every_surface(option: Option):
    service = {"first_chunk_frames", "chunk_frames", "sample_rate"}  # arguments of the service
    for value in outside(option):
        given = {option.name: option.kind(value)}
        with pytest.raises(UsageError, match=f"{option.name} is "):
            SpeechOptions().override(**given)
        with pytest.raises(UsageError, match=f"{option.name} is "):
            if option.name in service:
                MegakernelTTSService(engine=FakeEngine(), **given)
            else:
                MegakernelTTSService(engine=FakeEngine(), settings=Settings(**given))
        if option.name in OFFERED:
            with pytest.raises(ValidationError, match=option.name):
                SpeechSettings.model_validate(given)
        if option.name in commands.OFFERED and option.name != "temperature":  # refused when parsed
            with pytest.raises(UsageError, match=f"{option.name} is "):
                commands.check_options(argparse.Namespace(**given))


@pytest.mark.parametrize("option", LIMITED)
def test_the_limits_themselves_are_taken_by_every_surface(option: Option):
    for value in (option.limits[name] for name in ("ge", "le") if name in option.limits):
        given = {option.name: option.kind(value)}
        if option.name != "first_chunk_frames":  # at most `chunk_frames`
            assert SpeechOptions().override(**given).values()[option.name] == value
        if option.name in OFFERED:
            assert getattr(SpeechSettings.model_validate(given), option.name) == value


def test_every_surface_has_every_option_but_those_that_it_names():
    """An option that is added to the record is added to each of them."""
    parser = parsing.Parser()
    commands.add_speech_options(parser)
    help_text = " ".join(parser.format_help().split())
    schema = SpeechSettings.model_json_schema()["properties"]
    settings = {each.name for each in fields(Settings)}
    for name, each in OPTIONS.items():
        if not each.is_subtalker and name not in ("voice", "lexicon", "split", "chunk_frames"):
            meaning = each.help[1:].split("(")[0]
            ours = {"instruct": "instructions"}.get(name, name)
            if name not in ("text_feed", "max_frames"):
                assert meaning in schema[ours]["description"]
            if name not in ("do_sample", "normalize", "first_chunk_frames"):
                assert f"--{name.replace('_', '-')} " in help_text and meaning in help_text
        if name not in ("split", "first_chunk_frames", "chunk_frames", "sample_rate"):
            assert name in settings
        assert f"        {name}: " in SpeechOptions.__doc__


def test_flat_names_reach_the_draws_of_the_two_models():
    sampling = Sampling().override(top_k=3, subtalker_top_k=4, subtalker_do_sample=False)
    assert sampling.talker == Draw(top_k=3, repetition_penalty=1.05)
    assert sampling.predictor == Draw(do_sample=False, top_k=4)
    assert SpeechOptions().override(**sampling.values()).sampling == sampling
    with pytest.raises(UsageError, match="no option subtalker_repetition_penalty"):
        Sampling().override(subtalker_repetition_penalty=1.1)


def test_an_error_names_the_draw_and_its_hint_the_same_draw():
    with pytest.raises(UsageError, match="subtalker_temperature is 0") as caught:
        Sampling(predictor=Draw(temperature=0.0))
    assert caught.value.hint == "For greedy decoding set subtalker_do_sample=False."


def test_none_is_the_default_of_every_option():
    given = SpeechOptions().override(speed=2, language="german")
    assert given.override(**dict.fromkeys(OPTIONS)) == given


def test_a_choice_must_be_known():
    with pytest.raises(UsageError, match="text_format is 'html'; known: plain, pauses, ssml") as e:
        SpeechOptions(text_format="html")
    assert "[pause 1.5s]" in e.value.hint


def test_the_official_names_are_those_of_generation_config():
    read = Sampling.from_generation_config({"subtalker_dosample": False, "top_p": 0.5, "other": 1})
    assert read == Sampling().override(subtalker_do_sample=False, top_p=0.5)
    official = {OFFICIAL_NAMES[name]: value for name, value in read.values().items()}
    assert Sampling.from_generation_config(official) == read


def test_numbers_become_plain_ones_in_nested_records_too():
    options = SpeechOptions(sound=SoundOptions(sample_rate=8000.0), seed=True)
    assert (type(options.sound.sample_rate), type(options.seed)) == (int, int)
    assert type(Sampling(talker=Draw(top_k=7.0)).talker.top_k) is int


def test_help_of_the_commands_does_not_load_numpy():
    code = "import sys, qwen_megakernel.cli.speak; print('numpy' in sys.modules)"
    done = run("-c", code)
    assert done.stdout.strip() == "False", done.stderr
