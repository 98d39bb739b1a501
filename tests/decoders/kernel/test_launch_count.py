"""A frame is one launch, and so are four."""

import contextlib
from unittest.mock import Mock

import kernel_models as k
import numpy as np
import pytest
import torch

from qwen_megakernel.decoders.graph.decoder import GraphDecoder
from qwen_megakernel.decoders.kernel import decoder as kernel_decoder
from qwen_megakernel.decoders.kernel import launcher
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.records import Sampling


@pytest.fixture
def counted(make_decoder, monkeypatch):
    """A decoder, and the entry points of its library in the order they are called."""
    decoder = make_decoder(KernelDecoder, k.checkpoint())
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


def test_a_step_brings_everything_back_in_one_copy(counted, monkeypatch):
    decoder, _ = counted
    copies = Mock(wraps=launcher.HostCopy)
    monkeypatch.setattr(launcher, "HostCopy", copies)
    for slot in range(3):
        k.start(decoder, slot, Sampling(), seed=slot + 1)
    decoder.step([0, 1, 2], 4)
    assert copies.call_count == 1


def test_the_library_is_called_on_its_decoders_gpu(make_decoder, monkeypatch):
    log = []

    @contextlib.contextmanager
    def current(device):
        log.append(device)
        yield
        log.append("left")

    for module in (kernel_decoder, launcher):
        monkeypatch.setattr(module, "current", current)
    for name in ("max_blocks", "forward", "step"):
        call = getattr(kernel_decoder.KernelLibrary, name)
        monkeypatch.setattr(
            kernel_decoder.KernelLibrary,
            name,
            lambda *arguments, name=name, call=call: log.append(name) or call(*arguments),
        )
    decoder = make_decoder(KernelDecoder, k.checkpoint())
    k.start(decoder, 0, Sampling(), seed=1)
    decoder.step([0], 1)
    where = decoder.device
    assert log == [where, "max_blocks", "left", where, "forward", "left", where, "step", "left"]


@pytest.mark.parametrize("kind", [KernelDecoder, GraphDecoder])
def test_a_step_may_be_started_and_waited_for_apart(make_decoder, kind):
    decoder = make_decoder(kind, k.checkpoint(), num_slots=18)
    slots = list(range(18))  # more than one launch of the kernel holds
    for slot in slots:
        k.start(decoder, slot, Sampling(), seed=slot + 1)
    whole = [decoder.step(slots, 2), decoder.step(slots, 3)]
    for slot in slots:
        k.start(decoder, slot, Sampling(), seed=slot + 1)
    for expected, num_frames in zip(whole, (2, 3), strict=True):
        wait = decoder.launch(slots, num_frames)
        found = wait()
        assert found.num_frames == expected.num_frames and found.ended == expected.ended
        np.testing.assert_array_equal(found.codes, expected.codes)


@pytest.mark.parametrize("kind", [KernelDecoder, GraphDecoder])
def test_a_cancelled_launch_gives_whole_frames_and_does_not_reach_the_next(make_decoder, kind):
    decoder = make_decoder(kind, k.checkpoint())
    k.start(decoder, 0, Sampling(), seed=1)
    expected = decoder.step([0], 4).codes
    k.start(decoder, 0, Sampling(), seed=1)
    decoder.cancel()
    assert decoder.launch([0], 4)().num_frames == (0,)
    np.testing.assert_array_equal(decoder.launch([0], 4)().codes, expected)
