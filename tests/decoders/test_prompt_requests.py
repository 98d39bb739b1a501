"""The requests that a checkpoint accepts or refuses: spellings of names, tasks and voices."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from prompt_toys import DIALECTS, HIDDEN_SIZE, INSTRUCT, LANGUAGES, NUM_CODE_GROUPS, clone

from qwen_megakernel.decoders.prompt import PromptBuilder
from qwen_megakernel.errors import (
    ModelFilesError,
    RecordingError,
    TaskError,
    UnknownLanguage,
    UnknownVoice,
    VoiceMismatch,
)
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.voice import Voice

# ---- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("voice", ["Ryan", "RYAN", Voice("ryan")])
@pytest.mark.parametrize("language", ["English", "en", "EN", "en-US", "en_GB", " english "])
def test_names_are_found_in_any_spelling(custom_voice_toy, voice, language):
    expected = custom_voice_toy.build(voice="ryan", language="english").embeds
    assert torch.equal(custom_voice_toy.build(voice=voice, language=language).embeds, expected)


LANGUAGE_CODES = {"zh-CN": "chinese", "cmn-Hans-CN": "chinese", "ja": "japanese", "ko-KR": "korean"}
LANGUAGE_CODES |= {"de": "german", "fr-CA": "french", "ru": "russian", "pt-BR": "portuguese"}
LANGUAGE_CODES |= {"es-419": "spanish", "it": "italian", "Auto": "auto", None: "auto"}


@pytest.mark.parametrize(("code", "name"), LANGUAGE_CODES.items())
def test_language_codes_are_found(voice_design_toy, code, name):
    expected = voice_design_toy.build(language=name).embeds
    assert torch.equal(voice_design_toy.build(language=code).embeds, expected)


def test_languages_are_listed_without_dialects(custom_voice_toy):
    model = custom_voice_toy.official.model
    assert custom_voice_toy.builder.languages == ["auto", *sorted(LANGUAGES)]
    assert set(custom_voice_toy.builder.languages) == set(model.get_supported_languages())


def test_an_unknown_language_is_refused_with_a_suggestion(custom_voice_toy):
    with pytest.raises(UnknownLanguage) as caught:
        custom_voice_toy.builder.resolve(SpeechOptions(language="Englich"))
    assert caught.value.what.startswith('Unknown language "Englich". Known: auto, chinese (zh), ')
    assert caught.value.hint == 'Did you mean "english"?'
    for unknown in ("Klingon", "nl-NL", "", "e"):
        with pytest.raises(UnknownLanguage, match="Known: auto"):
            custom_voice_toy.builder.resolve(SpeechOptions(language=unknown))


def test_a_code_of_a_language_the_checkpoint_lacks_is_refused(custom_voice_toy):
    talker = custom_voice_toy.config.talker
    config = replace(custom_voice_toy.config, talker=replace(talker, languages={"english": 2}))
    config = replace(config, talker=replace(config.talker, dialects={}))
    builder = PromptBuilder(config, custom_voice_toy.embeddings)
    with pytest.raises(UnknownLanguage, match=r"Known: auto, english \(en\)\."):
        builder.resolve(SpeechOptions(language="zh"))


@pytest.mark.parametrize("dialect", DIALECTS.values())
def test_a_dialect_is_no_language(custom_voice_toy, dialect):
    with pytest.raises(UnknownLanguage, match="comes with its speaker"):
        custom_voice_toy.builder.resolve(SpeechOptions(language=dialect))


def test_an_unknown_voice_is_refused_with_the_list(custom_voice_toy, base_toy, voice_design_toy):
    with pytest.raises(
        UnknownVoice, match=r'voice "alloy".*aiden, dylan, eric, ono_anna, .*vivian'
    ):
        custom_voice_toy.builder.resolve(SpeechOptions(voice="alloy"))
    for toy in (base_toy, voice_design_toy):
        with pytest.raises(UnknownVoice, match=r"This model has: \(none\)"):
            toy.builder.resolve(SpeechOptions(voice="ryan"))


def test_a_request_is_resolved_once_for_the_checkpoint(custom_voice_toy, base_toy):
    asked = SpeechOptions(voice=Voice("RYAN"), language="en", instruct=" ")
    found = custom_voice_toy.builder.resolve(asked)
    assert found == replace(asked, voice="ryan", instruct=None, text_feed="full")
    assert base_toy.builder.resolve(SpeechOptions()).text_feed == "stepwise"


# ---- tasks -------------------------------------------------------------------------------------


def test_only_base_clones(custom_voice_toy, voice_design_toy):
    for toy in (custom_voice_toy, voice_design_toy):
        with pytest.raises(TaskError, match="Voice 'mario' was made from a recording"):
            toy.builder.resolve(SpeechOptions(voice=clone()))


def test_base_takes_no_instruct(base_toy):
    with pytest.raises(TaskError, match="no instruct"):
        base_toy.builder.resolve(SpeechOptions(instruct=INSTRUCT))
    base_toy.builder.resolve(SpeechOptions(instruct=" "))


def test_base_without_voice_warns_once(make_toy, caplog):
    toy = make_toy("base")
    with caplog.at_level(logging.WARNING):
        toy.build(voice=clone())
        assert not caplog.records
        for _ in range(2):
            toy.build()
    [record] = caplog.records
    assert "The request names no voice" in record.message


def test_a_voice_of_another_width_is_refused(base_toy):
    voice = clone(x_vector=np.zeros(2 * HIDDEN_SIZE, np.float32))
    with pytest.raises(
        VoiceMismatch, match=r"'mario' is 32-dim; the loaded model \(0b6\) is 16-dim"
    ):
        base_toy.builder.resolve(SpeechOptions(voice=voice))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_vector": None}, "no x-vector"),
        ({"x_vector": np.full(HIDDEN_SIZE, np.nan, np.float32)}, "NaN"),
        ({"x_vector": np.full(HIDDEN_SIZE, -1e38, np.float32)}, "the number -1e\\+38"),
        ({"codes": np.zeros((4, NUM_CODE_GROUPS + 1), int)}, "4 groups; this model has 3"),
        ({"codes": np.zeros((4, NUM_CODE_GROUPS))}, "float64; they must be integers"),
        ({"codes": np.array([[31, 39, 0], [0, 0, 40]])}, "code 40 in frame 1, group 2; .* 0 .. 39"),
        ({"codes": np.array([[-1, 0, 0]])}, "code -1 in frame 0, group 0"),
        ({"codes": np.array([[32, 0, 0]])}, "code 32 in frame 0, group 0; .* 0 .. 31"),
    ],
)
def test_a_damaged_voice_is_refused(base_toy, changes, message):
    with pytest.raises(RecordingError, match=message):
        base_toy.builder.resolve(SpeechOptions(voice=clone(4, **changes)))


def test_a_dialect_without_id_is_refused_at_load(custom_voice_toy):
    talker = replace(custom_voice_toy.config.talker, dialects={"eric": "wu_dialect"})
    with pytest.raises(ModelFilesError, match="wu_dialect"):
        PromptBuilder(replace(custom_voice_toy.config, talker=talker), custom_voice_toy.embeddings)
