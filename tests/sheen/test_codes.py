"""Layers to frames and back, and how long a sequence gets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sheen_toys import EXAMPLE_LAYERS

from qwen_megakernel.errors import DatasetError
from qwen_megakernel.sheen import codes

EXAMPLE_FRAMES = [[100, 10, 11, 1, 2, 3, 4], [200, 20, 21, 5, 6, 7, 8]]

code = st.integers(0, 4095)


@st.composite
def layers(draw):
    num_frames = draw(st.integers(0, 30))
    return [
        draw(st.lists(code, min_size=num_frames * count, max_size=num_frames * count))
        for count in (1, 2, 4)
    ]


def test_the_worked_example_interleaves_and_comes_back():
    assert codes.interleave(EXAMPLE_LAYERS).tolist() == EXAMPLE_FRAMES
    assert [layer.tolist() for layer in codes.deinterleave(EXAMPLE_FRAMES)] == EXAMPLE_LAYERS


@settings(deadline=None)
@given(layers())
def test_layers_come_back_from_their_frames(given_layers):
    frames = codes.interleave(given_layers)
    assert frames.shape == (len(given_layers[0]), codes.CODES_PER_FRAME)
    assert [layer.tolist() for layer in codes.deinterleave(frames)] == given_layers


@settings(deadline=None)
@given(st.lists(st.lists(code, min_size=7, max_size=7), max_size=30))
def test_frames_come_back_from_their_layers(rows):
    frames = np.array(rows, dtype=np.int32).reshape(-1, 7)
    assert np.array_equal(codes.interleave(codes.deinterleave(frames)), frames)


@settings(deadline=None)
@given(layers())
def test_each_code_lies_in_the_frame_of_its_time(given_layers):
    """Independent of reshaping: code k of a layer with n codes a frame is of frame k // n."""
    frames = codes.interleave(given_layers)
    firsts = {0: 0, 1: 1, 2: 3}
    for layer, count in enumerate((1, 2, 4)):
        for at, value in enumerate(given_layers[layer]):
            assert frames[at // count, firsts[layer] + at % count] == value


@pytest.mark.parametrize(
    "wrong", [[[1], [1, 2]], [[1], [1, 2], [1, 2, 3]], [[1, 2], [1, 2], [1, 2, 3, 4]], []]
)
def test_other_lengths_than_one_two_four_are_refused(wrong):
    with pytest.raises(DatasetError, match="1 code of the first layer, 2 of the second"):
        codes.interleave(wrong)
