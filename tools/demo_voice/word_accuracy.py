"""Decide from codes alone, without a recogniser, whether every word was said.

The frames that were drawn are aligned with the reference's (dynamic time warping over the codes'
latents, which are spectra). A word is right if most of its frames were met closely. The
measure does not see the vocoder, and it is strict: the same word at another speed is right, other
sounds are not.
"""

import numpy as np

from tools.demo_voice.codebooks import Codebooks
from tools.demo_voice.shards import SILENCE

# Distances of latents, in the codebooks' units: frames of one sound are about 10 apart, other
# sounds 50.
CLOSE = 25.0
MOST = 0.7  # share of a word's frames
SKIP_COST = 8.0  # cost of a frame that only one of the two speeches has


def words_right(
    codes: np.ndarray, reference: np.ndarray, words: np.ndarray, codebooks: Codebooks
) -> tuple[int, int]:
    """Return how many of a sentence's words were said.

    Args:
        codes: [num_frames, num_codes] as drawn.
        reference: [num_reference, num_codes].
        words: [num_reference], which word each reference frame belongs to, or SILENCE.
    Returns:
        The number of right words, and of all words.
    """
    spoken = sorted(set(words.tolist()) - {SILENCE})
    if not len(codes):
        return 0, len(spoken)
    nearest, _ = _aligned(_distances(codes, reference, codebooks))
    found = sum(bool((nearest[words == word] < CLOSE).mean() >= MOST) for word in spoken)
    return found, len(spoken)


def word_onsets(
    codes: np.ndarray, reference: np.ndarray, words: np.ndarray, codebooks: Codebooks
) -> dict[int, int]:
    """Return the drawn frames at which the words of a sentence begin.

    Args:
        codes, reference, words: as `words_right` takes them.
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
