"""The draws on the device (graph/sampling.py) against their specification (sampling.py)."""

import numpy as np
import pytest
import torch
from tolerances import NOISE_RELATIVE, ROUNDING_F32

from qwen_megakernel.decoders import sampling
from qwen_megakernel.decoders.graph import sampling as graph_sampling
from qwen_megakernel.decoders.graph.sampling import Knobs
from qwen_megakernel.speech_options import Draw

VOCAB = 70  # not a multiple of the four words of a counter


def noise_of(rows, num_codebooks=3, vocab_size=VOCAB):
    """Return the noise of rows (seed, part, frame)."""
    seeds, parts, frames = (torch.tensor(column) for column in zip(*rows, strict=True))
    words = seeds & 0xFFFFFFFF, seeds >> 32 & 0xFFFFFFFF
    return graph_sampling.gumbel(
        *words, parts, frames, num_codebooks=num_codebooks, vocab_size=vocab_size
    )


def test_the_noise_is_that_of_the_addressed_uniforms():
    rows = [(0, 0, 0), (2**63 - 5, 3, 1999), (2**32 + 7, 0, 1), (123456789, 2**20, 2**31 - 1)]
    noise = noise_of(rows)
    for row, (seed, part, frame) in enumerate(rows):
        for codebook in range(3):
            uniform = sampling.uniforms(
                np.arange(VOCAB), seed=seed, part=part, frame=frame, codebook=codebook
            )
            expected = -np.log(-np.log(uniform))
            # The numbers are exact; two libraries' float32 logarithms differ in the last place.
            np.testing.assert_allclose(
                noise[row, codebook], expected, rtol=NOISE_RELATIVE, atol=ROUNDING_F32
            )


CHOICES = [
    (True, 0.9, 50, 1.0),
    (True, 1.5, 0, 0.8),
    (True, 0.7, 20, 0.5),
    (True, 1.0, 1, 1.0),
    (True, 1.0, 1000, 0.01),
    (False, 0.9, 50, 0.3),
]


@pytest.mark.parametrize("seed", range(3))
def test_each_row_draws_what_the_specification_draws(seed):
    generator = torch.Generator().manual_seed(seed)
    count = 40
    # Rounded, so that there are ties at every threshold; some tokens are masked.
    logits = (2 * torch.randn(count, VOCAB, generator=generator)).round(decimals=0 if seed else 3)
    logits[torch.rand(count, VOCAB, generator=generator) < 0.2] = -torch.inf
    chosen = [CHOICES[row % len(CHOICES)] for row in range(count)]
    noise = noise_of([(seed, 1, row) for row in range(count)])[:, 2]
    knobs = Knobs(*(torch.tensor(column) for column in zip(*chosen, strict=True)))
    drawn = graph_sampling.draw(logits, noise, knobs, use_top_p=True)
    for row, values in enumerate(chosen):
        address = {"seed": seed, "part": 1, "frame": row, "codebook": 2}
        expected = sampling.draw(logits[row], Draw(*values), **address)
        assert drawn[row] == expected


def test_the_short_way_without_top_p_draws_the_same():
    logits = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(1))
    noise = noise_of([(5, 0, row) for row in range(8)])[:, 0]
    rows = [torch.full((8,), value) for value in (True, 0.9, 7, 1.0)]
    ways = [graph_sampling.draw(logits, noise, Knobs(*rows), use_top_p=b) for b in (True, False)]
    assert torch.equal(*ways)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_not_finite_draw_some_token_and_leave_the_other_rows(poison):
    """An index outside the vocabulary would end the process's use of its GPU."""
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(4))
    noise = noise_of([(6, 0, row) for row in range(3)])[:, 0]
    knobs = Knobs(*(torch.full((3,), value) for value in (True, 0.9, 7, 0.8)))
    expected = graph_sampling.draw(logits, noise, knobs, use_top_p=True)
    logits[1] = poison
    drawn = graph_sampling.draw(logits, noise, knobs, use_top_p=True)
    assert drawn[::2].tolist() == expected[::2].tolist() and 0 <= drawn[1] < VOCAB


def test_the_penalty_is_a_rows_own():
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(2))
    seen = torch.rand(3, VOCAB, generator=torch.Generator().manual_seed(3)) < 0.5
    penalties = torch.tensor([1.0, 1.3, 0.4])
    ours = sampling.penalized(logits, seen, penalties[:, None])
    for row, penalty in enumerate(penalties.tolist()):
        expected = sampling.penalized(logits[row], seen[row], penalty)
        torch.testing.assert_close(ours[row], expected, rtol=ROUNDING_F32, atol=0)
