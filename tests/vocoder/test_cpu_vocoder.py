"""The native vocoder against the vocoder in PyTorch."""

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from commands import run
from fixtures import module_value
from tolerances import AUDIO_F32, CPU_VOCODER_ERROR, LOUD_AUDIO_F32, STATE_F32
from torch import Tensor
from vocoder_toys import (
    TOY,
    TOY_SAMPLES,
    assert_positions_do_not_matter,
    codec_config,
    decode_in_chunks,
    random_codes,
    random_split,
    toy_tensors,
)

from qwen_megakernel.checkpoint.codec_config import CodecConfig
from qwen_megakernel.checkpoint.random_configs import speech_tokenizer_config
from qwen_megakernel.errors import ModelFilesError, UnsupportedModel, UsageError
from qwen_megakernel.native import cpu_library
from qwen_megakernel.native.cpu_library import BAD_CODE, CpuPool, open_library
from qwen_megakernel.vocoder.cpu import library as native
from qwen_megakernel.vocoder.cpu.vocoder import FIRST_BOOK, CpuVocoder, packed_tensors
from qwen_megakernel.vocoder.vocoder import Vocoder

Model = tuple[CodecConfig, dict[str, Tensor]]
MADE = {
    "toy": TOY,
    "odd": TOY | {"latent_dim": 19},
    "released": speech_tokenizer_config("random-0.6b")["decoder_config"],
}


@pytest.fixture(scope="module")
def model(load_checkpoint: Callable[[str], Any]) -> Callable[[str], Model]:
    """model(name) returns config and tensors of the toy or of a checkpoint."""

    def find(name: str) -> Model:
        if name in MADE:
            config = codec_config(MADE[name])
            return config, toy_tensors(config)
        loaded = load_checkpoint(name)
        return loaded.codec_config, loaded.codec_decoder

    return find


def fast(model: Model, num_threads: int = 2) -> CpuVocoder:
    return CpuVocoder(*model, CpuPool(open_library(), num_threads))


# made(name) returns the native vocoder, which is made once.
made = module_value(lambda model: functools.cache(lambda name: fast(model(name))))
vocoder = module_value(lambda made: made("toy"))


def rms(x: Tensor) -> float:
    return x.square().mean().sqrt().item()


RELEASED = pytest.param("released", marks=pytest.mark.ci)  # seconds of shapes that are large


@pytest.mark.parametrize("name", ["toy", "tiny-random", "demo-voice", RELEASED])
def test_samples_and_states_are_as_exact_as_those_of_torch(model, name):
    ours, theirs = fast(model(name)), Vocoder(*model(name))
    exact = Vocoder(*model(name), dtype=torch.float64)
    codes = random_codes(ours, 2, 24)
    for sizes in ([24], [1, 2, 4, 8, 9]):
        found = []
        for each in (ours, theirs, exact):
            states = [each.new_state() for _ in codes]
            parts = [each.step(part, states) for part in codes.split(sizes, dim=1)]
            found.append((torch.cat(parts, dim=1), torch.stack(states)))
        (pcm, values), (torch_pcm, torch_values), (exact_pcm, exact_values) = found
        assert pcm.shape == exact_pcm.shape and exact_pcm.std() > 0.02
        assert rms(pcm - exact_pcm) <= CPU_VOCODER_ERROR * rms(torch_pcm - exact_pcm)
        assert (pcm - torch_pcm).abs().max() <= AUDIO_F32
        assert rms(values - exact_values) <= CPU_VOCODER_ERROR * rms(torch_values - exact_values)
        assert (values - torch_values).abs().max() <= STATE_F32 * exact_values.abs().max()


# demo-voice's channels use the transforms along time; a chunk may end inside one of their tiles.
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["toy", "demo-voice"])
def test_any_split_gives_the_samples_of_the_whole(model, made, name, seed):
    vocoder = made(name)
    codes = random_codes(vocoder, 1, 90, seed=seed)
    whole = Vocoder(*model(name)).decode(codes[0])
    sizes = random_split(90, (1, 5, 12, 60)[seed], seed)
    pcm = decode_in_chunks(vocoder, codes, sizes)[0]
    assert (pcm - torch.from_numpy(whole)).abs().max() <= AUDIO_F32


def test_transforms_along_time_cost_little(model):
    """demo-voice has transforms of both kinds, for 2 and for 7 taps."""
    config, tensors = model("demo-voice")
    pool = CpuPool(open_library(), 2)
    made = [CpuVocoder(config, tensors, pool, is_direct=each) for each in (False, True)]
    assert made[0].packed.numel() > 1.2 * made[1].packed.numel()
    codes = random_codes(made[0], 40)
    fast_pcm, direct_pcm = (torch.from_numpy(each.decode(codes)) for each in made)
    exact = torch.from_numpy(Vocoder(config, tensors, dtype=torch.float64).decode(codes))
    errors = [rms(pcm - exact) for pcm in (fast_pcm, direct_pcm)]
    assert errors[1] < errors[0] <= 2 * CPU_VOCODER_ERROR * errors[1]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["toy", "odd", "demo-voice"])
def test_weights_in_float16_are_those_that_are_rounded_in_float32(model, name, seed):
    config, tensors = model(name)
    tiny = {key: values * 1e-4 for key, values in tensors.items() if key.endswith("conv1.weight")}
    given, pool = (config, tensors | tiny), CpuPool(open_library(), 2)
    half, full = CpuVocoder(*given, pool, is_half=True), CpuVocoder(*given, pool)
    weights = full.packed.view(torch.float32)
    assert half.packed.nbytes - 2 * len(weights) in range(64) and half.packed.nbytes % 64 == 0
    assert ((weights.half() != 0) & (weights.abs() < torch.finfo(torch.half).tiny)).any()
    weights.copy_(half.packed[: len(weights)])  # native code reads them here
    full.tables.copy_(half.tables)
    codes, sizes = random_codes(half, 3, 20, seed=seed), random_split(20, 12, seed)
    found, expected = (decode_in_chunks(each, codes, sizes) for each in (half, full))
    assert torch.equal(found, expected) and found.std() > 0.02


@pytest.mark.parametrize("name", ["toy", "demo-voice", RELEASED])
def test_products_with_weights_in_float16_are_exact(model, name):
    """The network in float64 has the same weights; those of transforms are rounded afterwards."""
    config, tensors = model(name)
    rounded = tensors | {key: tensors[key].half().float() for key in packed_tensors(config)}
    pool = CpuPool(open_library(), 2)
    half = CpuVocoder(config, tensors, pool, is_direct=True, is_half=True)
    torchs = [Vocoder(config, rounded, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    for each in torchs:
        each._codebooks.tables = each._codebooks.tables.half().to(each._codebooks.tables.dtype)
    codes = random_codes(half, 24)
    found, theirs, exact = (torch.from_numpy(each.decode(codes)) for each in (half, *torchs))
    assert rms(found - exact) <= CPU_VOCODER_ERROR * rms(theirs - exact)


@pytest.mark.parametrize("value", [1e5, torch.nan])
@pytest.mark.parametrize("name", ["decoder.2.block.1.conv.weight", f"{FIRST_BOOK}.embedding_sum"])
def test_weights_that_float16_does_not_hold_are_refused(model, name, value):
    config, tensors = model("toy")
    with pytest.raises(UnsupportedModel, match=r"float16\.\nUse --vocoder-weights float32"):
        broken = tensors | {name: tensors[name] + value}
        CpuVocoder(config, broken, CpuPool(open_library(), 1), is_half=True)


# More streams than one pass takes, chunks of several pieces, and remainders of both.
@pytest.mark.parametrize(
    ("num_streams", "num_frames"), [(5, 1), (19, 1), (3, 3), (6, 4), (3, 10), (2, 17)]
)
@pytest.mark.parametrize("name", ["toy", "demo-voice"])
def test_neither_threads_nor_company_change_a_bit(model, name, num_streams, num_frames):
    given = model(name)
    alone = fast(given, 1)
    codes = random_codes(alone, num_streams, 2 * num_frames)
    sizes = [num_frames] * 2
    expected = [decode_in_chunks(alone, codes[row : row + 1], sizes)[0] for row in range(2)]
    for num_threads in (1, 2, 3, os.cpu_count() + 2):
        pcm = decode_in_chunks(fast(given, num_threads), codes, sizes)
        for row, samples in enumerate(expected):
            assert torch.equal(pcm[row], samples)


def test_streams_at_different_positions_share_a_pass(vocoder):
    assert_positions_do_not_matter(vocoder)


# The toy sees 41 past frames, 15 of them through its convolutions.
@pytest.mark.parametrize("num_reference", [1, 5, 15, 17, 40, 41, 150])
@pytest.mark.parametrize("name", ["toy", "demo-voice"])
def test_warm_equals_decoding_the_reference(model, made, name, num_reference):
    vocoder = made(name)
    codes = random_codes(vocoder, num_reference + 20)
    reference, new = codes[:num_reference], codes[num_reference:]
    stepped, warmed = vocoder.new_state(), vocoder.new_state()
    vocoder.step(reference[None], [stepped])
    vocoder.warm(reference.numpy(), warmed)
    scale = stepped.abs().max()
    assert (warmed - stepped).abs().max() <= STATE_F32 * scale
    of_torch = Vocoder(*model(name))
    state = of_torch.new_state()
    of_torch.warm(reference, state)
    pcm = vocoder.step(new[None], [warmed])
    assert (pcm - of_torch.step(new[None], [state])).abs().max() <= AUDIO_F32


def test_a_stream_that_is_closed_between_chunks_leaves_the_others_as_they_are(made):
    vocoder = made("demo-voice")
    codes = random_codes(vocoder, 3, 12)
    expected = decode_in_chunks(vocoder, codes, [4, 4, 4])
    states = [vocoder.new_state() for _ in codes]
    first = vocoder.step(codes[:, :4], states)
    del states[1]  # closed: a new state may get its memory
    second = vocoder.step(codes[[0, 2], 4:8], states)
    newcomer = vocoder.new_state()
    third = vocoder.step(
        torch.cat([codes[[0, 2], 8:], codes[1:2, :4]]), [states[0], states[1], newcomer]
    )
    for row, of_all in enumerate((0, 2)):
        pcm = torch.cat([first[of_all], second[row], third[row]])
        assert torch.equal(pcm, expected[of_all])
    assert torch.equal(third[2], first[1])


LITTLE_MEMORY = """
import resource, sys, torch
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.errors import OutOfMemory
from qwen_megakernel.native.cpu_library import CpuPool, open_library
from qwen_megakernel.vocoder.cpu.vocoder import CpuVocoder

checkpoint = loading.load(loading.resolve("demo-voice"))
model, pool = (checkpoint.codec_config, checkpoint.codec_decoder), CpuPool(open_library(), 2)
vocoder = CpuVocoder(*model, pool)
codes = torch.randint(0, 100, (16, 8, checkpoint.codec_config.num_code_groups))
states = [vocoder.new_state() for _ in codes]
small = vocoder.step(codes[:1, :1], states[:1])  # its buffers are smaller than those of the rest

def limit(megabytes):
    pages = int(open("/proc/self/statm").read().split()[0])
    size = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))

def refuses(call, *arguments):
    try:
        call(*arguments)
    except OutOfMemory as error:
        return "fewer slots" in error.hint
    return False

before = [state.clone() for state in states]
pcm = torch.empty(16, 8 * vocoder.samples_per_frame)
limit(1)
assert refuses(vocoder._run, codes, states, 0, pcm), "a chunk"
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
assert all(torch.equal(state, old) for state, old in zip(states, before))
states[0] = vocoder.new_state()
assert torch.equal(vocoder.step(codes[:1, :1], states[:1]), small)
vocoder.step(codes, states)
sys.exit(7)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_too_little_memory_for_a_chunk_leaves_the_streams_and_the_vocoder(cache_folder):
    done = run("-c", LITTLE_MEMORY)
    assert done.returncode == 7, done.stderr


def test_a_stream_may_change_to_torch_and_back(model, vocoder):
    of_torch = Vocoder(*model("toy"))
    codes = random_codes(vocoder, 1, 24)
    state, samples = vocoder.new_state(), []
    for index, chunk in enumerate(codes.split(4, dim=1)):
        samples.append((vocoder, of_torch)[index % 2].step(chunk, [state]))
    whole = torch.from_numpy(of_torch.decode(codes[0]))
    assert (torch.cat(samples, dim=1)[0] - whole).abs().max() <= AUDIO_F32


def test_loud_audio_is_clipped(model):
    config, tensors = model("toy")
    loud = tensors | {"decoder.4.conv.weight": tensors["decoder.4.conv.weight"] * 30}
    codes = random_codes(Vocoder(config, loud), 10)
    pcm = fast((config, loud)).decode(codes)
    assert pcm.min() == -1 and pcm.max() == 1
    assert np.abs(pcm - Vocoder(config, loud).decode(codes)).max() <= LOUD_AUDIO_F32


@pytest.mark.parametrize(
    "name",
    [
        "decoder.0.conv.weight",
        "decoder.2.block.1.conv.bias",
        "decoder.1.block.3.act1.alpha",
        "upsample.0.1.gamma",
        "pre_transformer.layers.1.self_attn.q_proj.weight",
        "pre_transformer.layers.2.mlp.gate_proj.weight",
    ],
)
def test_nan_in_a_weight_is_heard_as_nan(model, name):
    config, tensors = model("toy")
    broken = fast((config, tensors | {name: tensors[name] * torch.nan}))
    pcm = broken.decode(random_codes(broken, 3))
    assert np.isnan(pcm).all()


def test_nan_in_a_stream_stays_its_own(vocoder):
    codes = random_codes(vocoder, 3, 8)
    expected = decode_in_chunks(vocoder, codes, [4, 4])
    states = [vocoder.new_state() for _ in codes]
    vocoder.step(codes[:, :4], states)
    states[1][1:].fill_(torch.nan)
    pcm = vocoder.step(codes[:, 4:], states)
    assert torch.isnan(pcm[1]).all()
    for row in (0, 2):
        assert torch.equal(pcm[row], expected[row, 4 * TOY_SAMPLES :])


@pytest.mark.parametrize("code", [-1, 24])
def test_codes_outside_the_codebook_are_refused_before_any_work(vocoder, code):
    codes = random_codes(vocoder, 2, 6)
    codes[1, 4, 2] = code
    states = [vocoder.new_state(), vocoder.new_state()]
    with pytest.raises(UsageError, match=rf"Code {code} is outside 0 \.\. 23"):
        vocoder.step(codes, states)
    with pytest.raises(UsageError, match=rf"Code {code} "):
        vocoder.warm(codes[1], states[0])
    # Native code does not rely on that.
    pcm = torch.zeros(2, 6 * TOY_SAMPLES)
    addresses = (ctypes.c_void_p * 2)(*(state.data_ptr() for state in states))
    request = native.VocoderRequest(
        codes.data_ptr(), ctypes.addressof(addresses), 2, 6, 0, pcm.data_ptr()
    )
    step = vocoder._library.qwen_cpu_vocoder_step
    assert step(vocoder._handle, ctypes.byref(request)) == BAD_CODE
    assert not pcm.any()
    assert not any(state.any() for state in states)


def test_a_tensor_that_does_not_fit_is_refused_by_name(model):
    config, tensors = model("toy")
    pool = CpuPool(open_library(), 1)
    short = tensors | {"pre_conv.conv.weight": tensors["pre_conv.conv.weight"][:-1]}
    with pytest.raises(ModelFilesError, match=r"pre_conv\.conv\.weight .* is \(19, 12, 3\)"):
        CpuVocoder(config, short, pool)
    del short["pre_conv.conv.weight"]
    with pytest.raises(ModelFilesError, match=r"pre_conv\.conv\.weight .* is missing"):
        CpuVocoder(config, short, pool)


def test_a_forked_child_decodes_and_so_does_its_parent(model):
    vocoder = fast(model("toy"))
    codes = random_codes(vocoder, 2)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, vocoder.decode(codes).tobytes())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert vocoder.decode(codes).tobytes() == os.read(reader, 4096)


@pytest.mark.ci  # compiles each library once
@pytest.mark.parametrize("name", cpu_library.sets_of_machine())
def test_every_instruction_set_computes_the_same(model, monkeypatch, name):
    if name not in cpu_library.supported_sets():
        pytest.skip(f"this CPU has no {name}")
    best = fast(model("demo-voice"))
    codes = random_codes(best, 12)
    expected = best.decode(codes)
    monkeypatch.setenv(cpu_library.FORCED, name)
    pcm = fast(model("demo-voice")).decode(codes)
    if name == "plain":  # which rounds products before it adds them
        assert np.abs(pcm - expected).max() <= AUDIO_F32
    else:
        np.testing.assert_array_equal(pcm, expected)
