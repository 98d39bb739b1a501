"""csrc/matvec.cuh and csrc/weights.cuh against torch."""

import kernel_models as k
import pytest
import torch
from probes import MatvecProbe, Probes, random, with_poisoned_tail

from qwen_megakernel import packing

# hi + lo activations lose 2^-17, bf16 weights are exact on both sides; sums of n = 2080 products.
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2e-5}


@pytest.fixture(scope="module", params=TOLERANCES, ids=["f32", "bf16"])
def probes(request) -> Probes:
    return Probes(k.small_config(**k.SHAPES["wide"]), request.param)


def run(probes: Probes, x, weight, norm=None, *, blocks=2, passes=1):
    y = torch.full((len(x), len(weight)), torch.nan)
    packed = with_poisoned_tail(packing.pack(weight.to(probes.dtype)))
    if norm is not None:
        norm = with_poisoned_tail(norm.to(probes.dtype))
    params = MatvecProbe(
        probes.address(packed),
        probes.address(with_poisoned_tail(x)),
        probes.address(norm),
        probes.address(y),
        len(x),
        passes,
    )
    assert probes.launch("matvec", params, blocks) == 0
    return y


def operands(probes: Probes, num_rows: int, normed: bool):
    stack = probes.config.talker.stack
    rows, cols = stack.hidden_size, stack.intermediate_size
    if normed:
        rows, cols = stack.q_size + 2 * stack.kv_size, stack.hidden_size
    weight = random(rows, cols, seed=1).to(probes.dtype).float()
    return random(num_rows, cols, seed=2), weight


@pytest.mark.parametrize("num_rows", [1, 2, 8, 9, 16])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_equals_torch(probes, monkeypatch, num_rows, normed):
    monkeypatch.setenv("EMULATION_LAZY_COPIES", "1")
    x, weight = operands(probes, num_rows, normed)
    norm = random(x.shape[1], seed=3).to(probes.dtype).float() if normed else None
    y = run(probes, x, weight, norm)
    expected = x
    if normed:
        scale = torch.rsqrt(x.double().square().mean(1, keepdim=True) + 1e-6)
        expected = x.double() * scale * norm.double()
    expected = expected.double() @ weight.double().T
    assert (y - expected).norm() / expected.norm() < TOLERANCES[probes.dtype]


def test_every_row_and_column_is_reached_once(probes):
    """A one planted at every place of the matrix in turn lands where it belongs."""
    stack = probes.config.talker.stack
    rows, cols = stack.q_size + 2 * stack.kv_size, stack.hidden_size
    x = torch.eye(cols)
    weight = torch.arange(rows * cols).reshape(rows, cols).remainder(251).float()
    norm = torch.ones(cols)
    for first in range(0, cols, 16):
        y = run(probes, x[first : first + 16], weight, norm)
        scale = (1 / cols + 1e-6) ** -0.5
        torch.testing.assert_close(y, scale * weight[:, first : first + 16].T, rtol=1e-5, atol=0)


@pytest.mark.parametrize("blocks", [1, 3, 7, 8, 11])
def test_any_grid_gives_the_same_bits(probes, monkeypatch, blocks):
    monkeypatch.setenv("EMULATION_SMS", "16")
    x, weight = operands(probes, 3, normed=False)
    assert torch.equal(run(probes, x, weight, blocks=blocks), run(probes, x, weight))


def test_a_row_has_the_same_bits_in_any_company(probes):
    x, weight = operands(probes, 16, normed=False)
    alone = run(probes, x[:1], weight)
    for num_rows in (2, 8, 9, 16):
        assert torch.equal(run(probes, x[:num_rows], weight)[:1], alone)


def test_a_matrix_that_follows_itself_is_found_in_the_ring(probes, monkeypatch):
    monkeypatch.setenv("EMULATION_LAZY_COPIES", "1")
    x, weight = operands(probes, 2, normed=False)
    assert torch.equal(run(probes, x, weight, passes=3), run(probes, x, weight))


def test_pack_puts_eight_columns_of_a_row_next_to_each_other():
    weight = torch.arange(16 * 64).reshape(16, 64)
    tiles = packing.pack(weight).reshape(2, 2, 8, 4, 8)
    assert torch.equal(tiles[1, 0, 3, 2], weight[8 + 3, 16:24])
    assert torch.equal(tiles[0, 1, 7, 0], weight[7, 32:40])
