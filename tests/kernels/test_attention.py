"""csrc/attention.cuh against attention written out in torch, cache and append included."""

import kernel_models as k
import pytest
import torch
from probes import AttentionProbe, Probes, random, with_poisoned_tail

from qwen_megakernel.kernel_library import Workspace
from qwen_megakernel.reference import rms_norm, rotary, rotate

SLOTS, CAPACITY, MAX_SPLITS = 3, 150, 64


@pytest.fixture(scope="module", params=["small", "projected", "wide"])
def probes(request) -> Probes:
    return Probes(k.small_config(**k.SHAPES[request.param]))


def run(probes: Probes, rows, blocks=2, peak=None):
    """rows: (slot, position, first row of its sequence in this pass)."""
    stack, n = probes.config.talker.stack, len(rows)
    shape = (SLOTS, stack.num_kv_heads, CAPACITY, stack.head_dim)
    keys, values = random(*shape, seed=1), random(*shape, seed=2)
    for slot, position, first in rows:  # nothing may be read that was not written yet
        start = position - (rows.index((slot, position, first)) - first)
        keys[slot, :, start:], values[slot, :, start:] = torch.nan, torch.nan
    if peak is not None:
        keys[rows[0][0], :, peak] *= 20  # one position outweighs all others
    expected_keys, expected_values = keys.clone(), values.clone()
    qkv = random(n, stack.q_size + 2 * stack.kv_size, seed=3)
    q_norm, k_norm = random(stack.head_dim, seed=4), random(stack.head_dim, seed=5)
    out = torch.full((n, stack.q_size), torch.nan)
    partials = torch.full((n * stack.num_heads * MAX_SPLITS * (stack.head_dim + 2),), torch.nan)
    tickets = torch.zeros(16, stack.num_kv_heads, dtype=torch.int32)
    workspace = Workspace(
        qkv=probes.address(with_poisoned_tail(qkv)),
        attention=probes.address(out),
        attention_partials=probes.address(partials),
        attention_tickets=probes.address(tickets),
    )
    params = AttentionProbe(
        stack=probes.stack(keys, values),
        workspace=workspace,
        head_norms=probes.address(with_poisoned_tail(torch.cat((q_norm, k_norm)))),
        num_rows=n,
    )
    for i, (slot, position, first) in enumerate(rows):
        params.slots[i], params.positions[i], params.first_rows[i] = slot, position, first
    assert probes.launch("attention", params, blocks) == 0
    assert not tickets.any()

    expected = torch.empty_like(out)
    for i, (slot, position, _) in enumerate(rows):
        q, key, value = qkv[i].split([stack.q_size, stack.kv_size, stack.kv_size])
        cos, sin = rotary(stack, torch.full((3, 1), position), torch.float32)
        q = rotate(rms_norm(q.view(1, -1, stack.head_dim), q_norm, 1e-6), cos, sin)[0]
        key = rotate(rms_norm(key.view(1, -1, stack.head_dim), k_norm, 1e-6), cos, sin)[0]
        expected_keys[slot, :, position] = key
        expected_values[slot, :, position] = value.view(-1, stack.head_dim)
        ratio = stack.num_heads // stack.num_kv_heads
        past_keys = expected_keys[slot, :, : position + 1].repeat_interleave(ratio, 0)
        past_values = expected_values[slot, :, : position + 1].repeat_interleave(ratio, 0)
        weights = torch.softmax((past_keys @ q[:, :, None])[..., 0] / stack.head_dim**0.5, -1)
        expected[i] = (weights[:, None] @ past_values).flatten()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(keys, expected_keys, rtol=1e-5, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(values, expected_values, rtol=0, atol=0, equal_nan=True)
    return out


@pytest.mark.parametrize("position", [0, 1, 31, 32, 63, 64, 140])
def test_one_row_at_every_edge_of_a_split(probes, position):
    run(probes, [(1, position, 0)])


def test_rows_of_different_streams_and_lengths(probes):
    run(probes, [(2, 100, 0), (0, 5, 1), (1, 33, 2)], blocks=2)


def test_rows_of_one_stream_see_those_before_them_in_the_pass(probes):
    run(probes, [(1, 28 + i, 0) for i in range(9)])  # across the edge of a split
    run(probes, [(0, i, 0) for i in range(16)])  # the start of a prompt


@pytest.mark.parametrize("peak", [0, 31, 32, 77, 99])
def test_the_largest_score_counts_wherever_it_is(probes, peak):
    run(probes, [(0, 100, 0)], peak=peak)


def test_any_grid_gives_the_same_bits(probes, monkeypatch):
    monkeypatch.setenv("EMULATION_SMS", "9")
    rows = [(0, 140, 0), (1, 20, 1)]
    expected = run(probes, rows)
    for blocks in (1, 5, 9):
        assert torch.equal(run(probes, rows, blocks), expected)
