"""Slots: their limits, the count of text rows, and the choice of a backend."""

import gc
import weakref
from unittest.mock import Mock

import pytest
import torch
from fixtures import module_value

from qwen_megakernel.choices import DTYPES_BY_PART
from qwen_megakernel.decoders import backends
from qwen_megakernel.decoders.backends import (
    MAX_PROMPT_POSITIONS,
    Backend,
    choose_backend,
    default_dtype,
    load_decoder,
)
from qwen_megakernel.decoders.kernel import loading
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.decoders.kernel.library import KernelLibrary
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.errors import (
    BuildError,
    KernelTimeout,
    LaunchError,
    NoGPUError,
    TextTooLong,
    UsageError,
)
from qwen_megakernel.native import cpu_library
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling

FORCED_ON = Sampling.greedy()

loaded = module_value(lambda load_checkpoint: load_checkpoint("tiny-random"))


def decoder_for(loaded, max_frames):
    backend = choose_backend("torch", "cpu")
    return load_decoder(loaded, backend, num_slots=2, max_frames=max_frames)[0]


def prompt(loaded, num_positions=6, num_trailing=0):
    hidden = loaded.config.talker.stack.hidden_size
    torch.manual_seed(0)
    return Prefill(
        torch.randn(num_positions, hidden), torch.randn(num_trailing, hidden), torch.zeros(hidden)
    )


def draw(decoder, slot, count):
    """Return frames that never end: EOS is taken out of the head."""
    decoder.codec_head = decoder.codec_head.clone()
    decoder.codec_head[decoder.config.talker.codec_eos_id] = 0
    drawn = 0
    while drawn < count and decoder.frames_ready(slot):
        result = decoder.step([slot], min(4, count - drawn, decoder.frames_ready(slot)))
        drawn += result.num_frames[0]
        if result.ended[0]:
            break
    return drawn


@pytest.mark.parametrize("max_frames", [200, 600])
def test_a_slot_draws_exactly_as_many_frames_as_it_holds(loaded, max_frames, monkeypatch):
    decoder = decoder_for(loaded, max_frames)
    # This test is about the positions of frames, so one layer of the network is enough.
    groups = loaded.config.talker.num_code_groups
    monkeypatch.setattr(decoder.talker, "layers", decoder.talker.layers[:1])
    monkeypatch.setattr(
        decoder, "_draw_residual_codes", lambda state, code, *_: torch.tensor([code] * groups)
    )
    decoder.prefill(0, prompt(loaded), Sampling(), seed=1, part=0)
    assert draw(decoder, 0, max_frames + 1) == max_frames
    assert decoder.frames_ready(0) == 0
    with pytest.raises(UsageError, match="can draw 0 frames now, not 1"):
        decoder.step([0], 1)


def test_an_open_text_stalls_one_frame_past_its_rows(loaded):
    decoder = decoder_for(loaded, 50)
    decoder.prefill(0, prompt(loaded, num_trailing=3), FORCED_ON, seed=1, part=0, text_open=True)
    assert decoder.frames_ready(0) == 4
    with pytest.raises(UsageError, match="can draw 4 frames now, not 5"):
        decoder.step([0], 5)
    assert draw(decoder, 0, 10) <= 4
    decoder.prefill(0, prompt(loaded, num_trailing=3), FORCED_ON, seed=1, part=0, text_open=True)
    decoder.add_text(0, prompt(loaded, 2).embeds)
    assert decoder.frames_ready(0) == 6
    decoder.close_text(0)
    assert decoder.frames_ready(0) == 50


def test_too_much_prompt_or_text_is_refused_with_the_limit(loaded):
    decoder = decoder_for(loaded, 50)
    with pytest.raises(TextTooLong, match=str(MAX_PROMPT_POSITIONS)):
        decoder.prefill(0, prompt(loaded, MAX_PROMPT_POSITIONS + 1), FORCED_ON, seed=1, part=0)
    with pytest.raises(TextTooLong, match="50"):
        decoder.prefill(0, prompt(loaded, 5, 51), FORCED_ON, seed=1, part=0)


def test_more_frames_than_the_model_has_positions_are_refused(loaded):
    with pytest.raises(UsageError, match="positions"):
        decoder_for(loaded, loaded.config.talker.stack.max_positions)


@pytest.mark.parametrize(("requested", "device"), [("kernel", None), ("torch", "cuda")])
def test_a_gpu_that_is_not_there_is_named(requested, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NoGPUError, match="torch sees none"):
        choose_backend(requested, device)


@pytest.mark.parametrize(
    ("requested", "device", "message"),
    [
        ("fast", None, "backend is 'fast'"),
        ("kernel", "cpu", "does not run on device cpu"),
        ("emulation", "cuda", "does not run on device cuda"),
        ("auto", "tpu", "device is 'tpu'"),
        ("auto", "mps", "device is 'mps'"),
        ("auto", {"": 0}, "device is \"{'': 0}\""),  # as `device_map` of others takes it
        ("torch", "cuda:2", "torch sees 2"),
    ],
)
def test_impossible_choices_are_refused(requested, device, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match=message):
        choose_backend(requested, device)


def test_auto_takes_native_code_without_a_gpu_and_says_why(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    chosen = choose_backend("auto")
    assert (chosen.name, chosen.device.type) == ("cpu", "cpu") and "no GPU" in chosen.why


@pytest.mark.parametrize(
    ("dtype", "planted", "why"),
    [
        (torch.bfloat16, "g++", "only PyTorch computes"),
        (None, "no-such-compiler", "no native code"),
    ],
)
def test_auto_takes_torch_where_native_code_cannot_do_it(
    loaded, monkeypatch, tmp_path, dtype, planted, why
):
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(tmp_path))  # nothing is compiled yet

    def find():
        if planted != "g++":
            raise BuildError("No C++ compiler.")
        return planted

    monkeypatch.setattr(cpu_library, "find_compiler", find)
    decoder, runs = load_decoder(loaded, choose_backend("auto", "cpu"), max_frames=50, dtype=dtype)
    assert type(decoder) is PlainDecoder and runs.name == "torch" and why in runs.why
    with pytest.raises((UsageError, BuildError)):
        load_decoder(loaded, choose_backend("cpu"), max_frames=50, dtype=dtype)


def test_auto_takes_the_graphs_where_the_kernel_cannot_be_built_and_says_why(monkeypatch):
    def refuse(device):
        raise BuildError("nvcc was not found.")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(loading, "check_device", refuse)
    chosen = choose_backend("auto")
    assert (chosen.name, chosen.device.type) == ("graph", "cuda")
    assert "nvcc was not found" in chosen.why
    for dtype in (None, DTYPES_BY_PART[0]):
        with pytest.raises(UsageError, match="backend graph does not run 8-bit heads"):
            choose_backend("auto", weights="int8-heads", dtype=dtype)
        assert choose_backend("auto", weights="int8-groups", dtype=dtype).name == "graph"


@pytest.mark.parametrize(
    ("num_slots", "may_change", "name"),
    [(32, True, "kernel"), (33, True, "graph"), (33, False, "kernel")],
)
def test_auto_takes_the_graphs_for_many_slots(loaded, monkeypatch, num_slots, may_change, name):
    made, chosen = Mock(), Backend("kernel", torch.device("cuda"), "chosen", may_change=may_change)
    monkeypatch.setattr(backends, "make_decoder", made)
    _, runs = load_decoder(loaded, chosen, num_slots=num_slots, max_frames=50, dtype=torch.bfloat16)
    assert runs.name == made.call_args.args[1].name == name
    assert name == "kernel" or "33 slots, more than 32" in runs.why


@pytest.mark.parametrize("may_change", [True, False])
def test_a_refused_cooperative_grid_leads_auto_to_the_graphs(loaded, monkeypatch, may_change):
    """The library is built, and the launch is refused, as MIG and MPS do it."""
    monkeypatch.setenv("EMULATION_SMS", "2")
    fit = KernelLibrary.forward
    monkeypatch.setattr(
        KernelLibrary, "forward", lambda self, params, _, stream: fit(self, params, 3, stream)
    )
    backend = Backend("emulation", torch.device("cpu"), "chosen", may_change=may_change)
    if not may_change:
        decoder, runs = load_decoder(loaded, backend, max_frames=50)
        with pytest.raises(LaunchError):
            decoder.prefill(0, prompt(loaded), FORCED_ON, seed=1, part=0)
        return
    decoder, runs = load_decoder(loaded, backend, max_frames=50)
    assert runs.name == "graph"
    assert "The cooperative grid (3 blocks) was refused" in runs.why
    decoder.prefill(0, prompt(loaded), FORCED_ON, seed=1, part=0)
    assert decoder.step([0], 2).num_frames == (2,)


@pytest.mark.parametrize("error", [LaunchError, KernelTimeout])
def test_a_kernel_that_does_not_start_is_freed_before_graphs_are_loaded(loaded, monkeypatch, error):
    """Both would need twice the memory of the model."""
    made, living = backends.make_decoder, []

    def watched(*args):
        living.append([each for each in kernels if each()])
        decoder = made(*args)
        kernels.append(weakref.ref(decoder))
        return decoder

    def fail(self, *_, **__):
        failure = error("The grid was refused.")
        raise failure  # the error's traceback has this frame, which refers to the error

    kernels = []
    monkeypatch.setattr(backends, "make_decoder", watched)
    monkeypatch.setattr(KernelDecoder, "forward", fail)
    backend = Backend("emulation", torch.device("cpu"), "chosen", may_change=True)
    gc.disable()  # so that nothing is freed by chance
    try:
        _, runs = load_decoder(loaded, backend, max_frames=50)
    finally:
        gc.enable()
    assert runs.name == "graph" and living == [[], []]


def test_a_library_that_the_driver_does_not_take_leads_auto_to_the_graphs(loaded, monkeypatch):
    """The first call returns error 35, as for the library of an nvcc newer than the driver."""
    monkeypatch.setattr(KernelLibrary, "max_blocks", lambda self: self._check(35, 1))
    backend = Backend("emulation", torch.device("cpu"), "chosen", may_change=True)
    _, runs = load_decoder(loaded, backend, max_frames=50)
    assert runs.name == "graph" and "CUDA error 35" in runs.why


@pytest.mark.parametrize(
    ("capability", "dtype"), [((9, 0), torch.bfloat16), ((7, 5), torch.float32)]
)
def test_small_checkpoints_compute_in_float32_on_a_cpu_and_in_bf16_on_a_gpu_that_has_it(
    loaded, monkeypatch, capability, dtype
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    on_cpu, on_gpu = (Backend("torch", torch.device(name), "") for name in ("cpu", "cuda"))
    assert default_dtype(loaded, on_cpu) == torch.float32
    assert default_dtype(loaded, on_gpu) == dtype
