"""tools/precision_table.py: the committed result is whole, and the oracle is exact."""

import json

import pytest
import torch
from tolerances import PRECISION_F32, PRECISION_SHARE

from qwen_megakernel.decoders.slots import DecoderSizes
from tools import precision_table as tool


def test_the_result_has_every_variant_and_stands_on_both_feet():
    result = json.loads(tool.RESULT.read_text())
    variants = result["variants"]
    assert set(variants) == set(tool.pages.VARIANTS)
    assert set(variants["fp32"]["relative_rms_error"].values()) == {0.0}
    errors = {name: variants[name]["relative_rms_error"]["predictor logits"] for name in variants}
    # Two independent float32 implementations agree; half precision is far from both.
    assert errors["kernel_fp32"] < PRECISION_F32 < errors["kernel_bf16"] < errors["bf16"]
    # int8 in the talker reaches the predictor through its input; its own layers add to that.
    assert errors["bf16"] < errors["int8_talker"] < errors["int8"] < errors["int8_bf16"]
    # The kernel hardly rounds activations: its int8 costs what int8 costs in float32 arithmetic.
    for weights in ("int8_talker", "int8"):
        assert errors[f"kernel_{weights}"] == pytest.approx(errors[weights], rel=PRECISION_SHARE)
    assert result["model"]["layers"] == [28, 5]


def test_the_mixed_decoder_is_half_the_talker_and_all_of_the_predictor(monkeypatch):
    monkeypatch.setattr(tool, "NUM_FRAMES", 2)
    config = tool.narrow_config()
    stacks = {name: getattr(config, name) for name in ("talker", "predictor")}
    shallow = {
        name: tool.replace(part, stack=tool.replace(part.stack, num_layers=2))
        for name, part in stacks.items()
    }
    checkpoint = tool.random_checkpoint(tool.replace(config, **shallow))
    sizes = {dtype: DecoderSizes(1, 64, 1, tool.CPU, dtype) for dtype in (tool.HALF, tool.FULL)}
    mixed = tool.MixedDecoder(checkpoint, sizes[tool.HALF])
    half = tool.PlainDecoder(checkpoint, sizes[tool.HALF])
    full = tool.PlainDecoder(checkpoint, sizes[tool.FULL])
    forced = torch.randint(0, 2048, (2, 16), generator=torch.Generator().manual_seed(2))
    found = [tool.stages(decoder, 0, forced) for decoder in (mixed, half, full)]
    assert torch.equal(found[0]["talker logits"], found[1]["talker logits"])
    distances = [
        (found[0]["predictor logits"] - other["predictor logits"]).abs().mean()
        for other in found[1:]
    ]
    assert distances[1] < distances[0]
    # Given the same hidden state the predictor is the float32 one, bit for bit.
    for decoder in (mixed, full):
        tool.begin(decoder, 0, tool.Sampling.greedy())
    state = tool.replace(mixed._states[0])
    exact = tool.replace(state, hidden=state.hidden.float())
    assert torch.equal(
        mixed._draw_residual_codes(state, 3, None), full._draw_residual_codes(exact, 3, None)
    )
