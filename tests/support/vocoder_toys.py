"""Vocoders with random weights under which every branch is audible, and codes for them."""

import math
import random
from typing import Any

import torch
from torch import Tensor

from qwen_megakernel.checkpoint.codec_config import CodecConfig, parse_codec_config
from qwen_megakernel.checkpoint.tensor_shapes import CODEC_DECODER_PREFIX, codec_tensors
from qwen_megakernel.vocoder.vocoder import Vocoder

# These differ from any release: grouped heads, head_dim that is not hidden / heads, other rates.
TOY = {
    "codebook_size": 24,
    "codebook_dim": 12,
    "num_quantizers": 3,
    "latent_dim": 20,
    "hidden_size": 16,
    "intermediate_size": 28,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "sliding_window": 9,
    "rope_theta": 10000,
    "rms_norm_eps": 1e-5,
    "decoder_dim": 16,
    "upsampling_ratios": [3],
    "upsample_rates": [4, 2],
}
TOY_SAMPLES = 24  # samples in a frame


def codec_config(decoder_config: dict[str, Any]) -> CodecConfig:
    rate = math.prod(decoder_config["upsampling_ratios"] + decoder_config["upsample_rates"])
    return parse_codec_config(
        {
            "model_type": "qwen3_tts_tokenizer_12hz",
            "decoder_config": decoder_config,
            "encoder_config": {},
            "encoder_valid_num_quantizers": decoder_config["num_quantizers"],
            "output_sample_rate": 24000,
            "decode_upsample_rate": rate,
        }
    )


def toy_tensors(config: CodecConfig) -> dict[str, Tensor]:
    """Return the decoder's tensors, filled."""
    tensors = {
        name.removeprefix(CODEC_DECODER_PREFIX): torch.empty(shape)
        for name, shape in codec_tensors(config).items()
        if name.startswith(CODEC_DECODER_PREFIX)
    }
    fill(tensors)
    return tensors


def fill(tensors: dict[str, Tensor]) -> None:
    generator = torch.Generator().manual_seed(5)
    for name, weight in tensors.items():
        mean, std = mean_and_std(name, weight)
        weight.normal_(mean, std, generator=generator)
        if name.endswith("cluster_usage"):
            weight.abs_()[::5] = 0  # entries that training never used
        if name.endswith("embedding_sum"):
            weight[::5] *= 1e-5


def mean_and_std(name: str, weight: Tensor) -> tuple[float, float]:
    kind = name.rsplit(".", 1)[-1]
    if kind == "embedding_sum":
        return 0.0, 0.5
    if kind == "cluster_usage":
        return 1.0, 0.2
    if kind in ("scale", "gamma"):
        return 0.5, 0.1
    if kind == "alpha":
        return -1.0, 0.3  # at 0 each snake would nearly double a rounding error
    if kind in ("beta", "bias"):
        return 0.0, 0.1
    if weight.ndim == 1:
        return 1.0, 0.1
    if weight.shape[0] == 1:
        return 0.0, 0.03 / math.sqrt(weight.shape[1:].numel())  # the last layer: a level below 1
    is_transposed = ".block.1." in name or ("upsample" in name and ".0.conv" in name)
    fan_in = weight.shape[0] if is_transposed else weight.shape[1:].numel()
    return 0.0, (0.3 if ".conv2." in name else 1.0) / math.sqrt(fan_in)


def random_codes(vocoder: Vocoder, *shape: int, seed: int = 0) -> Tensor:
    """Return [*shape, num_quantizers] int32, as the decoder of codes returns them."""
    config = vocoder.config
    generator = torch.Generator().manual_seed(seed)
    shape = (*shape, config.num_quantizers)
    return torch.randint(config.codebook_size, shape, generator=generator, dtype=torch.int32)


def random_split(total: int, largest: int, seed: int) -> list[int]:
    draw, sizes = random.Random(seed), []
    while sum(sizes) < total:
        sizes.append(min(draw.randint(1, largest), total - sum(sizes)))
    return sizes


def decode_in_chunks(vocoder: Vocoder, codes: Tensor, sizes: list[int]) -> Tensor:
    """Decode codes [n, num_frames, num_quantizers] in chunks to PCM [n, num_samples]."""
    states = [vocoder.new_state() for _ in codes]
    return torch.cat([vocoder.step(part, states) for part in codes.split(sizes, dim=1)], dim=1)


def assert_positions_do_not_matter(vocoder: Vocoder) -> None:
    """Check that streams at different positions have the samples that each has alone."""
    codes = random_codes(vocoder, 3, 30)
    expected = decode_in_chunks(vocoder, codes, [1] * 30)
    states = [vocoder.new_state() for _ in codes]
    positions = [0, 4, 23]  # inside and past the attention window
    for row, position in enumerate(positions):
        for frame in range(position):
            vocoder.step(codes[row : row + 1, frame : frame + 1], [states[row]])
    for _ in range(5):
        chunk = torch.stack([codes[row, at : at + 1] for row, at in enumerate(positions)])
        pcm = vocoder.step(chunk, states)
        for row, at in enumerate(positions):
            assert torch.equal(pcm[row], expected[row, at * TOY_SAMPLES : (at + 1) * TOY_SAMPLES])
        positions = [at + 1 for at in positions]
