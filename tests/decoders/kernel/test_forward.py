"""Prompts, whose rows are dealt to teams of blocks (csrc/forward.cuh)."""

import kernel_models as k
import pytest
import torch
from tolerances import KERNEL_PROMPT_BF16, KERNEL_PROMPT_F32

from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.decoders.plain import PlainDecoder

MAX_POSITIONS = 320
LENGTHS = [2, 17, 110, 129, 300]  # 128 rows are a pass, on eight blocks and more


@pytest.fixture(
    scope="module",
    params=[
        ("projected", torch.float32, None),
        pytest.param(("wide", torch.float32, None), marks=pytest.mark.ci),
        ("projected", torch.bfloat16, None),
        pytest.param(("projected", torch.float32, "int8"), marks=pytest.mark.slow),
    ],
    ids=["f32", "wide", "bf16", "int8"],
)
def decoders(request, make_decoder) -> tuple[KernelDecoder, PlainDecoder]:
    shape, dtype, weights = request.param
    checkpoint = k.checkpoint(shape, weights)
    return tuple(
        make_decoder(kind, checkpoint, dtype, max_positions=MAX_POSITIONS)
        for kind in (KernelDecoder, PlainDecoder)
    )


def prompt(decoder: KernelDecoder, n: int) -> torch.Tensor:
    width = decoder.config.talker.stack.hidden_size
    x = torch.randn(n, width, generator=torch.Generator().manual_seed(n))
    return x.to(decoder.dtype).float()


@pytest.mark.parametrize("n", LENGTHS)
def test_a_prompt_equals_the_reference(decoders, monkeypatch, n):
    kernel, plain = decoders
    k.emulate_blocks(monkeypatch, kernel, 9)
    x = prompt(kernel, n)
    stack = plain.talker
    expected = stack.forward(x.to(kernel.dtype), stack.new_cache(n), 0).float()
    error = (k.forward(kernel, x).cpu() - expected).abs().max()
    assert error < (KERNEL_PROMPT_F32 if kernel.dtype == torch.float32 else KERNEL_PROMPT_BF16)


@pytest.mark.parametrize("n", [5, 40, 150])
def test_no_grid_changes_a_bit(decoders, monkeypatch, n):
    kernel, _ = decoders
    k.emulate_blocks(monkeypatch, kernel, 11)
    x = prompt(kernel, n)
    expected = k.forward(kernel, x)
    for num_blocks in (1, 2, 3, 8):  # rows of a pass, and blocks of a team
        monkeypatch.setattr(kernel.launcher, "num_blocks", num_blocks)
        assert torch.equal(k.forward(kernel, x), expected)


@pytest.mark.parametrize("cut", [2, 37, 128])
def test_a_prompt_in_two_launches_has_the_same_bits(decoders, monkeypatch, cut):
    kernel, _ = decoders
    k.emulate_blocks(monkeypatch, kernel, 5)
    x = prompt(kernel, 140)
    expected = k.forward(kernel, x)
    parts = [k.forward(kernel, x[:cut], 2), k.forward(kernel, x[cut:], 2, first=cut)]
    assert torch.equal(torch.cat(parts), expected)


def test_the_last_row_is_what_the_first_frame_starts_from(decoders, monkeypatch):
    kernel, _ = decoders
    k.emulate_blocks(monkeypatch, kernel, 5)
    for n in (1, 30, 130):
        last = k.forward(kernel, prompt(kernel, n), 1, keep_last=True)[-1]
        buffers = kernel._buffers
        (kept,) = (each for each in buffers._alive if each.data_ptr() == buffers.slots.hidden)
        assert torch.equal(kept[1].cpu(), last)


def test_rope_positions_are_those_of_each_row(decoders, monkeypatch):
    kernel, _ = decoders
    k.emulate_blocks(monkeypatch, kernel, 4)
    n = 70
    x, own = prompt(kernel, n), torch.arange(n, dtype=torch.int32)
    whole = torch.stack([own, own.flip(0), own * 2 % n])
    expected = k.forward(kernel, x, rope_positions=whole)
    assert not torch.equal(expected, k.forward(kernel, x))
    parts = [
        k.forward(kernel, x[:50], 2, rope_positions=whole[:, :50]),
        k.forward(kernel, x[50:], 2, first=50, rope_positions=whole[:, 50:]),
    ]
    assert torch.equal(torch.cat(parts), expected)


def test_what_was_in_the_cache_behind_a_prompt_does_not_matter(decoders):
    kernel, _ = decoders
    long, short = prompt(kernel, 200), prompt(kernel, 40)
    expected = k.forward(kernel, short, 3)
    k.forward(kernel, long, 1)
    assert torch.equal(k.forward(kernel, short, 1), expected)
