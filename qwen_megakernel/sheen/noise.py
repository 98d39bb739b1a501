"""Replaces the random noise in SNAC's decoder by noise that is the same each time.

SNAC adds white noise inside its decoder and draws it anew each time, so the same codes sound
different each time, and chunks could not equal the whole. Here a sample's noise depends only on its
place in the stream and on its layer.
"""

import numpy as np
import torch
from snac.layers import NoiseBlock
from torch import Tensor, nn

from qwen_megakernel.decoders.sampling import LANES, philox

_KEY = 0x534E4143  # any number, but always the same


def normals(layer: int, first: int, count: int) -> np.ndarray:
    """Return the noise of `count` samples of a layer from `first` on: [count] float32, N(0, 1).

    It is Box and Muller's transform of Philox words.
    """
    begin, end = first // LANES, -(-(first + count) // LANES)
    place = np.array([[layer], [0], [0]], dtype=np.uint64)
    counters = np.arange(begin, end, dtype=np.uint64), *place
    words = np.stack(philox(counters, (_KEY, 0)), axis=1).astype(np.float64)
    radius = np.sqrt(-2 * np.log((words[:, 0::2] + 0.5) / 2**32))
    angle = 2 * np.pi * words[:, 1::2] / 2**32
    values = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2).reshape(-1)
    skipped = first - begin * LANES
    return values[skipped : skipped + count].astype(np.float32)


class Place:
    """The place in its stream of the chunk that is being decoded; the noise blocks share it."""

    def __init__(self) -> None:
        self.first_frame = 0
        self.num_frames = 1


class AddressedNoise(nn.Module):
    """SNAC's `NoiseBlock` with the noise of `normals`."""

    def __init__(self, block: NoiseBlock, layer: int, place: Place):
        super().__init__()
        self.linear, self._layer, self._place = block.linear, layer, place

    def forward(self, x: Tensor) -> Tensor:
        """[1, channels, num_samples] -> the same shape."""
        num_samples = x.shape[-1]
        first = self._place.first_frame * num_samples // self._place.num_frames
        noise = torch.from_numpy(normals(self._layer, first, num_samples)).to(x)
        return x + noise * self.linear(x)


def address_noise(decoder: nn.Module) -> Place:
    """Replace the noise blocks of a SNAC decoder; returns the place that they read."""
    place = Place()
    blocks = [
        (parent, name, child)
        for parent in decoder.modules()
        for name, child in parent.named_children()
        if isinstance(child, NoiseBlock)
    ]
    for layer, (parent, name, block) in enumerate(blocks):
        setattr(parent, name, AddressedNoise(block, layer, place))
    return place
