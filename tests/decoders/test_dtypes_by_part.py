"""Talker and code predictor in different dtypes, on the backends that can compute so."""

import pytest
import torch
from tiny_speech import tiny_engine

from qwen_megakernel.choices import BACKENDS, DTYPES_BY_PART
from qwen_megakernel.decoders.backends import Backend, choose_backend, make_decoder
from qwen_megakernel.decoders.dtypes import dtypes_of
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import UsageError
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling

CPU = torch.device("cpu")
FULL, HALF = torch.float32, torch.bfloat16
NUM_FRAMES = 6
IN_TWO = {"torch", "graph"}


def logits(loaded, backend, talker, predictor):
    """Return the logits of talker and code predictor along the same codes."""
    sizes = DecoderSizes(1, 64, CPU, talker, predictor_dtype=predictor)
    decoder = make_decoder(loaded, Backend(backend, CPU, "asked for"), sizes)
    generator = torch.Generator().manual_seed(3)
    rows = 0.3 * torch.randn(9, loaded.config.talker.stack.hidden_size, generator=generator)
    rows = rows.to(HALF).to(talker)  # the same numbers in both dtypes
    prefill = Prefill(rows[:-1], rows[:0], rows[-1])
    decoder.prefill(0, prefill, Sampling.greedy(), seed=0, part=0)
    groups = loaded.config.talker.num_code_groups
    forced = torch.randint(0, 16, (1, NUM_FRAMES, groups), generator=generator)
    taps = {}
    decoder.step([0], NUM_FRAMES, forced, taps)
    return taps["talker"], taps["predictor"]


@pytest.mark.parametrize("backend", sorted(IN_TWO))
@pytest.mark.parametrize("model", ["tiny-random", "tiny-random-1.7b"])  # without, with projection
def test_each_part_computes_in_its_own_dtype(load_checkpoint, backend, model):
    loaded = load_checkpoint(model)
    full, half = (logits(loaded, backend, dtype, None) for dtype in (FULL, HALF))
    for talker, predictor in ((HALF, FULL), (FULL, HALF)):
        found = logits(loaded, backend, talker, predictor)
        # For given codes, the predictor's dtype does not change the talker's logits.
        assert torch.equal(found[0], (half if talker == HALF else full)[0])
        error, error_of_half = ((each[1] - full[1]).norm() for each in (found, half))
        assert 0 < error < error_of_half


@pytest.mark.parametrize("backend", sorted(IN_TWO))
def test_a_float32_predictor_rounds_nothing_behind_the_talkers_state(load_checkpoint, backend):
    """The first frame's codes follow a hidden state that bf16 has rounded for both predictors."""
    loaded = load_checkpoint("tiny-random-1.7b")
    by_part = logits(loaded, backend, HALF, FULL)[1]
    assert not torch.equal(by_part, by_part.to(HALF).float())
    in_half = logits(loaded, backend, HALF, None)[1]
    assert torch.equal(in_half, in_half.to(HALF).float())


@pytest.mark.parametrize("backend", sorted(set(BACKENDS) - IN_TWO - {"auto"}))
def test_other_backends_refuse_dtypes_by_part_and_say_why(backend, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("platform.mac_ver", lambda: ("15.0", ("", "", ""), "arm64"))
    for dtype in DTYPES_BY_PART:
        with pytest.raises(UsageError, match=f"{dtype}.*backend {backend} (is|runs|computes)") as e:
            choose_backend(backend, dtype=dtype)
        assert e.value.hint == "Use backend torch or graph."
    assert choose_backend(backend, dtype="bfloat16").name == backend


@pytest.mark.parametrize(("device", "name"), [("cpu", "torch"), ("cuda", "graph")])
def test_auto_takes_a_backend_that_computes_in_both(device, name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    chosen = choose_backend("auto", dtype=DTYPES_BY_PART[0])
    assert (chosen.name, chosen.device.type) == (name, device)
    assert "dtypes of their own" in chosen.why


def test_an_engine_says_both_dtypes_and_speaks():
    dtype = "talker=bfloat16,predictor=float32"
    with tiny_engine(dtype=dtype, device="cpu", backend="auto") as tts:
        assert (tts.backend, tts.dtype_name) == ("torch", dtype)
        decoder = tts._loop.stages.decoder
        kinds = {part: getattr(decoder, part).norm.dtype for part in ("talker", "predictor")}
        assert kinds == {"talker": HALF, "predictor": FULL}
        assert len(tts.synthesize("Hello.", seed=1, max_frames=3).codes) == 3


def test_what_is_no_dtype_is_refused_with_what_is():
    for wrong in ("talker=float16,predictor=float32", "predictor=float32", "half"):
        with pytest.raises(UsageError, match="known: float32, bfloat16, talker=float32,"):
            dtypes_of(wrong)
    assert dtypes_of("talker=bfloat16,predictor=float32") == (HALF, FULL)
