"""The noise in SNAC's decoder, addressed instead of drawn.

SNAC adds white noise inside its decoder and draws it anew each time, so the same codes never sound
the same twice and chunks could not equal the whole. Here a sample's noise depends on its place in
the stream and on its layer, and on nothing else.
"""

import numpy as np
import torch
from snac.layers import NoiseBlock
from torch import Tensor, nn

from qwen_megakernel.decoders.sampling import philox

_KEY = 0x534E4143  # any will do, as long as it stays
_WORDS = 4  # of one Philox counter


def normals(layer: int, first: int, count: int) -> np.ndarray:
    """Standard normal numbers of the samples from `first` on of a layer, [count] float32.

    Box and Muller's transform of Philox words.
    """
    begin, end = first // _WORDS, -(-(first + count) // _WORDS)
    counters = np.zeros((end - begin, _WORDS), dtype=np.uint32)
    counters[:, 0] = np.arange(begin, end)
    counters[:, 1] = layer
    words = philox(_KEY, counters).astype(np.float64)
    radius = np.sqrt(-2 * np.log((words[:, 0::2] + 0.5) / 2**32))
    angle = 2 * np.pi * words[:, 1::2] / 2**32
    values = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=2).reshape(-1)
    skipped = first - begin * _WORDS
    return values[skipped : skipped + count].astype(np.float32)


class Place:
    """Where in its stream the chunk begins that is being decoded; shared by the noise blocks."""

    def __init__(self) -> None:
        self.first_frame = 0
        self.num_frames = 1


class AddressedNoise(nn.Module):
    """SNAC's `NoiseBlock` with the noise of `normals`."""

    def __init__(self, block: NoiseBlock, layer: int, place: Place):
        super().__init__()
        self.linear, self._layer, self._place = block.linear, layer, place

    def forward(self, x: Tensor) -> Tensor:
        """[1, channels, num_samples], the same shape out."""
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
