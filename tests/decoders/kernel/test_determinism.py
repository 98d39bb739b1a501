"""A stream has the same codes, and the same bits, beside any other streams."""

import kernel_models as k
import numpy as np
import pytest
import torch

from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.speech_options import Sampling

SAMPLED = Sampling()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((torch.float32, None), marks=pytest.mark.ci),
        (torch.bfloat16, None),
        pytest.param((torch.float32, "int8"), marks=pytest.mark.ci),
        pytest.param((torch.bfloat16, "int8-talker"), marks=pytest.mark.slow),
    ],
    ids=["f32", "bf16", "int8", "bf16-int8-talker"],
)
def decoder(request, make_decoder) -> KernelDecoder:
    dtype, weights = request.param
    return make_decoder(KernelDecoder, k.checkpoint("projected", weights), dtype, num_slots=16)


def run(decoder: KernelDecoder, slot: int, num_frames: int = 4, neighbours=(), seed: int = 3):
    """Return codes and logits of one stream, decoded beside `neighbours` in other slots."""
    slots = [slot, *neighbours]
    for index, each in enumerate(slots):
        k.start(decoder, each, SAMPLED, seed=seed + 10 * index, positions=5 + 3 * index)
    taps: dict[str, torch.Tensor] = {}
    codes = decoder.step(slots, num_frames, taps=taps).codes[0]
    return codes, taps["talker"][0], taps["predictor"][0]


def assert_same_bits(first, second):
    np.testing.assert_array_equal(first[0], second[0])
    for one, other in zip(first[1:], second[1:], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 7])
def test_the_grid_does_not_matter(decoder, monkeypatch, num_blocks):
    k.emulate_blocks(monkeypatch, decoder, 7)
    expected = run(decoder, 0)
    monkeypatch.setattr(decoder.launcher, "num_blocks", num_blocks)
    assert_same_bits(run(decoder, 0), expected)


@pytest.mark.parametrize("num_neighbours", [1, 7, 8, 15])
def test_neighbours_do_not_matter(decoder, num_neighbours):
    # From 8 streams on, a row no longer shares its product with its low half; from 9 on, predictor
    # rows 0 and 1 of all streams no longer fit one pass.
    expected = run(decoder, 9)
    others = [slot for slot in range(16) if slot != 9][:num_neighbours]
    assert_same_bits(run(decoder, 9, neighbours=others), expected)


def test_the_slot_does_not_matter(decoder):
    assert_same_bits(run(decoder, 13), run(decoder, 2))


def test_how_frames_are_cut_into_launches_does_not_matter(decoder):
    k.start(decoder, 0, SAMPLED, seed=3, positions=5)
    whole = decoder.step([0], 6).codes[0]
    k.start(decoder, 0, SAMPLED, seed=3, positions=5)
    parts = [decoder.step([0], n).codes[0] for n in (1, 3, 2)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_streams_that_join_and_leave_between_launches_do_not_matter(decoder):
    expected = run(decoder, 0, num_frames=6)[0]
    k.start(decoder, 0, SAMPLED, seed=3, positions=5)
    codes = [decoder.step([0], 2).codes[0]]
    k.start(decoder, 4, SAMPLED, seed=8)
    codes.append(decoder.step([4, 0], 2).codes[1])
    k.start(decoder, 7, SAMPLED, seed=9)
    codes.append(decoder.step([7, 0], 2).codes[1])
    np.testing.assert_array_equal(np.concatenate(codes), expected)


@pytest.mark.parametrize("seed", range(1, 9))
def test_the_order_of_threads_and_blocks_does_not_matter(decoder, monkeypatch, seed):
    k.emulate_blocks(monkeypatch, decoder, 3)
    expected = run(decoder, 0, num_frames=1)
    monkeypatch.setenv("EMULATION_SEED", str(seed))
    assert_same_bits(run(decoder, 0, num_frames=1), expected)


def test_part_and_seed_choose_other_codes(decoder):
    def draw(seed: int, part: int) -> np.ndarray:
        k.start(decoder, 0, SAMPLED, seed=3)
        decoder._states[0].seed, decoder._states[0].part = seed, part
        return decoder.step([0], 3).codes

    same = draw(2**40, 0)
    assert not np.array_equal(draw(2**40 + 1, 0), same)
    assert not np.array_equal(draw(2**41, 0), same)  # the upper 32 bits count
    assert not np.array_equal(draw(2**40, 1), same)
    np.testing.assert_array_equal(draw(2**40, 0), same)
