"""One frame is one launch, and four frames are one launch, too."""

import contextlib
import ctypes
from unittest.mock import Mock

import kernel_models as k
import numpy as np
import pytest
import torch
from spies import watch

from qwen_megakernel.decoders.graph.decoder import GraphDecoder
from qwen_megakernel.decoders.kernel import launcher, loading
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.errors import UsageError
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling


@pytest.fixture
def counted(make_decoder, monkeypatch):
    """A decoder, and a list of its library's entry points in the order of their calls."""
    decoder = make_decoder(KernelDecoder, k.checkpoint())
    calls: list[str] = []
    for name in ("step", "forward"):
        watch(monkeypatch, decoder.library, name, lambda *_, name=name: calls.append(name))
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
    copies = Mock(wraps=launcher.download)
    monkeypatch.setattr(launcher, "download", copies)
    for slot in range(3):
        k.start(decoder, slot, Sampling(), seed=slot + 1)
    assert copies.call_count == 0  # a prompt copies nothing to the host
    decoder.step([0, 1, 2], 4)
    assert copies.call_count == 1


@pytest.mark.parametrize("kind", [KernelDecoder, GraphDecoder])
def test_a_prompt_is_made_and_enqueued_without_a_wait_for_the_device(make_decoder, kind):
    decoder = make_decoder(kind, k.checkpoint())
    if decoder.device.type == "cpu":
        pytest.skip("a CPU has nothing to wait for")
    k.start(decoder, 0, Sampling(), seed=1)  # work that is done only once may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        rows = decoder.embeddings.text(torch.arange(9))
        decoder.prefill(0, Prefill(rows, rows[:2], rows[0]), Sampling(), seed=1, part=0)
        with pytest.raises(RuntimeError, match="synchronizing"):
            rows[0, 0].item()  # this shows that a wait is detected
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert decoder.step([0], 1).num_frames == (1,)


def test_more_streams_than_a_launch_holds_are_waited_for_once(make_decoder, monkeypatch):
    decoder = make_decoder(KernelDecoder, k.checkpoint(), num_slots=35)
    log = []
    watch(monkeypatch, decoder.library, "step", lambda *_: log.append("step"))
    download = launcher.download

    def logged(values):
        wait = download(values)
        return lambda: log.append("wait") or wait()

    monkeypatch.setattr(launcher, "download", logged)
    for slot in range(35):
        k.start(decoder, slot, Sampling.greedy(), seed=1)
    found = decoder.step(list(range(35)), 2)
    assert log == ["step"] * 3 + ["wait"]
    assert found.num_frames == (2,) * 35 and (found.codes == found.codes[0]).all()


def test_of_several_launches_one_that_fails_loses_its_own_streams(make_decoder, monkeypatch):
    decoder = make_decoder(KernelDecoder, k.checkpoint(), num_slots=35)
    for slot in range(35):
        k.start(decoder, slot, Sampling.greedy(), seed=1)
    step, launches = decoder.library.step, []

    def losing_one(params, num_blocks, stream):
        if len(launches) == 1:
            decoder._buffers.controls.words[:, 0] = -1
            params.timeout_ns = 1000
        step(params, num_blocks, stream)
        decoder._buffers.controls.words[:, 0] = 0
        launches.append(params)

    monkeypatch.setattr(decoder.library, "step", losing_one)
    found = decoder.step(list(range(35)), 2)
    assert len(launches) == 3 and found.num_frames == (2,) * 16 + (0,) * 16 + (2,) * 3
    assert found.failures.keys() == set(range(16, 32)) and not found.codes[16:32].any()
    assert (found.codes[32:] == found.codes[0]).all()
    with pytest.raises(UsageError, match="Slot 16 has no stream"):
        decoder.step([16], 1)
    assert decoder.step([0, 34], 1).num_frames == (1, 1)


def test_a_launch_asks_nothing_of_the_device(make_decoder):
    decoder = make_decoder(KernelDecoder, k.checkpoint())
    if decoder.device.type == "cuda":
        pytest.skip("the emulation counts")
    asked = decoder.library._library.emulation_num_questions
    asked.restype = ctypes.c_ulonglong
    before = asked()
    for slot in range(2):
        k.start(decoder, slot, Sampling(), seed=1)
        decoder.step([slot], 1)
    assert asked() == before > 0


def test_the_library_is_called_on_its_decoders_gpu(make_decoder, monkeypatch):
    log = []

    @contextlib.contextmanager
    def current(device):
        log.append(device)
        yield
        log.append("left")

    for module in (loading, launcher):
        monkeypatch.setattr(module, "current", current)
    for name in ("max_blocks", "forward", "step"):
        watch(monkeypatch, loading.KernelLibrary, name, lambda *_, name=name: log.append(name))
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
