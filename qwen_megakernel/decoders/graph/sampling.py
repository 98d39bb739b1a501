"""The draw of codes for many streams at once, on the device; the host does not wait for it.

It is the function of `decoders/sampling.py`, row by row: the same addressed random numbers, and the
same order of penalty, suppression, temperature, top-k and top-p. That file is the specification.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from qwen_megakernel.decoders.sampling import LANES, philox


@dataclass(frozen=True, slots=True)
class Knobs:
    """The sampling options of each row; every field is [num_rows]."""

    do_sample: Tensor  # bool
    temperature: Tensor  # float32
    top_k: Tensor  # int64; 0: no limit
    top_p: Tensor  # float32; 1: no limit


def gumbel(
    seed_low: Tensor,
    seed_high: Tensor,
    part: Tensor,
    frame: Tensor,
    *,
    num_codebooks: int,
    vocab_size: int,
) -> Tensor:
    """Return the noise -log(-log(u)) for every token of every codebook of one frame.

    Args:
        seed_low, seed_high, part, frame: [num_rows] int64, below 2**32.
    Returns:
        [num_rows, num_codebooks, vocab_size] float32; u as in `sampling.uniforms`.
    """
    device = frame.device
    blocks = torch.arange(-(-vocab_size // LANES), device=device)
    codebooks = torch.arange(num_codebooks, device=device)[:, None]
    rows = [value[:, None, None] for value in (frame, part, seed_low, seed_high)]
    shape = (len(frame), num_codebooks, len(blocks))
    counters = [blocks.expand(shape), rows[0], codebooks, rows[1]]
    words = torch.stack(philox(counters, rows[2:]), dim=-1).flatten(2)[:, :, :vocab_size]
    uniform = ((words >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def draw(logits: Tensor, noise: Tensor, knobs: Knobs, *, use_top_p: bool) -> Tensor:
    """Draw a token for each row, [num_rows] int64: the lowest of equal scores, any for NaN.

    Args:
        logits: [num_rows, vocab_size] float32, already penalized and masked.
        noise: [num_rows, vocab_size], from `gumbel`.
        use_top_p: False if every row's top_p is 1, which saves a few passes.
    """
    vocab_size = logits.shape[1]
    scores = logits / knobs.temperature[:, None]
    ordered = scores.sort(dim=-1, descending=True).values
    count = torch.where(knobs.top_k == 0, vocab_size, knobs.top_k).clamp(max=vocab_size)
    threshold = ordered.gather(1, count[:, None] - 1)
    if use_top_p:
        threshold = torch.maximum(threshold, _top_p_threshold(ordered, threshold, knobs.top_p))
    kept = (scores + noise).masked_fill(scores < threshold, -torch.inf)
    return torch.where(knobs.do_sample[:, None], kept, logits).argmax(dim=-1)


def _top_p_threshold(ordered: Tensor, threshold: Tensor, top_p: Tensor) -> Tensor:
    """Return the lowest score that top-p keeps, [num_rows, 1]; the best score always stays.

    A score stays if the strictly better ones, among those that reach `threshold`, have less
    probability than `top_p` together.
    """
    ordered = ordered.masked_fill(ordered < threshold, -torch.inf)
    probabilities = torch.softmax(ordered, dim=-1)
    mass_before = torch.cumsum(probabilities, dim=-1) - probabilities
    # The mass before a run of equal scores is that before its first member. NaN is in no run.
    first_of_run = torch.searchsorted(-ordered, -ordered, right=False).clamp(max=len(ordered.T) - 1)
    kept = mass_before.gather(1, first_of_run) < top_p[:, None]
    kept[:, 0].fill_(True)
    lowest = ordered.masked_fill(~kept, torch.inf).amin(dim=-1)
    return torch.where(top_p < 1, lowest, -torch.inf)[:, None]
