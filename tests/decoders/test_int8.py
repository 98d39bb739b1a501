"""Weight-only int8: the matrix, and the decoders on it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_speech import tiny_engine
from torch import Tensor

from qwen_megakernel.choices import INT8_STACKS, WEIGHTS
from qwen_megakernel.decoders import int8 as int8_weights
from qwen_megakernel.decoders.backends import Backend, choose_backend, make_decoder
from qwen_megakernel.decoders.int8 import Int8Matrix
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import UsageError
from qwen_megakernel.records import Prefill, Sampling

CPU = torch.device("cpu")


def random_matrix(rows: int = 48, cols: int = 64) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    spread = torch.logspace(-3, 1, rows)[:, None]  # rows of very different size
    return spread * torch.randn(rows, cols, generator=generator)


def widened(matrix: Int8Matrix) -> Tensor:
    return matrix.values.double() * matrix.scales.double()[:, None]


def test_no_weight_is_further_than_half_a_step_of_its_row():
    weight = random_matrix()
    weight[5] = 0
    matrix = Int8Matrix.of(weight)
    step = weight.abs().amax(dim=1) / 127
    error = (widened(matrix) - weight).abs()
    assert (error <= 0.5001 * step[:, None]).all()
    assert matrix.values.abs().amax(dim=1)[6] == 127 and not matrix.values[5].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 64), (2, 64), (3, 2, 64)])
def test_products_are_those_of_the_widened_matrix(dtype: torch.dtype, shape: tuple[int, ...]):
    matrix = Int8Matrix.of(random_matrix()).to(device=CPU, dtype=dtype)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    expected = x.double() @ widened(matrix).T
    actual = int8_weights.linear(x, matrix)
    assert actual.shape == expected.shape and actual.dtype == dtype
    # bf16: the sum is float32, then scaled and rounded.
    tolerance = 3 * 2.0**-9 if dtype == torch.bfloat16 else 1e-6
    size = x.double().abs() @ widened(matrix).abs().T
    assert ((actual - expected).abs() <= tolerance * size).all()


def test_rows_under_each_other_are_the_matrices():
    weight = random_matrix()
    whole, parts = Int8Matrix.of(weight), [Int8Matrix.of(part) for part in weight.split(20)]
    together = int8_weights.cat(parts)
    assert torch.equal(together.values, whole.values) and torch.equal(together.scales, whole.scales)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_only_the_named_layers_are_int8(load_checkpoint, weights):
    loaded = load_checkpoint("tiny-random-1.7b")
    changed = int8_weights.quantize(loaded.talker, weights)
    kinds = {name: isinstance(value, Int8Matrix) for name, value in changed.items()}
    layers = {name for name in kinds if ".layers." in name and name.endswith("_proj.weight")}
    if weights == "int8-talker":
        layers = {name for name in layers if not name.startswith("code_predictor")}
    assert {name for name, is_int8 in kinds.items() if is_int8} == layers
    assert not any(isinstance(value, Int8Matrix) for value in loaded.talker.values())


def drawn(loaded, backend: str, weights: str | None, frames: int = 6) -> np.ndarray:
    sizes = DecoderSizes(1, 64, 8, device=CPU, dtype=torch.float32)
    decoder = make_decoder(loaded, Backend(backend, CPU, ""), sizes, weights)
    generator = torch.Generator().manual_seed(6)
    rows = 0.5 * torch.randn(9, loaded.config.talker.stack.hidden_size, generator=generator)
    prefill = Prefill(rows[:-1], rows[:0], rows[-1])
    decoder.prefill(0, prefill, Sampling(), seed=3, part=0)
    return decoder.step([0], frames).codes[0]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_both_torch_decoders_draw_the_same_codes_from_int8_weights(load_checkpoint, weights):
    loaded = load_checkpoint("tiny-random")
    codes = drawn(loaded, "torch", weights)
    np.testing.assert_array_equal(codes, drawn(loaded, "graph", weights))
    assert not np.array_equal(codes, drawn(loaded, "torch", None))


def test_they_are_the_codes_of_the_widened_weights(load_checkpoint):
    """int8 changes what the weights are, not what is computed from them."""
    loaded = load_checkpoint("tiny-random")
    int8 = int8_weights.quantize(loaded.talker, "int8")
    wide = {
        name: widened(value).float() if isinstance(value, Int8Matrix) else value
        for name, value in int8.items()
    }
    codes = drawn(replace(loaded, talker=wide), "torch", None)
    np.testing.assert_array_equal(codes, drawn(loaded, "torch", "int8"))


def test_only_known_kinds_are_accepted():
    with pytest.raises(UsageError, match="int4"):
        choose_backend("torch", "cpu", "int4")


@pytest.mark.parametrize("weights", [None, *WEIGHTS])
def test_a_checkpoint_tells_which_of_its_stacks_are_int8(load_checkpoint, weights):
    talker = load_checkpoint("tiny-random").talker
    if weights:
        talker = int8_weights.quantize(talker, weights)
    assert int8_weights.int8_stacks(talker) == INT8_STACKS.get(weights, ())


def test_the_engine_speaks_with_int8_weights():
    codes = {}
    for weights in (None, "int8"):
        with tiny_engine(weights=weights, device="cpu", dtype="bfloat16") as tts:
            speech = tts.synthesize("Hello.", voice="vivian", seed=1, max_frames=4)
            codes[weights] = speech.codes
    assert len(codes["int8"]) and not np.array_equal(codes[None], codes["int8"])
