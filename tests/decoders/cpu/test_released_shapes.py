"""The CPU decoder at the released widths: every run tests a few layers, `slow` all of them."""

import functools
import math
from dataclasses import replace

import pytest
import torch
from tolerances import KERNEL_LOGITS_F32, LOGITS_INT8_RMS

from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.checkpoint.tensor_shapes import TALKER_PREFIX, model_tensors
from qwen_megakernel.decoders import quantization
from qwen_megakernel.speech_options import Sampling

TEXT_ROWS = 8  # rows of the text table, which these tests do not read


@functools.cache
def drawn(model):
    """The configuration and random weights of two layers of the talker and one of the predictor."""
    config = parse_model_config(model_config(model))
    talker = replace(config.talker, stack=replace(config.talker.stack, num_layers=2))
    predictor = replace(config.predictor, stack=replace(config.predictor.stack, num_layers=1))
    config = replace(config, talker=talker, predictor=predictor)
    generator, tensors = torch.Generator().manual_seed(2), {}
    for name, shape in model_tensors(config).items():
        if not name.startswith(TALKER_PREFIX):
            continue
        name = name.removeprefix(TALKER_PREFIX)
        if name == "model.text_embedding.weight":
            shape = (TEXT_ROWS, *shape[1:])
        values = torch.randn(shape, generator=generator)
        size = 1 / math.sqrt(shape[-1]) if len(shape) > 1 and "embedding" not in name else 0.2
        middle = 1.0 if name.endswith("norm.weight") else 0.0
        tensors[name] = (middle + size * values).to(torch.bfloat16)
    return config, tensors


@pytest.fixture(scope="module")
def few_layers(load_checkpoint):
    """few_layers(model, weights): `drawn` as a checkpoint whose weights have this form."""

    def make(model, weights):
        config, tensors = drawn(model)
        if weights:
            tensors = quantization.quantize(tensors, weights)
        return replace(load_checkpoint("tiny-random"), config=config, talker=tensors)

    yield make
    drawn.cache_clear()  # hundreds of megabytes


FORMS = (None, "int8-groups-heads", "int4", "int8", "int8-groups", "int6")
# A default run has three forms of the small size.
CASES = [
    pytest.param(model, form, marks=[] if "0.6b" in model and form in FORMS[:3] else pytest.mark.ci)
    for model in ("random-0.6b", "random-1.7b")
    for form in FORMS
]


@pytest.mark.parametrize(("model", "weights"), CASES)
def test_forced_logits_at_released_widths(few_layers, native, plain, prompt, model, weights):
    checkpoint = few_layers(model, weights)
    groups = checkpoint.config.talker.num_code_groups
    forced = torch.randint(0, 2000, (1, 2, groups), generator=torch.Generator().manual_seed(1))
    taps = []
    for make in (native, plain):
        decoder = make(checkpoint)
        decoder.prefill(0, prompt(checkpoint), Sampling.greedy(), seed=5, part=0)
        decoder.step([0], 2, forced, found := {})
        taps.append(found)
    for name, ours in taps[0].items():
        difference, size = ours - taps[1][name], taps[1][name].std()
        assert size > 0.3
        if weights:
            assert difference.square().mean().sqrt() < LOGITS_INT8_RMS
        else:
            assert difference.abs().max() < KERNEL_LOGITS_F32


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["greedy", "sampled"])
def test_codes_of_the_whole_model_are_those_of_the_plain_decoder(
    load_checkpoint, native, plain, prompt, mode
):
    """It has bf16 weights, float32 arithmetic and 24 frames, and takes about 5 GB of memory.

    `pytest -s -m slow tests/decoders/cpu/test_released_shapes.py` found no difference in 384 codes,
    greedy and sampled, on 2026-11-24, on two cores of an AMD EPYC with AVX-512 VNNI.
    """
    checkpoint = load_checkpoint("random-0.6b")
    sampling = Sampling.greedy() if mode == "greedy" else Sampling()

    def draw(make, codes=None):
        decoder = make(checkpoint)
        decoder.prefill(0, prompt(checkpoint, num_text=30), sampling, seed=5, part=0)
        result = decoder.step([0], 24 if codes is None else codes.shape[1], codes)
        return torch.from_numpy(result.codes[:, : result.num_frames[0]])

    want = draw(plain)
    got = draw(native, want)  # forced codes: one near-tie changes no others
    num_frames, differing = want.shape[1], int((got != want).sum())
    print(f"{mode}: {differing} of {want.numel()} codes in {num_frames} frames differ")
    assert num_frames > 4 and differing == 0
