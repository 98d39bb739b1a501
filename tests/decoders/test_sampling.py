"""Draws: the generator compared with published vectors, the distribution with transformers."""

import numpy as np
import pytest
import torch

from qwen_megakernel.decoders import sampling
from qwen_megakernel.errors import GenerationError
from qwen_megakernel.speech_options import Draw

SAMPLED, GREEDY = Draw(), Draw(do_sample=False)
FIRST = {"seed": 0, "part": 0, "frame": 0, "codebook": 0}


# Known answers of the Random123 distribution (kat_vectors), philox4x32-10.
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0, 0, 0, 0], 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            0x299F31D0A4093822,
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, expected):
    key = key & 0xFFFFFFFF, key >> 32
    for words in (np.array(counter, dtype=np.uint64)[:, None], torch.tensor(counter)[:, None]):
        drawn = sampling.philox(words, key)
        assert " ".join(f"{int(word[0]):08x}" for word in drawn) == expected


def test_uniforms_stay_strictly_between_zero_and_one_and_exact(monkeypatch):
    extremes = np.array([[0], [0xFFFFFFFF], [0], [0xFFFFFFFF]], dtype=np.uint64)
    monkeypatch.setattr(sampling, "philox", lambda counters, key: extremes)
    low = sampling.uniforms(np.array([0]), **FIRST)
    high = sampling.uniforms(np.array([1]), **FIRST)
    assert low.dtype == np.float32 and float(low[0]) == 2.0**-24
    assert float(high[0]) == 1 - 2.0**-24
    assert np.isfinite(-np.log(-np.log(np.concatenate((low, high))))).all()


def test_every_coordinate_of_a_draw_matters():
    tokens = np.arange(64)
    base = {"seed": 7, "part": 1, "frame": 2, "codebook": 3}
    reference = sampling.uniforms(tokens, **base)
    for name in base:
        other = sampling.uniforms(tokens, **(base | {name: base[name] + 1}))
        assert not np.intersect1d(reference, other).size, name
    high_seed = sampling.uniforms(tokens, **(base | {"seed": 7 + 2**32}))
    assert not np.array_equal(reference, high_seed)


def test_a_tokens_number_does_not_depend_on_which_others_are_asked_for():
    address = {"seed": 1, "part": 0, "frame": 5, "codebook": 0}
    every = sampling.uniforms(np.arange(300), **address)
    some = np.array([3, 17, 250, 299])
    assert np.array_equal(sampling.uniforms(some, **address), every[some])


def transformers_probabilities(logits, temperature, top_k, top_p):
    from transformers.generation import logits_process as lp

    chain = [lp.TemperatureLogitsWarper(temperature)]
    chain += [lp.TopKLogitsWarper(top_k)] if top_k else []
    chain += [lp.TopPLogitsWarper(top_p)] if top_p < 1 else []
    scores = logits[None].clone()
    for processor in chain:
        scores = processor(None, scores)
    return torch.softmax(scores[0].double(), dim=-1).numpy()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (0.9, 50, 1.0),
        pytest.param(0.7, 20, 0.5, marks=pytest.mark.ci),
        pytest.param(0.3, 5, 1.0, marks=pytest.mark.ci),
        pytest.param(1.5, 0, 0.8, marks=pytest.mark.ci),
    ],
)
def test_the_distribution_is_that_of_transformers_over_20000_draws(temperature, top_k, top_p):
    torch.manual_seed(3)
    logits = torch.randn(200) * 2
    expected = transformers_probabilities(logits, temperature, top_k, top_p)
    num_draws = 20_000
    # The same draw for all frames at once: the scores are equal in every frame.
    scores = sampling.keep_top_p(sampling.keep_top_k(logits / temperature, top_k), top_p).numpy()
    kept = np.flatnonzero(scores > -np.inf)
    counts = np.zeros(len(logits))
    how = Draw(temperature=temperature, top_k=top_k, top_p=top_p)
    for frame in range(num_draws):
        address = FIRST | {"seed": 11, "frame": frame}
        noise = sampling.uniforms(kept, **address)
        counts[kept[np.argmax(scores[kept] - np.log(-np.log(noise)))]] += 1
        if frame < 50:
            assert counts[sampling.draw(logits, how, **address)]
    assert not counts[expected == 0].any()
    likely = expected * num_draws >= 5
    mean = num_draws * expected[likely]
    chi2 = ((counts[likely] - mean) ** 2 / mean).sum()
    degrees = likely.sum() - 1
    # Wilson-Hilferty: five standard deviations of a chi-square, some one in three million.
    bound = degrees * (1 - 2 / (9 * degrees) + 5 * np.sqrt(2 / (9 * degrees))) ** 3
    assert chi2 < bound


def test_top_k_keeps_every_token_tied_with_the_last():
    scores = torch.tensor([1.0, 5.0, 3.0, 3.0, 3.0, 0.0])
    kept = torch.isfinite(sampling.keep_top_k(scores, 2))
    assert kept.tolist() == [False, True, True, True, True, False]


def test_top_p_treats_equal_tokens_alike_and_keeps_the_best():
    scores = torch.log(torch.tensor([0.1, 0.4, 0.2, 0.2, 0.1]))
    kept = torch.isfinite(sampling.keep_top_p(scores, 0.55))
    assert kept.tolist() == [False, True, True, True, False]
    best = torch.isfinite(sampling.keep_top_p(scores, 1e-6))
    assert best.tolist() == [False, True, False, False, False]


def test_the_repetition_penalty_shrinks_positive_and_grows_negative_scores():
    logits = torch.tensor([2.0, -2.0, 2.0, -2.0])
    seen = torch.tensor([True, True, False, False])
    penalized = sampling.penalized(logits, seen, 2.0)
    assert penalized.tolist() == [1.0, -4.0, 2.0, -2.0]


@pytest.mark.parametrize("place", [0, 1, 15, 16, 31, 1000, 2047])
def test_greedy_finds_the_maximum_in_every_place(place):
    logits = torch.zeros(2048)
    logits[place] = 1e-3
    assert sampling.draw(logits, GREEDY, **FIRST) == place


def test_the_lowest_token_wins_a_greedy_tie():
    logits = torch.zeros(64)
    logits[[9, 40]] = 1.0
    assert sampling.draw(logits, GREEDY, **FIRST) == 9


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_an_error_that_names_the_place(poison):
    logits = torch.zeros(16)
    logits[3] = poison
    with pytest.raises(GenerationError, match="codebook 5 in frame 8"):
        sampling.draw(logits, SAMPLED, seed=0, part=0, frame=8, codebook=5)
