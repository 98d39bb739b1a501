"""The draw of one code from logits, exact and reproducible.

Random numbers are addressed, not consumed: a draw depends on (seed, part, frame, codebook) alone,
so a stream's codes do not change with its slot, its neighbours or its chunking. csrc/sampling.cuh
is the same function on the GPU; this file is its specification.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.errors import GenerationError
from qwen_megakernel.speech_options import Draw

MIN_FRAMES = 2  # the official generate() bans EOS for the first two draws (min_new_tokens)

# Philox4x32-10: multipliers and key increments of Salmon et al., "Parallel random numbers: as easy
# as 1, 2, 3" (SC 2011), table 2.
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MASK = 0xFFFFFFFF
LANES = 4  # words of a counter


def philox(counters: Sequence[Any], key: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    """Return the four random words of Philox4x32-10.

    Args:
        counters, key: four and two words below 2**32: uint64 arrays, or int64 tensors, in which
            the products of two words wrap, but have the bits of unsigned ones; key words may be
            numbers. Their shapes broadcast.
    """
    c0, c1, c2, c3 = counters
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = ((product1 >> 32) ^ c1 ^ k0) & MASK, product1 & MASK
        c2, c3 = ((product0 >> 32) ^ c3 ^ k1) & MASK, product0 & MASK
        k0, k1 = (k0 + KEY_STEPS[0]) & MASK, (k1 + KEY_STEPS[1]) & MASK
    return c0, c1, c2, c3


def uniforms(tokens: np.ndarray, *, seed: int, part: int, frame: int, codebook: int) -> np.ndarray:
    """Return a number in (0, 1) for each token id in `tokens` [n]: [n] float32.

    Token t reads lane t % 4 of counter (t // 4, frame, codebook, part). The numbers have 23 bits,
    because the largest must stay below 1 in float32: -log(-log(1)) is infinite.
    """
    place = np.array([[frame], [codebook], [part]], dtype=np.uint64)
    counters = (tokens // LANES).astype(np.uint64), *place
    lanes = np.stack(philox(counters, (seed & MASK, seed >> 32)), axis=1)
    words = lanes[np.arange(len(tokens)), tokens % LANES]
    return ((words >> 9).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)


def penalized(logits: Tensor, seen: Tensor, penalty: float | Tensor) -> Tensor:
    """Penalize the tokens marked in `seen` [..., n] bool, as Keskar et al. (CTRL, 2019) do."""
    scaled = torch.where(logits < 0, logits * penalty, logits / penalty)
    return torch.where(seen, scaled, logits)


def keep_top_k(scores: Tensor, top_k: int) -> Tensor:
    """Set all but the `top_k` best to -inf; every token tied with the k-th stays. 0: no limit."""
    if top_k == 0 or top_k >= scores.numel():
        return scores
    threshold = torch.topk(scores, top_k).values[-1]
    return scores.masked_fill(scores < threshold, -torch.inf)


def keep_top_p(scores: Tensor, top_p: float) -> Tensor:
    """Set a token to -inf if the more probable tokens together reach the probability `top_p`.

    A token stays while the mass of the strictly more probable ones is below `top_p`, so tokens of
    equal probability stay or go together (transformers breaks such ties by sort order).
    """
    if top_p >= 1.0:
        return scores
    ordered, order = torch.sort(scores, descending=True, stable=True)
    probabilities = torch.softmax(ordered, dim=-1)
    mass_before = torch.cumsum(probabilities, dim=-1) - probabilities
    # The mass before a run of equal scores is the mass before its first member.
    first_of_run = torch.searchsorted(-ordered, -ordered, right=False)
    dropped = mass_before[first_of_run] >= top_p
    dropped[0] = False
    return scores.masked_fill(torch.zeros_like(dropped).scatter(0, order, dropped), -torch.inf)


def not_finite(codebook: int) -> GenerationError:
    """Return the error of logits that hold NaN, or no finite number."""
    return GenerationError(
        f"The logits of codebook {codebook} are not finite.",
        "The weights, or what was computed from them, hold NaN or infinity.",
    )


def draw(logits: Tensor, how: Draw, *, seed: int, part: int, frame: int, codebook: int) -> int:
    """Draw a token: temperature, top-k, top-p, then Gumbel-max; or argmax without sampling.

    Args:
        logits: [vocab_size] float32, already penalized and masked.
        how: its penalty is not used.
        seed, part, frame, codebook: the address of the random numbers.
    Returns:
        The token; the lowest one where scores tie.
    Raises:
        GenerationError: the logits hold NaN, or no finite number.
    """
    if not torch.isfinite(logits.max()):
        raise GenerationError(
            f"The logits of codebook {codebook} in frame {frame} are not finite "
            f"(largest: {logits.max().item()}).",
            "The weights, or what was computed from them, hold NaN or infinity.",
        )
    if not how.do_sample:
        return int(torch.argmax(logits))
    likeliest = keep_top_k(logits / how.temperature, how.top_k)
    scores = keep_top_p(likeliest, how.top_p).cpu().numpy()
    kept = np.flatnonzero(scores > -np.inf)
    noise = uniforms(kept, seed=seed, part=part, frame=frame, codebook=codebook)
    return int(kept[np.argmax(scores[kept] - np.log(-np.log(noise)))])
