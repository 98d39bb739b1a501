"""Writes tiny models with random weights, with which a training can be tried offline.

A voice that is trained on them makes noise, not speech.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.printable import get_logger

if TYPE_CHECKING:
    import snac

logger = get_logger(__name__)

BASE_MODEL = "tiny-random-qwen2.5"
SNAC = "tiny-random-snac"
VERSION = 1  # raise it when the written files change

# The config of the published 24 kHz SNAC, whose encoder and decoder are wider (48 and 1024).
SNAC_CONFIG = {
    "sampling_rate": 24000,
    "encoder_dim": 4,
    "encoder_rates": [2, 4, 8, 8],
    "decoder_dim": 32,
    "decoder_rates": [8, 8, 4, 2],
    "attn_window_size": None,
    "codebook_size": 4096,
    "codebook_dim": 8,
    "vq_strides": [4, 2, 1],
    "noise": True,
    "depthwise": True,
}
# Without a gain the biases outweigh a recording, and all codes are the same.
ENCODER_GAIN = 2.0


def base_model() -> Path:
    """Return the folder of the language model; it is written at first use."""
    return _written(BASE_MODEL, _write_base_model)


def codec(snac_class: type[snac.SNAC]) -> Path:
    """Return the folder of the codec, a `snac.SNAC`; it is written at first use."""
    return _written(SNAC, partial(_write_snac, snac_class))


def _written(name: str, write: Callable[[Path], None]) -> Path:
    logger.warning("%s: RANDOM WEIGHTS from a seed. Its output is noise, not speech.", name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return loading.write_once(name, VERSION, write)


def _write_base_model(folder: Path) -> None:
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(loading.random_checkpoint("tiny-random"))
    config = Qwen2Config(
        vocab_size=len(tokenizer) + 40,  # padded, as in the released models
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        rope_theta=1e6,
        initializer_range=0.1,  # with less, past tokens hardly affect the next
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_snac(snac_class: type[snac.SNAC], folder: Path) -> None:
    model = snac_class(**SNAC_CONFIG)
    with torch.no_grad():
        for name, gain in model.encoder.named_parameters():
            if name.endswith("weight.original0"):
                gain.mul_(ENCODER_GAIN)
    folder.mkdir(parents=True)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(SNAC_CONFIG), encoding="utf-8")
