"""tools/precision_table.py: the committed result is whole, and the oracle is exact."""

import json

import pytest

from tools import precision_table as tool


def test_the_result_has_every_variant_and_stands_on_both_feet():
    result = json.loads(tool.RESULT.read_text())
    variants = result["variants"]
    assert set(variants) == set(tool.pages.VARIANTS)
    assert set(variants["fp32"]["relative_rms_error"].values()) == {0.0}
    errors = {name: variants[name]["relative_rms_error"]["predictor logits"] for name in variants}
    # Two independent float32 implementations agree; half precision is far from both.
    assert errors["kernel_fp32"] < 1e-5 < errors["kernel_bf16"] < errors["bf16"]
    # int8 in the talker reaches the predictor through its input; its own layers add to that.
    assert errors["bf16"] < errors["int8_talker"] < errors["int8"] < errors["int8_bf16"]
    # The kernel hardly rounds activations: its int8 costs what int8 costs in float32 arithmetic.
    for weights in ("int8_talker", "int8"):
        assert errors[f"kernel_{weights}"] == pytest.approx(errors[weights], rel=0.05)
    assert result["model"]["layers"] == [28, 5]
