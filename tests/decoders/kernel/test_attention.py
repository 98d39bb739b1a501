"""Every attention of csrc/, compared with attention written in torch, with its cache."""

import functools
from collections.abc import Callable
from dataclasses import replace

import kernel_models as k
import pytest
import torch
from probes import AttentionProbe, Probes, random, with_poisoned_tail
from tolerances import ATTENTION_BF16, ATTENTION_F32, KEYS_BF16, KEYS_F32, ROUNDING_F32

from qwen_megakernel.decoders.kernel.library import Workspace
from qwen_megakernel.decoders.layers import rms_norm, rotary, rotate

SLOTS, CAPACITY, MAX_SPLITS = 3, 150, 64
NUM_CODES = 20  # two products, of which the second is not full


# Three heads share keys; half of the last tile that o_proj reads is padding.
ODD = {name: {"num_heads": 3, "num_kv_heads": 1} for name in ("talker", "predictor")}


def ci(value):
    """Mark all shapes `ci` but two; of prompts and short contexts all but one in float32."""
    return pytest.param(value, marks=pytest.mark.ci)


DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float32, ci(torch.bfloat16)], ids=["float32", "bfloat16"]
)


@pytest.fixture(scope="module", params=["small", ci("projected"), ci("wide"), "odd"])
def probes(request) -> Probes:
    return Probes(k.small_config(**k.SHAPES.get(request.param, ODD)))


@pytest.fixture(scope="module", params=["odd", ci("projected"), ci("wide")])
def short_probes(request) -> Callable[[torch.dtype], Probes]:
    config = k.small_config(**k.SHAPES.get(request.param, ODD))
    config = replace(config, talker=replace(config.talker, num_code_groups=NUM_CODES))
    return functools.cache(lambda dtype: Probes(config, dtype))


def run(probes: Probes, rows, blocks=2, peak=None, probe="attention"):
    """Run the probe; `rows` has (slot, position, first row of its sequence in this pass)."""
    is_short, dtype, n = probe == "short_attention", probes.dtype, len(rows)
    stack = probes.config.predictor.stack if is_short else probes.config.talker.stack
    capacity = NUM_CODES if is_short else max(CAPACITY, *(position + 10 for _, position, _ in rows))
    shape = (SLOTS, stack.num_kv_heads, capacity, stack.head_dim)
    keys, values = random(*shape, seed=1).to(dtype), random(*shape, seed=2).to(dtype)
    for slot, position, first in rows:  # nothing may be read that was not written yet
        start = position - (rows.index((slot, position, first)) - first)
        keys[slot, :, start:], values[slot, :, start:] = torch.nan, torch.nan
    if peak is not None:
        keys[rows[0][0], :, peak] *= 20  # one position outweighs all others
    expected_keys, expected_values = keys.clone(), values.clone()
    qkv = random(n, stack.q_size + 2 * stack.kv_size, seed=3)
    q_norm = random(stack.head_dim, seed=4).to(dtype)
    k_norm = random(stack.head_dim, seed=5).to(dtype)
    out = torch.full((n, stack.q_size), torch.nan)
    partials = torch.full((n * stack.num_heads * MAX_SPLITS * (stack.head_dim + 2),), torch.nan)
    tickets = torch.zeros(16, stack.num_kv_heads, dtype=torch.int32)
    addresses = {"qkv": with_poisoned_tail(qkv), "attention": out}
    addresses |= {"attention_partials": partials, "attention_tickets": tickets}
    workspace = Workspace(**{name: probes.address(x) for name, x in addresses.items()})
    params = AttentionProbe(
        stack=probes.stack(keys, values, "predictor" if is_short else "talker"),
        workspace=workspace,
        head_norms=probes.address(with_poisoned_tail(torch.cat((q_norm, k_norm)))),
        num_rows=n,
    )
    for i, (slot, position, first) in enumerate(rows[: len(params.slots)]):
        params.slots[i], params.positions[i], params.first_rows[i] = slot, position, first
    assert probes.launch(probe, params, blocks) == 0
    assert not tickets.any()

    expected = torch.empty_like(out)
    for i, (slot, position, _) in enumerate(rows):
        q, key, value = qkv[i].split([stack.q_size, stack.kv_size, stack.kv_size])
        cos, sin = rotary(stack, torch.full((3, 1), position), torch.float32)
        norms = q_norm.float(), k_norm.float()
        q = rotate(rms_norm(q.view(1, -1, stack.head_dim), norms[0], 1e-6), cos, sin)[0]
        key = rotate(rms_norm(key.view(1, -1, stack.head_dim), norms[1], 1e-6), cos, sin)[0]
        expected_keys[slot, :, position] = key
        expected_values[slot, :, position] = value.view(-1, stack.head_dim)
        ratio = stack.num_heads // stack.num_kv_heads
        past_keys = expected_keys[slot, :, : position + 1].float().repeat_interleave(ratio, 0)
        past_values = expected_values[slot, :, : position + 1].float().repeat_interleave(ratio, 0)
        weights = torch.softmax((past_keys @ q[:, :, None])[..., 0] / stack.head_dim**0.5, -1)
        expected[i] = (weights[:, None] @ past_values).flatten()
    near = ATTENTION_F32 if dtype == torch.float32 else ATTENTION_BF16
    torch.testing.assert_close(out, expected, rtol=near, atol=near)
    near = KEYS_F32 if dtype == torch.float32 else KEYS_BF16
    torch.testing.assert_close(keys, expected_keys, rtol=near, atol=ROUNDING_F32, equal_nan=True)
    torch.testing.assert_close(values, expected_values, rtol=0, atol=0, equal_nan=True)
    return out


# A part is 64 positions, which a warp sees four at a time; parts are merged eight at a time, those
# behind the first 32 by other lanes; behind 4096 positions parts grow.
@pytest.mark.parametrize("position", [0, 1, 31, 32, 63, 64, 127, 128, 140, 256, 600, 2100, 4200])
def test_one_row_at_every_edge_of_a_split(probes, position):
    run(probes, [(1, position, 0)])


def test_rows_of_different_streams_and_lengths(probes):
    run(probes, [(2, 100, 0), (0, 5, 1), (1, 33, 2)], blocks=2)


def test_rows_of_one_stream_see_those_before_them_in_the_pass(probes):
    run(probes, [(0, i, 0) for i in range(16)])
    for count, edge in ((2, 64), (9, 128)):  # some rows are in the next part
        run(probes, [(1, edge - 1 + i, 0) for i in range(count)])


@pytest.mark.parametrize("peak", [0, 31, 32, 63, 64, 77, 99])
def test_the_largest_score_counts_wherever_it_is(probes, peak):
    run(probes, [(0, 100, 0)], peak=peak)


def prompt_rows(first_position, count):
    return [(1, first_position + i, 0) for i in range(count)]


@pytest.fixture(scope="module", params=[32, ci(128)], ids=["short heads", "long heads"])
def prompt_probes(request) -> Callable[[torch.dtype], Probes]:
    # A chunk is 128 positions of short heads in float32, 32 of long ones; in bf16 twice as many.
    config = k.small_config(talker={"head_dim": request.param, "num_heads": 3, "num_kv_heads": 1})
    return functools.cache(lambda dtype: Probes(config, dtype))


@DTYPES
@pytest.mark.parametrize(
    ("first_position", "count"),
    # One row and more than a warp; up to, at and behind the edges of chunks; with cached ones.
    [(0, 2), (0, 8), (0, 31), (0, 33), (0, 128), (1, 20), (31, 2), (63, 66), (256, 9), (600, 128)],
)
def test_rows_of_a_prompt_see_the_cache_and_each_other(prompt_probes, first_position, count, dtype):
    run(prompt_probes(dtype), prompt_rows(first_position, count), probe="prompt_attention")


@DTYPES
def test_a_prompt_has_the_same_bits_on_any_grid(prompt_probes, monkeypatch, dtype):
    monkeypatch.setenv("EMULATION_SMS", "9")
    probes, rows = prompt_probes(dtype), prompt_rows(5, 70)
    expected = run(probes, rows, probe="prompt_attention")
    for blocks in (1, 5, 9):
        assert torch.equal(run(probes, rows, blocks, probe="prompt_attention"), expected)


@pytest.mark.parametrize("peak", [0, 31, 32, 63, 64, 77, 99])
def test_the_largest_score_of_a_prompt_counts_wherever_it_is(prompt_probes, peak):
    rows = prompt_rows(100, 3)
    run(prompt_probes(torch.float32), rows, peak=peak, probe="prompt_attention")


SHORT = [
    # few enough rows for every block
    [(1, 0, 0)],
    [(0, 7, 0)],
    [(2, 16, 0)],
    [(1, 19, 0)],
    [(2, 0, 0), (2, 1, 0)],
    [(0, 14, 0), (0, 15, 0)],
    # too many
    [(0, i, 0) for i in range(16)],
    [(0, 12, 0), (2, 3, 1), (1, 19, 2)],
    [(1, 0, 0), (1, 1, 0), (0, 4, 2), (0, 5, 2), (2, 0, 4), (2, 1, 4)],
]


@DTYPES
@pytest.mark.parametrize("rows", SHORT)
def test_a_short_context_is_every_blocks_own_or_one_blocks(short_probes, rows, dtype):
    run(short_probes(dtype), rows, probe="short_attention")


@DTYPES
def test_a_short_context_has_the_same_bits_alone_and_in_company(short_probes, dtype):
    for position in (0, 12, 19):
        alone = [(1, position, 0)]
        rows = [*alone, (0, 5, 1), (2, 14, 2)]
        own, together = (
            run(short_probes(dtype), each, probe="short_attention") for each in (alone, rows)
        )
        expected = together[0]
        if dtype == torch.bfloat16:  # split in two numbers, as o_proj needs it
            hi = expected.bfloat16().float()
            expected = hi + (expected - hi).bfloat16().float()
        assert torch.equal(own[0], expected)


def test_any_grid_gives_the_same_bits(probes, monkeypatch):
    monkeypatch.setenv("EMULATION_SMS", "9")
    rows = [(0, 140, 0), (1, 20, 1)]
    expected = run(probes, rows)
    for blocks in (1, 5, 9):
        assert torch.equal(run(probes, rows, blocks), expected)
