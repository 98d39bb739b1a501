"""Arranges SNAC's codes in frames of seven, in the order in which the language model draws them.

SNAC describes audio in three layers, each at twice the rate of the previous one. A frame is one
code of the first layer, followed by the codes of the other layers for the same time.
"""

from collections.abc import Sequence

import numpy as np

from qwen_megakernel.errors import DatasetError

LAYER_RATIO = (1, 2, 4)  # codes per frame, by layer
NUM_LAYERS = len(LAYER_RATIO)
CODES_PER_FRAME = sum(LAYER_RATIO)

# The layer of each place in a frame: 0 1 1 2 2 2 2.
LAYER_OF_PLACE = tuple(layer for layer, count in enumerate(LAYER_RATIO) for _ in range(count))


def interleave(layers: Sequence[Sequence[int] | np.ndarray]) -> np.ndarray:
    """Join [num_frames], [2 * num_frames] and [4 * num_frames] codes of three layers by frames.

    Returns:
        [num_frames, 7] int32: one code of layer 1, two of layer 2, four of layer 3.
    Raises:
        DatasetError: there are not three layers, or the ratio of their lengths is not 1 : 2 : 4.
    """
    lengths = [len(layer) for layer in layers]
    num_frames = lengths[0] if lengths else 0
    if lengths != [num_frames * count for count in LAYER_RATIO]:
        raise DatasetError(
            f"The layers have {lengths} codes.",
            "A frame is 1 code of the first layer, 2 of the second and 4 of the third.",
        )
    columns = [
        np.asarray(layer, dtype=np.int32).reshape(num_frames, count)
        for layer, count in zip(layers, LAYER_RATIO, strict=True)
    ]
    return np.concatenate(columns, axis=1)


def deinterleave(frames: np.ndarray) -> list[np.ndarray]:
    """Undo `interleave`: [num_frames, 7] -> the codes of each layer, int32."""
    ends = np.cumsum(LAYER_RATIO)[:-1]
    return [part.reshape(-1) for part in np.split(np.asarray(frames, np.int32), ends, axis=1)]
