"""Draws the weights of a random checkpoint on a device when they are needed; no file holds them.

They have the scales of `random_weights` but other values, which depend on the kind of device. A
model of the released shapes takes a second on a GPU; to write and read its files would take half a
minute.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from qwen_megakernel.checkpoint import random_weights
from qwen_megakernel.checkpoint.codec_config import CodecConfig
from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.checkpoint.random_weights import Fill
from qwen_megakernel.checkpoint.tensor_shapes import (
    CODEC_DECODER_PREFIX,
    TALKER_PREFIX,
    Shape,
    codec_tensors,
    model_tensors,
)

PREFIX = "drawn:"  # comes before the name of a random checkpoint


def talker(config: ModelConfig, device: torch.device) -> dict[str, Tensor]:
    """Draw the weights of talker and code predictor in bfloat16, by names without "talker.".

    The text embedding stays in host memory, as it does when it is read from a file.
    """
    fill = partial(random_weights.model_fill, eos=config.talker.codec_eos_id)
    tensors = _draw(model_tensors(config), TALKER_PREFIX, torch.bfloat16, fill, device)
    table = "model.text_embedding.weight"
    return tensors | {table: tensors[table].cpu()}


def codec_decoder(config: CodecConfig, device: torch.device) -> dict[str, Tensor]:
    """Draw the vocoder's weights in float32, by names without "decoder."."""
    shapes = codec_tensors(config, has_encoder=False)
    return _draw(shapes, CODEC_DECODER_PREFIX, torch.float32, random_weights.codec_fill, device)


def _draw(
    shapes: dict[str, Shape],
    prefix: str,
    dtype: torch.dtype,
    fill: Callable[[str, Shape], Fill],
    device: torch.device,
) -> dict[str, Tensor]:
    generator = torch.Generator(device).manual_seed(random_weights.DEFAULT_SEED)
    tensors = {}
    for name, shape in shapes.items():
        if name.startswith(prefix):
            its = fill(name, shape)
            values = torch.empty(shape, dtype=dtype, device=device)
            values.normal_(its.mean, its.std, generator=generator)
            if its.row_gain is not None:
                gain = torch.from_numpy(its.row_gain).to(device, dtype)
                values *= gain.view(-1, *[1] * (len(shape) - 1))
            tensors[name.removeprefix(prefix)] = values
    return tensors
