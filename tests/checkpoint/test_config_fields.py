"""Every number in a config file has a type and limits; a value outside them is named."""

import json
import math
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, get_args, get_type_hints

import pytest

from qwen_megakernel.checkpoint.codec_config import (
    CodecConfig,
    CodecDecoderConfig,
    CodecEncoderConfig,
    parse_codec_config,
)
from qwen_megakernel.checkpoint.config import (
    ModelConfig,
    PredictorConfig,
    SpeakerEncoderConfig,
    StackConfig,
    TalkerConfig,
    parse_model_config,
)
from qwen_megakernel.checkpoint.config_fields import Keys, Limits, Rule, read_json, rules_of
from qwen_megakernel.checkpoint.loading import GenerationLimits
from qwen_megakernel.checkpoint.random_configs import RECIPES, model_config, speech_tokenizer_config
from qwen_megakernel.errors import ModelFilesError
from qwen_megakernel.sheen import random_models
from qwen_megakernel.sheen.codec import SnacConfig
from qwen_megakernel.sheen.model_folder import SheenConfig

# The sections of each file from which each record is filled.
MODEL = {
    ModelConfig: [()],
    TalkerConfig: [("talker_config",)],
    PredictorConfig: [("talker_config", "code_predictor_config")],
    StackConfig: [("talker_config",), ("talker_config", "code_predictor_config")],
    SpeakerEncoderConfig: [("speaker_encoder_config",)],
}
CODEC = {
    CodecConfig: [()],
    CodecDecoderConfig: [("decoder_config",)],
    CodecEncoderConfig: [("encoder_config",)],
}
OTHERS = {
    GenerationLimits: {"max_new_tokens": 8192},
    SnacConfig: random_models.SNAC_CONFIG,
    SheenConfig: {"max_length": 1024, "espeak": None},
}
COMPUTED = {"qkv_bias", "qk_norm"}  # not in any file
OTHER_KEYS = {"frame_rate": "_frame_rate"}
# Null is as if the key were missing.
MAY_BE_NULL = {("encoder_config", "_frame_rate"), ("encoder_config", "head_dim")}


def records_in(record: type) -> Iterator[type]:
    yield record
    for hint in get_type_hints(record).values():
        for each in (hint, *get_args(hint)):
            if is_dataclass(each):
                yield from records_in(each)


def test_the_records_of_this_file_are_all():
    assert {*records_in(ModelConfig)} == MODEL.keys()
    assert {*records_in(CodecConfig)} == CODEC.keys()


@pytest.mark.parametrize("record", [*MODEL, *CODEC, *OTHERS])
def test_every_number_has_limits(record):
    hints = get_type_hints(record, include_extras=True)
    for field in fields(record):
        is_number = re.search(r"\b(int|float)\b", str(hints[field.name])) is not None
        limits = [each for each in get_args(hints[field.name]) if isinstance(each, Limits)]
        assert len(limits) == is_number, field.name


@dataclass
class Careless:
    """A record whose author forgot the limits of its second field."""

    width: Annotated[int, Limits(1, 9)]
    ratios: tuple[int, ...]


def test_a_number_without_limits_cannot_be_read():
    with pytest.raises(TypeError, match=r"Careless\.ratios needs .*Limits"):
        Keys({"width": 1, "ratios": [2]}, "config.json").read(Careless)


@pytest.mark.parametrize("name", RECIPES)
def test_the_configs_of_the_releases_are_within_the_limits(name):
    parse_model_config(model_config(name))
    parse_codec_config(speech_tokenizer_config(name))


def wrong_values(rule: Rule) -> Iterator[Any]:
    """Yield values that are outside a rule's limits, or of another type."""
    limits = rule.limits
    wrong: list[Any] = [{}, [[]]]
    wrong += [1] if rule.kind in (str, bool) else ["7", True, math.nan, math.inf, -1, 2**31, 2**99]
    wrong += [] if rule.is_optional or rule.container is dict else [None]
    if limits is not None:
        wrong += [limits.low - 1, 1.5 if rule.kind is int else -1.5]
        wrong += [limits.high + 1] if not isinstance(limits.high, str) else []
        wrong += [3] if limits.multiple_of == 2 else []
        if limits.low > 0:
            wrong += [0]
    if rule.container is None:
        yield from wrong
    elif rule.container is tuple:
        yield from (7, "7", [], [1] * 17)
        yield from ([each] * limits.length[0] for each in wrong if each is not None)
    else:
        yield from (7, "7", [1])
        yield from ({"x": each} for each in wrong if each is not None)


def cases(document: dict, sections: dict[type, list[tuple[str, ...]]]) -> Iterator[Any]:
    """Yield the keys of a file, each with a wrong value."""
    for record, places in sections.items():
        for rule in rules_of(record).values():
            if rule.name in COMPUTED:
                continue
            for section in places:
                path = (*section, *OTHER_KEYS.get(rule.key, rule.key).split("."))
                holder = document
                for key in path[:-1]:
                    holder = holder[key] or {}
                if "mrope_section" in path and not holder:
                    continue  # the predictor's
                for value in wrong_values(rule):
                    if value is None and path in MAY_BE_NULL:
                        continue
                    yield pytest.param(path, value, id=f"{'.'.join(path)}={str(value)[:20]}")


def with_value(document: dict, path: tuple[str, ...], value: Any) -> dict:
    changed = deepcopy(document)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return changed


BASE = model_config("tiny-random-base")
TOKENIZER = speech_tokenizer_config("tiny-random-base")


@pytest.mark.parametrize(("path", "value"), cases(BASE, MODEL))
def test_a_wrong_value_of_a_model_is_refused_by_name(path, value):
    if path[-1] == "tts_model_type":
        return  # it has few values, and an error of its own
    with pytest.raises(ModelFilesError, match=path[-1]) as caught:
        parse_model_config(with_value(BASE, path, value))
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(("path", "value"), cases(TOKENIZER, CODEC))
def test_a_wrong_value_of_a_codec_is_refused_by_name(path, value):
    with pytest.raises(ModelFilesError, match=path[-1].lstrip("_")) as caught:
        parse_codec_config(with_value(TOKENIZER, path, value))
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("record", "path", "value"),
    [
        pytest.param(record, *case.values, id=case.id)
        for record, document in OTHERS.items()
        for case in cases(document, {record: [()]})
    ],
)
def test_a_wrong_value_of_another_file_is_refused_by_name(record, path, value):
    Keys(OTHERS[record], "it").read(record)
    with pytest.raises(ModelFilesError, match=f"^it:? {path[0]}.* is ") as caught:
        Keys(with_value(OTHERS[record], path, value), "it").read(record)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("document", "path", "value", "words"),
    [
        (TOKENIZER, "decoder_config.sliding_window", 0, "number from 1 to 4096"),
        (TOKENIZER, "decoder_config.num_attention_heads", 3, "a multiple of num_kv_heads, 2"),
        (TOKENIZER, "decoder_config.upsample_rates", [8, 5, 4, 0], r"upsample_rates\[3\] is 0"),
        (TOKENIZER, "decoder_config.decoder_dim", 40, "decoder_dim is 40; each of the 4"),
        (TOKENIZER, "encoder_config._frame_rate", 26, "frame_rate is 26; .* allow 25 at most"),
        (TOKENIZER, "encoder_valid_num_quantizers", 33, "is 33; .* at most num_quantizers, 32"),
        (BASE, "talker_config.codec_eos_token_id", 3072, "from 0 to 3071, below vocab_size"),
        (BASE, "tts_pad_token_id", 1024, "from 0 to 1023, below talker.text_vocab_size"),
        (BASE, "talker_config.spk_id", {"a": -1}, r"spk_id\['a'\] is -1; it must be a whole"),
        (BASE, "talker_config.rope_scaling.mrope_section", [24, 20, 21], "half of head_dim, 64"),
        (BASE, "speaker_encoder_config.enc_channels", [64, 64, 64, 64, 193], "concatenated"),
        (BASE, "speaker_encoder_config.enc_dilations", [1, 2, 3, 4], "4 dilations"),
        (BASE, "speaker_encoder_config.enc_res2net_scale", 7, "multiple of the scale"),
    ],
)
def test_an_error_names_the_value_and_what_it_must_be(document, path, value, words):
    parse = parse_codec_config if document is TOKENIZER else parse_model_config
    with pytest.raises(ModelFilesError, match=words):
        parse(with_value(document, tuple(path.split(".")), value))


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a":' * 200_000, "[]", "9" * 5000, '{"a": 1' + "0" * 5000 + "}", "{"]
)
def test_a_file_that_is_no_json_object_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ModelFilesError, match=r"not valid JSON|not an object") as caught:
        read_json(path)
    assert str(path) in caught.value.what
    path.write_text(json.dumps({"a": 1}))
    assert read_json(path) == {"a": 1}
