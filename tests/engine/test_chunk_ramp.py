"""Chunk sizes double from the first one, so a player has no gap at any allowed engine speed."""

import pytest

from benchmarks.playback import playback_gaps
from qwen_megakernel.speech_options import SpeechOptions

FRAME_MS = 80.0


def ramp(request: SpeechOptions, num_frames: int) -> list[int]:
    """Chunk sizes as the step loop makes them."""
    sizes, size = [], request.first_chunk_frames
    while sum(sizes) < num_frames:
        sizes.append(min(size, num_frames - sum(sizes)))
        size = min(2 * size, request.chunk_frames)
    return sizes


def playback(sizes: list[int], rtf: float) -> list[float]:
    """The gaps of a player without a buffer if each frame takes rtf * 80 ms."""
    times, durations, made = [], [], 0
    for size in sizes:
        made += size
        times.append(made * FRAME_MS * rtf)
        durations.append(size * FRAME_MS)
    return playback_gaps(times, durations, 0)


@pytest.mark.parametrize("rtf", [0.177, 0.234, 0.3, 0.5])
def test_no_hole_at_the_published_speeds(rtf):
    request = SpeechOptions()
    assert ramp(request, 60)[:6] == [1, 2, 4, 8, 10, 10]
    assert not playback(ramp(request, 60), rtf)


def test_one_then_ten_frames_has_a_hole():
    """This shows that the check above can fail."""
    assert playback([1, 10, 10], 0.177)
