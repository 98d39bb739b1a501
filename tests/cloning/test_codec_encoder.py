"""Codes of recordings, compared with the official encoder's: none may differ."""

import numpy as np
import pytest
import torch
import waveforms

from qwen_megakernel.checkpoint.codec_config import parse_codec_config
from qwen_megakernel.checkpoint.random_configs import speech_tokenizer_config
from qwen_megakernel.cloning.codec_encoder import CodecEncoder
from qwen_megakernel.errors import RecordingError

RATE, FRAME = 24000, 1920


@pytest.fixture(scope="module")
def encoder(load_checkpoint):
    loaded = load_checkpoint("tiny-random-base")
    return CodecEncoder(loaded.codec_config, loaded.load_prefix("encoder."))


@pytest.mark.parametrize(
    "num_samples",
    [
        *(1, 959, 1919, 1920, 1921, 2880, 3841),  # around the frame's and the half frame's borders
        *(round(0.3 * RATE), 10007, 3 * RATE, 77777),
        *(11 * RATE + 1, 15 * RATE),  # beyond the 10 s window that the config names
    ],
)
def test_codes_are_the_official_ones(encoder, official_model, num_samples):
    for make in (waveforms.noise, waveforms.voice_like):
        samples = make(num_samples / RATE, RATE)
        ours = encoder.encode(samples)
        assert ours.dtype == np.int32 and len(ours) == -(-num_samples // FRAME)
        official = official_model("tiny-random-base").model.speech_tokenizer
        theirs = official.encode(samples, sr=RATE).audio_codes[0].numpy()
        assert np.array_equal(ours, theirs)


def test_different_sounds_have_different_codes(encoder):
    """Otherwise, equal codes would prove nothing. Later codebooks of random weights spread more."""
    codes = encoder.encode(waveforms.noise(4, RATE))
    assert all(len(np.unique(group)) >= 5 for group in codes.T)
    assert np.mean([len(np.unique(group)) for group in codes.T]) > 20


def test_encoding_is_causal(encoder):
    """Codes do not depend on later samples: a longer recording begins with the same codes."""
    samples = waveforms.voice_like(3, RATE)
    whole, start = encoder.encode(samples), encoder.encode(samples[: 20 * FRAME])
    assert np.array_equal(whole[:20], start)


def both_encoders(values, seed=0):
    """Return the official encoder of a config with random weights, and ours with the same."""
    from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import (
        Qwen3TTSTokenizerV2Encoder,
    )
    from transformers import MimiConfig

    torch.manual_seed(seed)
    official = Qwen3TTSTokenizerV2Encoder(MimiConfig(**values["encoder_config"])).eval()
    for name, buffer in official.named_buffers():
        if name.endswith("embed_sum"):
            buffer.normal_(std=0.01)
    return official, CodecEncoder(parse_codec_config(values), official.state_dict())


@torch.inference_mode()
def assert_equal_codes(official, ours, samples, num_codes=16):
    expected = official.encode(torch.from_numpy(samples)[None, None]).audio_codes[0, :num_codes].T
    assert np.array_equal(ours.encode(samples), expected.numpy())


@pytest.mark.usefixtures("official_package")
def test_released_shapes():
    official, ours = both_encoders(speech_tokenizer_config("random-0.6b-base"))
    assert_equal_codes(official, ours, waveforms.voice_like(1.1, RATE))


@pytest.mark.usefixtures("official_package")
@pytest.mark.parametrize("num_samples", [1, 1921, 77777, 15 * RATE])
def test_convolutions_that_hear_ahead_are_the_official_ones(num_samples):
    values = speech_tokenizer_config("tiny-random-base")
    values["encoder_config"] |= {"use_causal_conv": False, "kernel_size": 33}
    official, ours = both_encoders(values)
    samples = waveforms.noise(num_samples / RATE, RATE)
    assert_equal_codes(official, ours, samples, values["encoder_valid_num_quantizers"])
    if num_samples == 77777:  # what follows a frame changes its codes
        start = ours.encode(samples[: 20 * FRAME])
        assert not np.array_equal(ours.encode(samples)[:20], start)


def test_an_empty_recording_is_refused(encoder):
    with pytest.raises(RecordingError, match="no samples"):
        encoder.encode(np.empty(0, dtype=np.float32))
