"""tools/precision_table.py: the committed result is complete, and its variants are in order."""

import json

import pytest
from tolerances import PRECISION_F32, PRECISION_SHARE

from benchmarks import precision_page
from qwen_megakernel.choices import INT8_STACKS, WEIGHTS
from tools import precision_table as tool

RUNS = json.loads(tool.RESULT.read_text())["runs"]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["torch_instruction_set"])
def test_the_result_has_every_variant_and_stands_on_both_feet(run):
    variants = run["variants"]
    assert list(variants) == list(precision_page.VARIANTS)
    assert set(variants["fp32"]["relative_rms_error"].values()) == {0.0}
    errors = {name: variants[name]["relative_rms_error"]["predictor logits"] for name in variants}
    # Independent float32 implementations agree; half precision is far from them.
    assert max(errors["kernel fp32"], errors["cpu fp32"]) < PRECISION_F32 < errors["kernel bf16"]
    assert errors["kernel bf16"] < errors["mixed"] < errors["bf16"]
    # int8 in the talker reaches the predictor through its input; its own layers add to that, and
    # so do the heads; a scale for fewer weights is nearer to them.
    for scales in ("rows", "groups"):
        names = [f"{stacks}-{scales}" for stacks in INT8_STACKS]
        assert errors[names[0]] < errors[names[1]]
        for name in names:
            assert errors[name] < errors[f"{name}-heads"]
            assert errors[name.replace("rows", "groups")] <= errors[name]
    assert errors["int8-rows"] < errors["int8-rows, bf16"]
    # With 4 bits in the talker, more than with 8 or 6 anywhere; in the predictor, too, more still.
    assert errors["int8-rows-heads"] < errors["int6-talker"] < errors["int6"]
    assert errors["int6"] < errors["int4-int8"] < errors["int4-int6"] < errors["int4"]
    # Kernel and native code hardly round activations: int8 costs there what it costs in float32.
    for name in errors:
        program, _, form = name.partition(" ")
        if form in WEIGHTS and program in ("kernel", "cpu"):
            assert errors[name] == pytest.approx(errors[form], rel=PRECISION_SHARE)


def test_each_form_of_int8_has_its_row():
    """`--weights` takes each of these; a name without rows or groups suits the backend."""
    listed = {line.split(" | ")[0].removeprefix("| ") for line in precision_page.precision()}
    forms = {w.replace("-heads", "") + s for w in INT8_STACKS for s in ("-rows", "-groups")}
    assert forms | {f"{form}-heads" for form in forms} <= listed & set(WEIGHTS)


def test_the_runs_differ_in_torchs_instructions_and_the_page_has_what_repeats():
    assert len({run["torch_instruction_set"] for run in RUNS}) == len(RUNS) == 2
    assert precision_page.repeating([0.0123, 0.0123], "{:.1e}", "{:.0e}") == "1.2e-02"
    assert precision_page.repeating([0.0123, 0.0131], "{:.1e}", "{:.0e}") == "1e-02"
    assert precision_page.repeating([0.0161, 0.0123], "{:.1e}", "{:.0e}") == "1e-02 to 2e-02"
    assert precision_page.repeating([None, None], "{:.1e}") is None


def test_the_text_embedding_is_said_to_be_outside():
    assert "311 million values: no frame reads it" in " ".join(precision_page.precision())
