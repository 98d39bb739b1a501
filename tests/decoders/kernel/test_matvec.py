"""csrc/matvec.cuh and csrc/weights.cuh against torch."""

import kernel_models as k
import pytest
import torch
from probes import MatvecProbe, Probes, random, with_poisoned_tail
from tolerances import KERNEL_ONE_TERM, KERNEL_PRODUCT_BF16, KERNEL_PRODUCT_F32

from qwen_megakernel.decoders.kernel import packing
from qwen_megakernel.decoders.quantization import QuantizedMatrix

TOLERANCES = {torch.float32: KERNEL_PRODUCT_F32, torch.bfloat16: KERNEL_PRODUCT_BF16}


@pytest.fixture(
    scope="module",
    params=[pytest.param(torch.float32, marks=pytest.mark.ci), torch.bfloat16],
    ids=["f32", "bf16"],
)
def probes(request) -> Probes:
    return Probes(k.small_config(**k.SHAPES["wide"]), request.param)


@pytest.fixture(params=[False, True], ids=["", "int8"])
def is_int8(request) -> bool:
    return request.param


def run(probes: Probes, x, weight, norm=None, *, blocks=2, passes=1):
    """Return y [len(x), rows of weight]; `weight` is a tensor or an `QuantizedMatrix`."""
    scales = None
    if isinstance(weight, QuantizedMatrix):
        packed = packing.pack_int8(weight.values)
        scales = with_poisoned_tail(weight.scales / packing.INT8_UNIT)
        num_rows = len(weight.scales)
    else:
        packed, num_rows = packing.pack(weight.to(probes.dtype)), len(weight)
    num_inputs = len(x)
    y = torch.full((num_inputs, num_rows), torch.nan)
    if norm is not None:
        norm = with_poisoned_tail(norm.to(probes.dtype))
    packed, x = with_poisoned_tail(packed), with_poisoned_tail(x)
    addresses = map(probes.address, (packed, scales, x, norm, y))
    params = MatvecProbe(*addresses, num_inputs, passes)
    assert probes.launch("matvec", params, blocks) == 0
    return y


def operands(probes: Probes, num_rows: int, normed: bool, is_int8: bool):
    stack = probes.config.talker.stack
    rows, cols = stack.hidden_size, stack.intermediate_size
    if normed:
        rows, cols = stack.q_size + 2 * stack.kv_size, stack.hidden_size
    weight = random(rows, cols, seed=1).to(probes.dtype).float()
    return random(num_rows, cols, seed=2), QuantizedMatrix.of(weight) if is_int8 else weight


@pytest.mark.parametrize("num_rows", [1, 2, 8, 9, 16])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_equals_torch(probes, monkeypatch, num_rows, normed, is_int8):
    monkeypatch.setenv("EMULATION_LAZY_COPIES", "1")
    x, weight = operands(probes, num_rows, normed, is_int8)
    norm = random(x.shape[1], seed=3).to(probes.dtype).float() if normed else None
    y = run(probes, x, weight, norm)
    expected = x
    if normed:
        scale = torch.rsqrt(x.double().square().mean(1, keepdim=True) + 1e-6)
        expected = x.double() * scale * norm.double()
    exact = weight
    if is_int8:
        exact = weight.values.double() * weight.scales.double()[:, None]
    expected = expected.double() @ exact.double().T
    assert (y - expected).norm() / expected.norm() < TOLERANCES[probes.dtype]


def test_every_row_and_column_is_reached_once(probes, is_int8):
    """A 1 at each place of the matrix in turn must reach the right output."""
    stack = probes.config.talker.stack
    rows, cols = stack.q_size + 2 * stack.kv_size, stack.hidden_size
    x = torch.eye(cols)
    values = torch.arange(rows * cols).reshape(rows, cols).remainder(251) - 125  # every byte
    matrix, weight = values.float(), values.float()
    if is_int8:
        scales = 1 + torch.arange(rows) / 8
        matrix, weight = QuantizedMatrix(values.to(torch.int8), scales), weight * scales[:, None]
    norm = torch.ones(cols)
    for first in range(0, cols, 16):
        y = run(probes, x[first : first + 16], matrix, norm)
        scale = (1 / cols + 1e-6) ** -0.5
        torch.testing.assert_close(
            y, scale * weight[:, first : first + 16].T, rtol=KERNEL_ONE_TERM, atol=0
        )


@pytest.mark.parametrize("blocks", [1, 3, 7, 8, 11])
def test_any_grid_gives_the_same_bits(probes, monkeypatch, blocks, is_int8):
    monkeypatch.setenv("EMULATION_SMS", "16")
    x, weight = operands(probes, 3, False, is_int8)
    assert torch.equal(run(probes, x, weight, blocks=blocks), run(probes, x, weight))


def test_a_row_has_the_same_bits_in_any_company(probes, is_int8):
    x, weight = operands(probes, 16, False, is_int8)
    alone = run(probes, x[:1], weight)
    for num_rows in (2, 8, 9, 16):
        assert torch.equal(run(probes, x[:num_rows], weight)[:1], alone)


def test_a_row_that_is_not_finite_leaves_the_others(probes, is_int8):
    """The zeros that pad a tile of int8 must not be multiplied with another row's values either."""
    x, weight = operands(probes, 16, False, is_int8)
    clean = run(probes, x, weight)
    x[0] = torch.nan
    assert torch.equal(run(probes, x, weight)[1:], clean[1:])


def test_a_matrix_that_follows_itself_is_found_in_the_ring(probes, monkeypatch, is_int8):
    monkeypatch.setenv("EMULATION_LAZY_COPIES", "1")
    x, weight = operands(probes, 2, False, is_int8)
    assert torch.equal(run(probes, x, weight, passes=3), run(probes, x, weight))


@pytest.mark.parametrize("dtype, columns", [(torch.bfloat16, 8), (torch.float32, 4)])
def test_pack_gives_every_lane_sixteen_bytes_of_a_row(dtype, columns):
    weight = torch.arange(16 * 96).remainder(251).reshape(16, 96).to(dtype)  # 1.5 tiles
    pieces = 64 // (4 * columns)
    tiles = packing.pack(weight).reshape(2, 2, pieces, 8, 4, columns)
    for tile, piece, quarter in ((0, 0, 2), (0, 1, 0), (1, 0, 3)):
        first = 64 * tile + 4 * columns * piece + columns * quarter
        assert torch.equal(tiles[1, tile, piece, 3, quarter], weight[11, first : first + columns])
    assert not tiles[:, 1, pieces // 2 :].any()  # columns 96 to 127


def test_pack_int8_puts_two_halves_side_by_side_and_fills_up_with_zeros():
    weight = torch.arange(16 * 96).reshape(16, 96).remainder(128).to(torch.int8)  # 1.5 tiles
    tiles = packing.pack_int8(weight).reshape(2, 2, 8, 4, 2, 2, 4)
    for place, column in (((0, 2, 0, 0), 16), ((0, 2, 1, 1), 32 + 20), ((1, 2, 0, 0), 64 + 16)):
        tile, *rest = place
        four = tiles[(1, tile, 3, *rest)]
        assert torch.equal(four, weight[8 + 3, column : column + 4][[0, 3, 1, 2]])
    assert not tiles[:, 1, :, :, 1].any()


def test_pack_int8_keeps_signs_apart_from_magnitudes():
    weight = torch.zeros(8, 64, dtype=torch.int8)
    weight[0, :4] = torch.tensor([-1, 2, -3, 127])
    four = packing.pack_int8(weight)[:4]
    assert four.tolist() == [1 | 0x80, 127 | 0x80, 2, 3]  # signs of columns 2, 0, 3, 1
