"""oneDNN is off for a step of the plain decoder in bf16 on a CPU, and nowhere else."""

import contextlib

import pytest
import torch

from qwen_megakernel.decoders.onednn import without_onednn
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling

CPU = torch.device("cpu")


def is_on() -> bool:
    return torch._C._get_mkldnn_enabled()


@pytest.fixture(autouse=True)
def left_on():
    assert is_on()
    yield
    assert is_on()


def test_a_second_engine_keeps_it_off_when_the_first_has_done_its_step():
    first, second = (without_onednn(CPU, torch.bfloat16) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not is_on()
    second.__exit__(None, None, None)
    assert is_on()


def test_a_step_that_fails_turns_it_on_again():
    with contextlib.suppress(ZeroDivisionError), without_onednn(CPU, torch.bfloat16):
        assert not is_on()
        1 / 0  # noqa: B018
    assert is_on()


@pytest.mark.parametrize(("device", "dtype"), [("cpu", "float32"), ("cuda", "bfloat16")])
def test_it_stays_on_where_that_costs_nothing(device, dtype):
    with without_onednn(torch.device(device), getattr(torch, dtype)):
        assert is_on()


def test_a_host_that_has_it_off_keeps_it_off():
    torch._C._set_mkldnn_enabled(False)
    try:
        with without_onednn(CPU, torch.bfloat16):
            assert not is_on()
        assert not is_on()
    finally:
        torch._C._set_mkldnn_enabled(True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_decoder_turns_it_off_for_its_step_alone(load_checkpoint, dtype):
    sizes = DecoderSizes(1, 16, device=CPU, dtype=dtype)
    decoder = PlainDecoder(load_checkpoint("tiny-random"), sizes)
    seen = []
    for stack in (decoder.talker, decoder.predictor):
        stack.tap = lambda name, value: seen.append((name, is_on()))
    width = decoder.embeddings.codec_table.shape[1]
    row = torch.zeros(width, dtype=dtype)
    prefill = Prefill(torch.ones(3, width, dtype=dtype), row[None], row)
    decoder.prefill(0, prefill, Sampling.greedy(), seed=0, part=0)
    assert seen and all(on for _, on in seen)
    seen.clear()
    decoder.step([0], 2)
    assert {name.split(".")[0] for name, _ in seen} == {"talker", "code_predictor"}
    assert all(on == (dtype == torch.float32) for _, on in seen)
