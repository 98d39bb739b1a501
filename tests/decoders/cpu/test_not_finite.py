"""The native CPU decoder with numbers that are not finite: no stream goes on with them."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from native_decoding import begin, stored

from qwen_megakernel.errors import GenerationError, UsageError

# A broken number in a vector of each kind and in the prompt, after every kind of narrowing.
BROKEN = {
    "talker.input_layernorm": "model.layers.0.input_layernorm.weight",
    "talker.post_attention_layernorm": "model.layers.1.post_attention_layernorm.weight",
    "talker.k_norm": "model.layers.0.self_attn.k_norm.weight",
    "talker.norm": "model.norm.weight",
    "predictor.input_layernorm": "code_predictor.model.layers.0.input_layernorm.weight",
    "predictor.q_norm": "code_predictor.model.layers.0.self_attn.q_norm.weight",
    "predictor.norm": "code_predictor.model.norm.weight",
}


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("weights", [None, "int8", "int8-groups-heads"])
@pytest.mark.parametrize("name", [*BROKEN, "the prompt"])
def test_a_number_that_is_not_finite_is_never_lost_on_the_way(
    load_checkpoint, native, prompt, name, weights, value
):
    checkpoint = stored(load_checkpoint("tiny-random"), weights)
    prefill = prompt(checkpoint)
    if name == "the prompt":
        prefill.embeds[3, 5] = value
    else:
        vector = checkpoint.talker[BROKEN[name]].clone()
        vector[7] = value
        checkpoint = replace(checkpoint, talker=checkpoint.talker | {BROKEN[name]: vector})
    decoder = native(checkpoint)
    begin(decoder, prefill)
    with pytest.raises(GenerationError, match=r"codebook \d are not finite"):
        decoder.step([0], 3)


@pytest.mark.parametrize("name", ["codec_head.weight", "code_predictor.lm_head.3.weight"])
def test_nan_ends_a_stream_and_names_the_codebook(load_checkpoint, native, prompt, name):
    checkpoint = load_checkpoint("tiny-random")
    talker = checkpoint.talker
    broken = replace(checkpoint, talker=talker | {name: talker[name] * torch.nan})
    decoder = native(broken, 2)
    for slot in (0, 1):
        begin(decoder, prompt(checkpoint), slot=slot)
    codebook = 4 if "lm_head" in name else 0
    with pytest.raises(GenerationError, match=f"codebook {codebook} are not finite"):
        decoder.step([0], 2)
    assert decoder.frames_ready(1) > 0
    with pytest.raises(UsageError, match="no stream"):
        decoder.step([0], 1)


@pytest.mark.parametrize(
    ("kind", "weights"), [("native", None), ("native", "int8-groups-heads"), ("plain", None)]
)
def test_a_stream_of_nan_is_lost_alone(request, load_checkpoint, prompt, kind, weights):
    checkpoint = stored(load_checkpoint("tiny-random"), weights)
    make = request.getfixturevalue(kind)
    decoder, alone = make(checkpoint, 3), make(checkpoint)
    for slot in range(3):
        prefill = prompt(checkpoint, slot)
        if slot == 1:  # its second frame reads a text row of NaN
            prefill.trailing_text[0] = torch.nan
        begin(decoder, prefill, slot=slot, seed=slot)
    result = decoder.step([0, 1, 2], 3)
    assert list(result.failures) == [1]
    assert re.search("codebook 0 .*are not finite", str(result.failures[1]))
    assert (result.num_frames, result.ended) == ((3, 1, 3), (False,) * 3)
    with pytest.raises(UsageError, match="no stream"):
        decoder.step([1], 1)
    late = decoder.step([0, 2], 2)
    for row, slot in enumerate((0, 2)):
        begin(alone, prompt(checkpoint, slot), seed=slot)
        np.testing.assert_array_equal(result.codes[slot], alone.step([0], 3).codes[0])
        np.testing.assert_array_equal(late.codes[row], alone.step([0], 2).codes[0])
