"""csrc/sampling.cuh against its specification, qwen_megakernel/decoders/sampling.py."""

import kernel_models as k
import numpy as np
import pytest
import torch
from fixtures import module_value
from probes import Probes, SamplingProbe, random, with_poisoned_tail
from tolerances import ROUNDING_F32

from qwen_megakernel.decoders import sampling
from qwen_megakernel.native.structs import SamplingParams
from qwen_megakernel.speech_options import Draw

SEED, PART, CODEBOOK = 0x1234_5678_9ABC_DEF0, 2, 5
EOS, SUPPRESSED_FROM = 140, 128

probes = module_value(lambda: Probes(k.small_config()))


def draw(probes, logits, *, seen=None, eos_banned=False, noise=None, **settings):
    params = {"temperature": 0.9, "top_p": 1.0, "repetition_penalty": 1.0, "top_k": 50}
    params = SamplingParams(**params | {"do_sample": 1} | settings)
    tokens = torch.full((len(logits),), -7, dtype=torch.int32)
    addresses = map(probes.address, (with_poisoned_tail(logits), seen, tokens, noise))
    sizes = (logits.shape[1], len(logits), SUPPRESSED_FROM, EOS, eos_banned)
    address = (SEED & 0xFFFFFFFF, SEED >> 32, PART, CODEBOOK)
    launch = SamplingProbe(*addresses, params, *sizes, *address)
    assert probes.launch("sampling", launch, 2) == 0
    return tokens.tolist()


def specified(logits, **settings):
    how = Draw(**settings)
    return [
        sampling.draw(row, how, seed=SEED, part=PART, frame=frame, codebook=CODEBOOK)
        for frame, row in enumerate(logits)
    ]


def test_noise_is_that_of_the_specification(probes):
    noise = torch.full((3, 1152), torch.nan)
    draw(probes, random(3, 1152), noise=noise)
    for frame in range(3):
        u = sampling.uniforms(np.arange(1152), seed=SEED, part=PART, frame=frame, codebook=CODEBOOK)
        np.testing.assert_allclose(noise[frame], -np.log(-np.log(u)), rtol=0, atol=ROUNDING_F32)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"top_k": 0},
        {"top_k": 1},
        {"top_k": 7, "temperature": 2.5},
        {"top_p": 0.8},
        {"top_p": 0.3, "top_k": 0},
        {"top_k": 5000},
    ],
    ids=str,
)
def test_tokens_are_those_of_the_specification(probes, settings):
    logits = random(40, 128, seed=1, scale=2.0)
    assert draw(probes, logits, **settings) == specified(logits, **settings)


@pytest.mark.parametrize("vocab", [128, 1152])
def test_greedy_finds_the_maximum_in_every_place(probes, vocab):
    logits = random(vocab, vocab, seed=2)
    logits[range(vocab), range(vocab)] = 9.0
    assert draw(probes, logits, do_sample=0) == list(range(vocab))


def test_the_lowest_of_equal_tokens_wins(probes):
    logits = torch.zeros(2, 1152)
    logits[1, [900, 77, 300]] = 1.0
    assert draw(probes, logits, do_sample=0) == [0, 77]


def test_zero_has_no_sign(probes):
    logits = torch.full((300, 128), -0.0)
    logits[:, 5::2] = 0.0
    assert draw(probes, logits[:1], do_sample=0) == [0]
    for settings in ({"top_k": 6}, {"top_p": 0.4}):
        tokens = draw(probes, logits, **settings)
        assert tokens == specified(logits, **settings)
        assert min(token % 2 for token in tokens) == 0


def test_all_tokens_tied_with_the_kth_stay(probes):
    logits = torch.zeros(300, 128)
    logits[:, :4] = 1.0  # top_k = 6 ends among the tied zeros
    tokens = draw(probes, logits, top_k=6)
    assert tokens == specified(logits, top_k=6)
    assert len(set(tokens)) > 60


def test_rules_of_code_0(probes):
    logits = random(60, 1152, seed=3, scale=2.0)
    logits[:, EOS] += 4
    seen = torch.zeros(36, dtype=torch.int32)
    seen[0], seen[3] = 0x0FF0F00F, -1
    mask = torch.tensor([(int(seen[i // 32]) >> (i % 32)) & 1 for i in range(1152)]).bool()
    for banned in (True, False):
        expected = sampling.penalized(logits, mask, 1.3)
        expected[:, SUPPRESSED_FROM:EOS] = -torch.inf
        expected[:, EOS + 1 :] = -torch.inf
        if banned:
            expected[:, EOS] = -torch.inf
        tokens = draw(probes, logits, seen=seen, eos_banned=banned, repetition_penalty=1.3)
        assert tokens == specified(expected)
        assert (EOS in tokens) != banned


def test_nan_and_infinity_are_reported(probes):
    logits = random(6, 128)
    logits[1, 100], logits[2, 3], logits[3, 127] = torch.nan, torch.inf, -torch.nan
    logits[4] = -torch.inf
    for do_sample in (0, 1):
        tokens = draw(probes, logits, do_sample=do_sample)
        assert [token == -1 for token in tokens] == [False, True, True, True, True, False]
