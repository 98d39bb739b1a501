"""Tensor names and shapes against the published inventories and the official classes."""

import itertools
import json
import math
import re
from pathlib import Path

import pytest

from qwen_megakernel.checkpoint.codec_config import parse_codec_config
from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config, speech_tokenizer_config
from qwen_megakernel.checkpoint.tensor_shapes import codec_tensors, model_tensors

# 1.7b-voice_design and speech_tokenizer: public inventories of the released files. The others: what
# the official classes hold when built from the released configs. "{0-27}" and "{1,4}" stand for
# one name each.
RELEASED = json.loads((Path(__file__).with_name("tensors.json")).read_text())

BUILT_IN = {
    "0.6b-base": "random-0.6b-base",
    "0.6b-custom_voice": "random-0.6b",
    "1.7b-base": "random-1.7b-base",
    "1.7b-custom_voice": "random-1.7b",
    "1.7b-voice_design": "random-1.7b-design",
}
# (tensors, parameters), from the same sources.
NUM_TENSORS = {
    "0.6b-base": (478, 914_643_008),
    "0.6b-custom_voice": (402, 905_788_672),
    "1.7b-base": (480, 1_928_677_440),
    "1.7b-custom_voice": (404, 1_916_676_352),
    "1.7b-voice_design": (404, 1_916_676_352),
}


def released_shapes(checkpoint: str) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for pattern, entry in RELEASED[checkpoint].items():
        shape = tuple(int(size) for size in entry.split()[1].split("x"))
        parts = re.split(r"\{(.+?)\}", pattern)
        choices = [_choices(part) if i % 2 else [part] for i, part in enumerate(parts)]
        for name in itertools.product(*choices):
            shapes["".join(name)] = shape
    return shapes


def _choices(field: str) -> list[str]:
    if "-" in field:
        first, last = field.split("-")
        return [str(i) for i in range(int(first), int(last) + 1)]
    return field.split(",")


@pytest.mark.parametrize("checkpoint", BUILT_IN)
def test_model_tensors_equal_the_released_inventory(checkpoint):
    tensors = model_tensors(parse_model_config(model_config(BUILT_IN[checkpoint])))
    assert tensors == released_shapes(checkpoint)
    num_parameters = sum(math.prod(shape) for shape in tensors.values())
    assert (len(tensors), num_parameters) == NUM_TENSORS[checkpoint]


def test_codec_tensors_equal_the_released_inventory():
    tensors = codec_tensors(parse_codec_config(speech_tokenizer_config("random-0.6b")))
    assert len(tensors) == 496
    assert tensors == released_shapes("speech_tokenizer")


@pytest.mark.parametrize("name", ["tiny-random-base", "tiny-random-base-1.7b"])
def test_tensors_equal_the_official_classes_at_toy_size(name, official_model):
    model = official_model(name).model
    ours = model_tensors(parse_model_config(model_config(name)))
    assert ours == {key: tuple(value.shape) for key, value in model.state_dict().items()}
    ours = codec_tensors(parse_codec_config(speech_tokenizer_config(name)))
    codec = model.speech_tokenizer.model
    assert ours == {key: tuple(value.shape) for key, value in codec.state_dict().items()}


def test_the_projection_exists_only_where_the_hidden_sizes_differ():
    def has_projection(name: str) -> bool:
        tensors = model_tensors(parse_model_config(model_config(name)))
        return "talker.code_predictor.small_to_mtp_projection.weight" in tensors

    assert not has_projection("tiny-random")
    assert has_projection("tiny-random-1.7b")


def test_a_mimi_file_that_is_silent_means_the_official_defaults():
    values = speech_tokenizer_config("random-0.6b")
    values["encoder_config"] = {"model_type": "mimi"}
    assert codec_tensors(parse_codec_config(values)) == released_shapes("speech_tokenizer")
