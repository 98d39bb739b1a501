"""Align the frames that were drawn with those of a reference, by dynamic time warping.

Distances are those of the codes' latents, which stand for spectra; the pitch does not count. Their
unit is the distance of two different sounds (`Codebooks.unit`).
"""

import numpy as np

from tools.demo_voice.codebooks import Codebooks
from tools.demo_voice.shards import SILENCE

CLOSE = 0.37  # frames of one sound are nearer than this, those of others mostly further
SKIP_COST = 0.12  # cost of a frame that only one of the two speeches has


def mean_distance(codes: np.ndarray, reference: np.ndarray, codebooks: Codebooks) -> float:
    """Return the mean distance of the reference's frames from the drawn ones that belong to them.

    Args:
        codes: [num_frames, num_codes] as drawn.
        reference: [num_reference, num_codes].
    """
    nearest, _ = _aligned(_distances(codes, reference, codebooks))
    return float(nearest.mean())


def word_onsets(
    codes: np.ndarray, reference: np.ndarray, words: np.ndarray, codebooks: Codebooks
) -> dict[int, int]:
    """Return the drawn frames at which the words of a sentence begin.

    Args:
        codes, reference: as `mean_distance` takes them.
        words: [num_reference], which word each reference frame belongs to, or SILENCE.
    Returns:
        Word -> frame of `codes`, for words with a close match of their first frame.
    """
    nearest, rows = _aligned(_distances(codes, reference, codebooks))
    firsts = {word: int(np.argmax(words == word)) for word in set(words.tolist()) - {SILENCE}}
    return {word: int(rows[at]) for word, at in firsts.items() if nearest[at] < CLOSE}


def aligned_rows(codes: np.ndarray, reference: np.ndarray, codebooks: Codebooks) -> np.ndarray:
    """Return [num_reference]: the drawn frame that each reference frame was found in."""
    _, rows = _aligned(_distances(codes, reference, codebooks))
    return rows


def _distances(codes: np.ndarray, reference: np.ndarray, codebooks: Codebooks) -> np.ndarray:
    """Return the distances of latents: [num_frames, num_reference]."""
    left, right = codebooks.latents(codes), codebooks.latents(reference)
    squares = np.square(left).sum(1)[:, None] + np.square(right).sum(1) - 2 * left @ right.T
    return np.sqrt(np.maximum(0, squares)) / codebooks.unit


def _aligned(distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least distance of each column (reference frame) on the cheapest path, and the
    row where it has it."""
    num_rows, num_columns = distances.shape
    cost = np.full((num_rows + 1, num_columns + 1), np.inf)
    cost[0, 0] = 0
    for i in range(num_rows):
        for j in range(num_columns):
            before = min(cost[i, j], cost[i, j + 1] + SKIP_COST, cost[i + 1, j] + SKIP_COST)
            cost[i + 1, j + 1] = distances[i, j] + before
    nearest, rows = np.full(num_columns, np.inf), np.zeros(num_columns, int)
    i, j = num_rows, num_columns
    while i and j:
        if distances[i - 1, j - 1] < nearest[j - 1]:
            nearest[j - 1], rows[j - 1] = distances[i - 1, j - 1], i - 1
        steps = (cost[i - 1, j - 1], cost[i - 1, j] + SKIP_COST, cost[i, j - 1] + SKIP_COST)
        step = int(np.argmin(steps))
        i, j = i - (step != 2), j - (step != 1)
    return nearest, rows
