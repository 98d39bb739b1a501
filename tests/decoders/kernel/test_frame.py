"""Whole frames of the kernel (csrc/frame.cuh) against the plain decoder."""

import kernel_models as k
import numpy as np
import pytest
import torch
from tolerances import KERNEL_LOGITS_BF16, KERNEL_LOGITS_F32

from qwen_megakernel.decoders.graph.decoder import GraphDecoder
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.speech_options import Sampling

GREEDY = Sampling.greedy()
SAMPLED = Sampling()


def assert_same(kernel, reference, slots, num_frames, sampling, seeds=(5, 6, 7)):
    for slot, seed in zip(slots, seeds, strict=False):
        for decoder in (kernel, reference):
            k.start(decoder, slot, sampling, seed=seed, positions=7 + seed)
    return k.step_alike(kernel, reference, slots, num_frames)


each_sampling = pytest.mark.parametrize(
    "sampling", [GREEDY, SAMPLED, k.NARROW], ids=["greedy", "sampled", "top_p"]
)

# Each shape and precision takes ten seconds to compile; a default run has those of most tests.
ci = pytest.mark.ci


@pytest.mark.parametrize(
    "shape", ["small", *(pytest.param(shape, marks=ci) for shape in ("projected", "wide"))]
)
@each_sampling
def test_codes_equal_the_reference(both, shape, sampling):
    result = assert_same(*both(k.checkpoint(shape)), [2, 0, 3], 6, sampling)
    assert len(np.unique(result.codes)) > 20  # not stuck


@pytest.mark.parametrize(
    "weights", [pytest.param("int8", marks=ci), pytest.param("int8-talker", marks=pytest.mark.slow)]
)
@each_sampling
def test_codes_equal_the_reference_with_int8_layers(both, weights, sampling):
    assert_same(*both(k.checkpoint("projected", weights)), [2, 0, 3], 6, sampling)


@pytest.mark.parametrize("name", ["tiny-random", pytest.param("tiny-random-1.7b", marks=ci)])
def test_codes_equal_the_reference_on_a_checkpoint(both, load_checkpoint, name):
    assert_same(*both(load_checkpoint(name)), [1, 3], 4, SAMPLED)


def test_eos_ends_a_stream_and_leaves_its_neighbours(both):
    kernel, reference = both(k.checkpoint(eos_gain=2.5), num_slots=6)
    result = assert_same(kernel, reference, [4, 1, 5, 0], 12, SAMPLED, seeds=(1, 2, 3, 4))
    assert any(result.ended) and not all(result.ended)
    assert min(result.num_frames) < 12


@pytest.mark.parametrize("kind", [KernelDecoder, GraphDecoder])
def test_eos_is_not_drawn_in_the_first_two_frames(make_decoder, kind):
    checkpoint = k.checkpoint()
    checkpoint.talker["codec_head.weight"][:] = 0
    checkpoint.talker["codec_head.weight"][checkpoint.config.talker.codec_eos_id] = 1.0
    decoders = (make_decoder(each, checkpoint) for each in (kind, PlainDecoder))
    result = assert_same(*decoders, [0, 1], 5, GREEDY, seeds=(5, 26))
    # EOS has the best logit or the worst one, by the sign of the sum over the hidden state.
    assert (result.num_frames, result.ended) == ((5, 2), (False, True))


def test_a_long_context_is_split_and_merged(both):
    kernel, reference = both(k.checkpoint(), max_positions=512, num_blocks=2)
    for decoder in (kernel, reference):
        k.start(decoder, 0, GREEDY, seed=1, positions=150)
    ours, theirs = kernel.step([0], 3), reference.step([0], 3)
    np.testing.assert_array_equal(ours.codes, theirs.codes)


@pytest.mark.parametrize("counts", [(1,) * 9, (2, 1, 2, 2, 2)], ids=["singly", "in pairs"])
@pytest.mark.parametrize("kind", [KernelDecoder, GraphDecoder])
def test_text_rows_that_arrive_between_frames_are_used(make_decoder, kind, counts):
    checkpoint, kinds = k.checkpoint(), (kind, PlainDecoder)
    decoders = [make_decoder(each, checkpoint) for each in kinds]
    rows = torch.randn(9, 64, generator=torch.Generator().manual_seed(3))
    for decoder in decoders:
        k.start(decoder, 0, GREEDY, seed=1)
    for index, added in enumerate(rows.split(counts)):
        for decoder in decoders:
            decoder.add_text(0, added.to(decoder.embeddings.device))
        k.step_alike(*decoders, [0], len(added) + (index == 0))


@pytest.mark.parametrize(
    ("dtype", "weights", "tolerance"),
    [
        pytest.param(torch.float32, None, KERNEL_LOGITS_F32, marks=ci),
        pytest.param(torch.float32, "int8", KERNEL_LOGITS_F32, marks=ci),
        (torch.bfloat16, None, KERNEL_LOGITS_BF16),
        pytest.param(torch.bfloat16, "int8", KERNEL_LOGITS_BF16, marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, "int8-talker", KERNEL_LOGITS_BF16, marks=pytest.mark.slow),
    ],
)
def test_logits_agree_under_teacher_forcing(make_decoder, dtype, weights, tolerance):
    checkpoint = k.checkpoint("projected", weights)
    kernel = make_decoder(KernelDecoder, checkpoint, dtype)
    reference = make_decoder(PlainDecoder, checkpoint, dtype)
    forced = torch.randint(0, 128, (1, 5, 4), generator=torch.Generator().manual_seed(9))
    for decoder in (kernel, reference):
        k.start(decoder, 1, GREEDY, seed=4)
    taps: tuple[dict[str, torch.Tensor], ...] = {}, {}
    ours = kernel.step([1], 5, forced, taps[0])
    theirs = reference.step([1], 5, forced, taps[1])
    assert ours.num_frames == theirs.num_frames == (5,)
    assert taps[1]["predictor"].shape == (1, 5, 3, 128)
    errors = [(taps[0][name] - taps[1][name]).abs().max() for name in ("talker", "predictor")]
    assert max(errors) < tolerance
    if dtype == torch.float32:
        np.testing.assert_array_equal(ours.codes, theirs.codes)
