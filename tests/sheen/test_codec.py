"""SNAC: the real package at toy widths."""

import json
import shutil

import numpy as np
import pytest
import torch
import waveforms
from fixtures import module_value
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import NORMAL_KURTOSIS, NORMAL_MOMENTS, SNAC_CHUNKS_F32, nearly

from qwen_megakernel.errors import DatasetError, ModelFilesError, UnsupportedModel, UsageError
from qwen_megakernel.sheen import codes
from qwen_megakernel.sheen.codec import SnacCodec, find_snac
from qwen_megakernel.sheen.noise import normals

RATE = 24000

frames = module_value(lambda codec: codec.encode(waveforms.voice_like(1.5, RATE), RATE))


def in_chunks(codec, frames, sizes, lookahead=None):
    state, pieces, first = codec.new_state(), [], 0
    lookahead = codec.lookahead if lookahead is None else lookahead
    for size in sizes:
        chunk, ahead = frames[first : first + size], frames[first + size :][:lookahead]
        if len(chunk):
            pcm = codec.step(torch.from_numpy(chunk)[None], [state], torch.from_numpy(ahead)[None])
            pieces.append(pcm[0].numpy())
        first += size
    return np.concatenate(pieces)


def test_a_frame_is_2048_samples(codec, frames):
    assert codec.samples_per_frame == 2048 and codec.sample_rate == RATE
    assert codec.seconds_per_frame == nearly(1 / 11.71875)
    assert len(frames) == -(-len(waveforms.voice_like(1.5, RATE)) // 2048)
    assert codec.decode(frames).shape == (len(frames) * 2048,)


def test_codes_are_those_of_the_package(codec, snac_folder):
    from snac import SNAC

    sound = waveforms.voice_like(0.7, RATE)
    theirs = SNAC.from_pretrained(str(snac_folder)).encode(torch.from_numpy(sound)[None, None])
    ours = codes.deinterleave(codec.encode(sound, RATE))
    for mine, their in zip(ours, theirs, strict=True):
        assert np.array_equal(mine, their[0].numpy())


def test_samples_are_the_packages_given_the_same_noise(codec, snac_folder, frames, monkeypatch):
    """The package draws its noise with torch.randn, which here returns `normals`."""
    import snac.layers

    blocks = iter(range(4))

    def planted(shape, **options):
        return torch.from_numpy(normals(next(blocks), 0, shape[-1])).reshape(shape)

    theirs = snac.SNAC.from_pretrained(str(snac_folder))
    layers = [torch.from_numpy(layer).long()[None] for layer in codes.deinterleave(frames)]
    monkeypatch.setattr(snac.layers.torch, "randn", planted)
    with torch.inference_mode():
        sound = theirs.decode(layers)[0, 0].numpy()
    assert np.abs(sound - codec.decode(frames)).max() < SNAC_CHUNKS_F32
    assert next(blocks, None) is None


def test_the_same_codes_sound_the_same(codec, frames):
    assert np.array_equal(codec.decode(frames), codec.decode(frames))


@given(st.lists(st.integers(1, 9), min_size=18, max_size=18))
@settings(max_examples=8, deadline=None)
def test_chunks_equal_the_whole(codec, frames, sizes):
    pieces = in_chunks(codec, frames, sizes)
    assert np.abs(pieces - codec.decode(frames)).max() < SNAC_CHUNKS_F32


def test_less_context_would_be_heard(codec, frames):
    """The window is no larger than needed."""
    whole = codec.decode(frames)
    few = in_chunks(codec, frames, [2] * 9, lookahead=codec.lookahead - 1)
    assert np.abs(few - whole).max() > 10 * SNAC_CHUNKS_F32
    lookback, codec.lookback = codec.lookback, codec.lookback - 1
    try:
        assert np.abs(in_chunks(codec, frames, [2] * 9) - whole).max() > 10 * SNAC_CHUNKS_F32
    finally:
        codec.lookback = lookback


def test_the_context_is_what_gradients_reach(codec):
    """Gradients show which frames affect frame 8, independently of the walk through the layers."""
    decoder = codec._snac.decoder
    width = codec._snac.latent_dim
    codec._place.first_frame, codec._place.num_frames = 0, 17
    latents = torch.randn(1, width, 17 * 4, generator=torch.Generator().manual_seed(0))
    latents.requires_grad_()
    decoder(latents)[0, 0, 8 * 2048 : 9 * 2048].sum().backward()
    reached = torch.nonzero(latents.grad.abs().sum((0, 1)))[:, 0] // 4
    assert (8 - int(reached.min()), int(reached.max()) - 8) == (codec.lookback, codec.lookahead)


def test_other_streams_do_not_change_a_stream(codec, frames):
    alone = codec.step(torch.from_numpy(frames[:4])[None], [codec.new_state()])
    both = torch.from_numpy(np.stack([frames[:4], frames[5:9]]))
    together = codec.step(both, [codec.new_state(), codec.new_state()])
    assert torch.equal(alone[0], together[0])


def test_a_warmed_stream_goes_on(codec, frames):
    state = codec.new_state()
    codec.warm(frames[:9], state)
    pcm = codec.step(torch.from_numpy(frames[9:])[None], [state])[0].numpy()
    assert np.abs(pcm - codec.decode(frames)[9 * 2048 :]).max() < SNAC_CHUNKS_F32


def test_noise_is_normal_and_addressed():
    many = normals(0, 0, 400_000)
    assert abs(many.mean()) < NORMAL_MOMENTS and abs(many.std() - 1) < NORMAL_MOMENTS
    assert abs(np.mean(many**4) - 3) < NORMAL_KURTOSIS
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < NORMAL_MOMENTS
    for first, count in ((0, 1), (777, 1000), (1023, 5)):
        assert np.array_equal(normals(0, first, count), many[first : first + count])
    assert not np.array_equal(normals(1, 0, 100), many[:100])


@pytest.mark.parametrize("rate", [8000, 16000, 44100, 48000])
def test_any_rate_gives_the_frames_of_its_duration(codec, rate):
    assert len(codec.encode(waveforms.voice_like(1.0, rate), rate)) == 12


def test_bad_samples_and_codes_are_refused(codec):
    with pytest.raises(DatasetError, match="is empty"):
        codec.encode(np.empty(0, dtype=np.float32), RATE)
    with pytest.raises(DatasetError, match="NaN or infinity"):
        codec.encode(np.array([0, np.nan], dtype=np.float32), RATE)
    with pytest.raises(UsageError, match=r"codes are 0 \.\. 4096; this SNAC has 0 \.\. 4095"):
        codec.decode(np.array([[0, 0, 0, 0, 0, 0, 4096]]))


def test_folders_that_are_no_fitting_snac_are_refused(snac_folder, tmp_path):
    with pytest.raises(ModelFilesError, match=r"has no config\.json"):
        find_snac(str(tmp_path))
    shutil.copytree(snac_folder, tmp_path / "snac")
    config = json.loads((snac_folder / "config.json").read_text())
    path = tmp_path / "snac" / "config.json"
    for change, words in (
        ({"vq_strides": [8, 4, 2, 1]}, r"vq_strides are \[8, 4, 2, 1\]"),
        ({"attn_window_size": 32}, "attn_window_size is 32"),
    ):
        path.write_text(json.dumps(config | change))
        with pytest.raises(UnsupportedModel, match=words):
            SnacCodec(tmp_path / "snac")
    path.write_text(json.dumps(config | {"decoder_dim": 64}))
    with pytest.raises(ModelFilesError, match="cannot be loaded"):
        SnacCodec(tmp_path / "snac")
