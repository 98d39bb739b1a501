"""Weight-only int8: the matrix, and the decoders on it."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_speech import tiny_engine
from tolerances import (
    FITTED_OF_PLAIN,
    FITTED_OF_WEIGHTS,
    FITTED_SLACK,
    HALF_A_STEP,
    INT8_GROUP_SLACK,
    INT8_PRODUCT_BF16,
    INT8_PRODUCT_F32,
    INT8_ROW_SLACK,
    ROUNDING_F32,
    SCALE_BF16,
)
from torch import Tensor

from qwen_megakernel import TTSEngine
from qwen_megakernel.choices import INT8_STACKS, WEIGHTS
from qwen_megakernel.decoders import quantization
from qwen_megakernel.decoders.backends import Backend, choose_backend, make_decoder
from qwen_megakernel.decoders.quantization import QuantizedMatrix
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import UsageError
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling

CPU = torch.device("cpu")


def random_matrix(rows: int = 48, cols: int = 192) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    spread = torch.logspace(-3, 1, rows)[:, None]  # rows of very different magnitudes
    return spread * torch.randn(rows, cols, generator=generator)


def widened(matrix: QuantizedMatrix) -> Tensor:
    """Widen a matrix column by column, without `QuantizedMatrix.widened`."""
    scales = matrix.scales.double()
    columns = range(matrix.values.shape[1])
    group = 64 if matrix.bits == 8 else 32
    of_column = [scales[:, c // group] if matrix.group else scales for c in columns]
    return matrix.values.double() * torch.stack(of_column, dim=1)


@pytest.mark.parametrize("in_groups", [False, True])
def test_no_weight_is_further_than_half_a_step_of_its_scale(in_groups):
    weight = random_matrix(cols=150)  # not a multiple of a group
    weight[5] = 0
    matrix = QuantizedMatrix.of(weight, in_groups=in_groups)
    parts = weight.split(64 if in_groups else 150, dim=1)
    steps = torch.stack([part.abs().amax(dim=1) / 127 for part in parts], dim=1)
    # A group's scale is rounded to bf16, by at most 1/256, and so is its largest value.
    slack = INT8_GROUP_SLACK if in_groups else INT8_ROW_SLACK
    step = steps.repeat_interleave(64 if in_groups else 150, dim=1)[:, :150]
    assert ((widened(matrix) - weight).abs() <= HALF_A_STEP * slack * step).all()
    assert matrix.values.abs().amax(dim=1)[6] == 127 and not matrix.values[5].any()
    torch.testing.assert_close(
        matrix.widened().double(), widened(matrix), rtol=ROUNDING_F32, atol=0
    )


@pytest.mark.parametrize("bits", [6, 4])
def test_no_group_is_worse_than_with_the_scale_of_its_largest_magnitude(bits):
    least, most = {6: (-32, 31), 4: (-8, 7)}[bits]
    weight = random_matrix(cols=150)
    weight[5] = 0
    weight[6, :32] = torch.linspace(least, most, 32)  # what so many bits hold
    matrix = QuantizedMatrix.of(weight, bits=bits)
    assert matrix.bits == bits and matrix.group == 32 and matrix.scales.shape == (48, 5)
    assert matrix.values.min() == least and matrix.values.max() == most
    assert not matrix.values[5].any()
    assert torch.equal(matrix.scales, matrix.scales.bfloat16().float())
    torch.testing.assert_close(
        matrix.widened().double(), widened(matrix), rtol=ROUNDING_F32, atol=0
    )
    ours = total = plain = 0.0
    for columns in torch.arange(150).split(32):
        part, values = weight[:, columns].double(), widened(matrix)[:, columns]
        scale = (part.abs().amax(1, True) / most).bfloat16().double()
        steps = (part / scale).nan_to_num().round()
        error = (values - part).square().sum(1)
        of_largest = (steps * scale - part).square().sum(1)
        assert (error <= of_largest * FITTED_SLACK).all()
        # The least squared error of these values, but for the rounding of their scale.
        steps = matrix.values[:, columns].double()
        fitted = ((part * steps).sum(1) / steps.square().sum(1)).nan_to_num()[:, None]
        least = (fitted * steps - part).square().sum(1)
        assert (error <= least + (fitted * steps * SCALE_BF16).square().sum(1)).all()
        ours, plain = ours + error.sum(), plain + of_largest.sum()
        total += part.square().sum()
    of_plain, of_weights = FITTED_OF_PLAIN[bits], FITTED_OF_WEIGHTS[bits]
    assert ours < of_plain * plain and ours < of_weights * total


@pytest.mark.parametrize(("bits", "least"), [(6, -32), (4, -8)])
def test_few_bits_keep_what_they_hold(bits, least):
    generator = torch.Generator().manual_seed(2)
    weight = 0.5 * torch.randint(least, -least, (6, 96), generator=generator)
    weight[:, ::32] = 0.5 * least
    assert torch.equal(QuantizedMatrix.of(weight, bits=bits).widened(), weight)


def test_groups_are_nearer_than_rows_where_some_columns_are_large():
    weight = torch.randn(32, 256, generator=torch.Generator().manual_seed(1))
    weight[:, 70] *= 50
    rows, groups = (
        widened(QuantizedMatrix.of(weight, in_groups=g)) - weight for g in (False, True)
    )
    assert groups.square().mean() < 0.4 * rows.square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 192), (2, 192), (3, 2, 192)])
@pytest.mark.parametrize("kind", [{}, {"in_groups": True}, {"bits": 6}, {"bits": 4}])
def test_products_are_those_of_the_widened_matrix(dtype, shape, kind):
    matrix = QuantizedMatrix.of(random_matrix(), **kind).to(device=CPU, dtype=dtype)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    expected = x.double() @ widened(matrix).T
    actual = quantization.linear(x, matrix)
    assert actual.shape == expected.shape and actual.dtype == dtype
    tolerance = INT8_PRODUCT_BF16 if dtype == torch.bfloat16 else INT8_PRODUCT_F32
    size = x.double().abs() @ widened(matrix).abs().T
    assert ((actual - expected).abs() <= tolerance * size).all()


def test_rows_under_each_other_are_the_matrices():
    weight = random_matrix()
    whole, parts = (
        QuantizedMatrix.of(weight),
        [QuantizedMatrix.of(part) for part in weight.split(20)],
    )
    together = quantization.cat(parts)
    assert torch.equal(together.values, whole.values) and torch.equal(together.scales, whole.scales)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_only_the_named_layers_are_int8(load_checkpoint, weights):
    loaded = load_checkpoint("tiny-random-1.7b")
    changed = quantization.quantize(loaded.talker, weights)
    kinds = {name: isinstance(value, QuantizedMatrix) for name, value in changed.items()}
    layers = {name for name in kinds if ".layers." in name and name.endswith("_proj.weight")}
    if "talker" in weights:
        layers = {name for name in layers if not name.startswith("code_predictor")}
    if "heads" in weights:
        layers |= {name for name in kinds if "codec_head" in name or "lm_head" in name}
    assert {name for name, is_int8 in kinds.items() if is_int8} == layers
    assert "model.text_embedding.weight" not in layers
    grouped = {
        bool(value.group) for value in changed.values() if isinstance(value, QuantizedMatrix)
    }
    small = re.findall("int([46])", weights)  # the talker's bits, and the predictor's if it has few
    assert grouped == {"groups" in weights or bool(small)}
    for name in layers:
        is_head = "head" in name
        is_predictor = name.startswith("code_predictor")
        wide = is_head or not small or (is_predictor and "int8" in weights)
        assert changed[name].bits == (8 if wide else int(small[-1 if is_predictor else 0]))
    assert not any(isinstance(value, QuantizedMatrix) for value in loaded.talker.values())


def drawn(loaded, backend: str, weights: str | None, frames: int = 6) -> np.ndarray:
    sizes = DecoderSizes(1, 64, device=CPU, dtype=torch.float32)
    decoder = make_decoder(loaded, Backend(backend, CPU, ""), sizes, weights)
    generator = torch.Generator().manual_seed(6)
    rows = 0.5 * torch.randn(9, loaded.config.talker.stack.hidden_size, generator=generator)
    prefill = Prefill(rows[:-1], rows[:0], rows[-1])
    decoder.prefill(0, prefill, Sampling(), seed=3, part=0)
    return decoder.step([0], frames).codes[0]


@pytest.mark.parametrize("weights", ["int8", "int8-talker", "int8-groups"])
def test_both_torch_decoders_draw_the_same_codes_from_int8_weights(load_checkpoint, weights):
    loaded = load_checkpoint("tiny-random")
    codes = drawn(loaded, "torch", weights)
    np.testing.assert_array_equal(codes, drawn(loaded, "graph", weights))
    assert not np.array_equal(codes, drawn(loaded, "torch", None))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_they_are_the_codes_of_the_widened_weights(load_checkpoint, weights):
    """int8 changes the weights, not the computation with them."""
    loaded = load_checkpoint("tiny-random")
    int8 = quantization.quantize(loaded.talker, weights)
    wide = {
        name: widened(value).float() if isinstance(value, QuantizedMatrix) else value
        for name, value in int8.items()
    }
    codes = drawn(replace(loaded, talker=wide), "torch", None)
    np.testing.assert_array_equal(codes, drawn(loaded, "torch", weights))


def test_only_known_kinds_are_accepted():
    with pytest.raises(UsageError, match="int3"):
        choose_backend("torch", "cpu", "int3")


@pytest.mark.parametrize(
    ("backend", "weights", "hint"),
    [
        ("emulation", "int8-groups", "'int8', or backend cpu, torch or graph"),
        ("emulation", "int4-int8", "'int8', or backend cpu or torch"),
        ("graph", "int4", "'int8', or backend cpu or torch"),
        ("graph", "int6-talker", "'int8', or backend cpu or torch"),
        ("emulation", "int8-talker-heads", "'int8-talker', or backend cpu or torch"),
        ("graph", "int8-rows-heads", "'int8-rows', or backend cpu or torch"),
    ],
)
def test_a_form_that_a_backend_lacks_is_refused_before_a_model_is_read(backend, weights, hint):
    with pytest.raises(UsageError, match=hint):
        TTSEngine.from_pretrained("no/such-model", backend=backend, weights=weights)


@pytest.mark.parametrize("weights", [None, *INT8_STACKS, "int8-talker-groups-heads"])
def test_a_checkpoint_tells_which_of_its_stacks_are_int8(load_checkpoint, weights):
    talker = load_checkpoint("tiny-random").talker
    if weights:
        talker = quantization.quantize(talker, weights)
    expected = INT8_STACKS.get(weights, ("talker",) if weights else ())
    assert quantization.int8_stacks(talker) == expected


def test_the_engine_speaks_with_int8_weights():
    codes = {}
    for weights in (None, "int8"):
        with tiny_engine(backend="torch", weights=weights, dtype="bfloat16", device="cpu") as tts:
            speech = tts.synthesize("Hello.", voice="vivian", seed=1, max_frames=4)
            codes[weights] = speech.codes
    assert len(codes["int8"]) and not np.array_equal(codes[None], codes["int8"])
