"""A frame is one launch, and so are four."""

import kernel_models as k
import pytest
import torch

from qwen_megakernel.kernels import KernelDecoder
from qwen_megakernel.utterance import Sampling


@pytest.fixture
def counted(make_decoder, monkeypatch):
    """A decoder, and the entry points of its library in the order they are called."""
    decoder = make_decoder(KernelDecoder, k.random_checkpoint(k.small_config()))
    calls: list[str] = []
    for name in ("step", "forward"):
        launch = getattr(decoder.library, name)

        def counting(*arguments, name=name, launch=launch):
            calls.append(name)
            launch(*arguments)

        monkeypatch.setattr(decoder.library, name, counting)
    return decoder, calls


@pytest.mark.parametrize("num_streams", [1, 3])
@pytest.mark.parametrize("num_frames", [1, 4])
def test_frames_of_all_streams_are_one_launch(counted, num_streams, num_frames):
    decoder, calls = counted
    slots = list(range(num_streams))
    for slot in slots:
        k.start(decoder, slot, Sampling(), seed=slot + 1)
    assert calls == ["forward"] * num_streams  # the prompts
    calls.clear()
    result = decoder.step(slots, num_frames)
    assert calls == ["step"] and result.codes.shape == (num_streams, num_frames, 4)


def test_a_prompt_is_one_launch_however_long(counted):
    decoder, calls = counted
    k.start(decoder, 0, Sampling(), seed=1, positions=50)
    assert calls == ["forward"]
    tokens = torch.arange(20, dtype=torch.int32)
    decoder.forward(1, tokens, first_position=0)
    assert calls == ["forward"] * 2
