"""Writes checkpoints of random weights in the exact official file layout, from a seed.

With them everything but the sound can be built, tested and timed without a download.

The scales make greedy decoding vary and end: branches that add up (gain 0.5), heads with a logit
deviation of 3, an end-of-speech row a little larger than the others. A plain N(0, 0.02)
initialisation never reaches the end of speech, and a branch gain of 0.02 falls into a loop.
"""

import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qwen_megakernel.checkpoint import safetensors_file
from qwen_megakernel.checkpoint.codec_config import parse_codec_config
from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import (
    model_config,
    read_json,
    speech_tokenizer_config,
)
from qwen_megakernel.checkpoint.tensor_shapes import Shape, codec_tensors, model_tensors

RECIPE_VERSION = 1  # part of the cache key; raise it when the written bytes change

CODEC_FOLDER = "speech_tokenizer"

DEFAULT_SEED = 1  # with it, some greedy utterances end, and not after a few frames

# A prime length, so that a tensor longer than the block repeats it shifted against its rows.
NOISE_LENGTH = 2**22 - 3
SLICE_LENGTH = 2**20  # elements scaled and written at a time

BRANCH_GAIN = 0.5  # o_proj, down_proj, LayerScale, gamma: the branches of residual sums
TEXT_EMBEDDING_STD = 1.0
CODEC_EMBEDDING_STD = 0.3
LOGIT_STD = 3.0
EOS_GAIN = 2.0
X_VECTOR_GAIN = 0.2  # of the speaker encoder's last layer, whose output is a row beside codec rows
BIAS_STD = 0.1
NORM_STD = 0.1
SNAKE_STD = 0.2  # standard deviation of the logarithms of alpha and beta
# For the vocoder's last convolution, times sqrt(fan_in): a speech-like level without clipping.
PCM_STD = 0.02

ENCODER_CODEBOOK_STD = 0.3  # small enough for quiet audio to reach many codes

# Rows of a codebook that training never used have usage 0, which decoders clamp to 1e-5.
DEAD_ROW_EVERY = 19
USAGE_CLAMP = 1e-5
USAGE_PERIOD = 13

WORDS = (  # Ġ stands for a space
    *("assistant", "user", "iPhone", "Hello", "The", "This", "ing", "er", "ed"),
    *("Ġthe", "Ġa", "Ġand", "Ġof", "Ġto", "Ġin", "Ġis", "Ġyou", "Ġit", "Ġthat"),
    *("Ġwas", "Ġfor", "Ġon", "Ġare", "Ġwith", "Ġhe", "Ġbe"),
)
TTS_TOKENS = ("<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")


def write_checkpoint(name: str, folder: Path, seed: int = DEFAULT_SEED) -> None:
    """Write the checkpoint `name` (of `RECIPES`) into `folder`, which is made if missing.

    The same name, seed and `RECIPE_VERSION` give the same bytes on any machine.
    """
    write_small_files(name, folder)
    codec_folder = folder / CODEC_FOLDER
    config, codec_config = model_config(name), speech_tokenizer_config(name)
    eos = config["talker_config"]["codec_eos_token_id"]
    _write_safetensors(
        folder / "model.safetensors",
        model_tensors(parse_model_config(config)),
        "BF16",
        _Noise(name, seed),
        partial(model_fill, eos=eos),
    )
    _write_safetensors(
        codec_folder / "model.safetensors",
        codec_tensors(parse_codec_config(codec_config)),
        "F32",
        _Noise(f"{name} codec", seed),
        codec_fill,
    )


def write_small_files(name: str, folder: Path) -> None:
    """Write everything of the checkpoint `name` but its weights."""
    codec_folder = folder / CODEC_FOLDER
    codec_folder.mkdir(parents=True, exist_ok=True)
    config = model_config(name)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", read_json("generation_config"))
    feature_extractor = read_json("preprocessor_config")
    processor = {"processor_class": "Qwen3TTSProcessor"}
    _write_json(folder / "preprocessor_config.json", feature_extractor | processor)
    _write_tokenizer(folder, config)
    _write_json(codec_folder / "config.json", speech_tokenizer_config(name))
    _write_json(codec_folder / "configuration.json", {"framework": "pytorch"})
    _write_json(codec_folder / "preprocessor_config.json", feature_extractor)


@dataclass(frozen=True, slots=True)
class Fill:
    """How the values of a tensor are made: (mean + std * noise) * row_gain[row]."""

    std: float
    mean: float = 0.0
    row_gain: np.ndarray | None = None


def model_fill(name: str, shape: Shape, eos: int) -> Fill:
    if name.endswith("text_embedding.weight"):
        return Fill(TEXT_EMBEDDING_STD)
    if "codec_embedding" in name:
        return Fill(CODEC_EMBEDDING_STD)
    if "lm_head" in name:
        return Fill(LOGIT_STD / sqrt(shape[1]))
    if "codec_head" in name:
        gain = np.ones(shape[0], np.float32)
        gain[eos] = EOS_GAIN
        return Fill(LOGIT_STD / sqrt(shape[1]), row_gain=gain)
    if name == "speaker_encoder.fc.weight":
        return Fill(X_VECTOR_GAIN / sqrt(shape[1]))
    return _common_fill(name, shape)


def codec_fill(name: str, shape: Shape) -> Fill:
    if name.endswith(".initialized"):
        return Fill(0.0, mean=1.0)
    if name.endswith("cluster_usage"):
        return Fill(0.0, mean=1.0, row_gain=_usage(shape[0]))
    if name.endswith(("embedding_sum", "embed_sum")):
        std = 1.0 if name.endswith("embedding_sum") else ENCODER_CODEBOOK_STD
        return Fill(std / sqrt(shape[1]), row_gain=np.maximum(_usage(shape[0]), USAGE_CLAMP))
    if name.endswith((".alpha", ".beta")):
        return Fill(SNAKE_STD)
    if name.endswith((".scale", ".gamma")):
        return Fill(BRANCH_GAIN * NORM_STD, mean=BRANCH_GAIN)
    if name.startswith("decoder.decoder.") and shape[0] == 1 and len(shape) == 3:
        return Fill(PCM_STD / sqrt(prod(shape[1:])))
    if re.fullmatch(r"decoder\.decoder\.\d+\.block\.1\.conv\.weight", name):
        return Fill(1 / sqrt(2 * shape[0]))  # transposed: each output sums two inputs' taps
    if re.fullmatch(r"decoder\.upsample\.\d+\.0\.conv\.weight", name):
        return Fill(1 / sqrt(shape[0]))  # transposed, without overlap
    if ".conv2." in name and name.endswith(".weight"):
        return Fill(BRANCH_GAIN / sqrt(prod(shape[1:])))
    return _common_fill(name, shape)


def _common_fill(name: str, shape: Shape) -> Fill:
    if name.endswith(".bias"):
        return Fill(BIAS_STD)
    if len(shape) == 1:
        return Fill(NORM_STD, mean=1.0)
    gain = BRANCH_GAIN if ".o_proj." in name or ".down_proj." in name or ".fc2." in name else 1.0
    return Fill(gain / sqrt(prod(shape[1:])))


def _usage(num_rows: int) -> np.ndarray:
    rows = np.arange(num_rows)
    return np.where(rows % DEAD_ROW_EVERY == DEAD_ROW_EVERY - 1, 0, 1 + rows % USAGE_PERIOD).astype(
        np.float32
    )


class _Noise:
    """A block of N(0, 1) that tensors read one after the other; at its end it starts over."""

    def __init__(self, name: str, seed: int):
        # RandomState is the only generator of numpy whose stream will never change.
        key = zlib.crc32(f"{name} {seed}".encode())
        self.block = np.random.RandomState(key).standard_normal(NOISE_LENGTH).astype(np.float32)
        self.position = 0

    def take(self, count: int) -> np.ndarray:
        """Return a copy of the next values, [count] f32."""
        first = self.position % len(self.block)
        self.position += count
        head = self.block[first : first + count]
        if len(head) == count:
            return head.copy()
        return np.concatenate([head, self.block[: count - len(head)]])


def _write_safetensors(
    path: Path,
    tensors: dict[str, Shape],
    dtype: str,
    noise: _Noise,
    fill: Callable[[str, Shape], Fill],
) -> None:
    """Write a safetensors file slice by slice, without a whole tensor in memory."""
    data = (
        # numpy has no bfloat16, so its bits go on as integers.
        torch.from_numpy(values).bfloat16().view(torch.int16).numpy() if dtype == "BF16" else values
        for name, shape in tensors.items()
        for values in _slices(shape, fill(name, shape), noise)
    )
    entries = {name: (dtype, shape) for name, shape in tensors.items()}
    safetensors_file.write(path, entries, data, {"format": "pt"})


def _slices(shape: Shape, fill: Fill, noise: _Noise) -> Iterator[np.ndarray]:
    row_length = prod(shape[1:])
    step = max(1, SLICE_LENGTH // row_length)
    for row in range(0, shape[0], step):
        num_rows = min(step, shape[0] - row)
        values = noise.take(num_rows * row_length).reshape(num_rows, row_length)
        values *= np.float32(fill.std)
        values += np.float32(fill.mean)
        if fill.row_gain is not None:
            values *= fill.row_gain[row : row + num_rows, None]
        yield values


def _write_tokenizer(folder: Path, config: dict[str, Any]) -> None:
    """Write a byte-level BPE with a few merges; the other ids below the special ones are filler.

    "assistant" is one token with the id of the config, "\\n" is one byte symbol (198).
    """
    assistant, im_start = config["assistant_token_id"], config["im_start_token_id"]
    tts_pad = config["tts_pad_token_id"]
    first_special = im_start - 1  # <|endoftext|>: the ids below it are in vocab.json
    # The merges build each of WORDS from the left.
    merges = list(dict.fromkeys((word[:i], word[i]) for word in WORDS for i in range(1, len(word))))
    tokens = [left + right for left, right in merges]
    # GPT-2's printable symbol for each byte, in the order of its vocabulary.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = map(chr, (*printable, *range(256, 512 - len(printable))))
    vocab = {symbol: i for i, symbol in enumerate(symbols)}
    free = (i for i in range(len(vocab), first_special) if i != assistant)
    for token in tokens:
        vocab[token] = assistant if token == "assistant" else next(free)
    for i in free:
        vocab[f"<filler_{i}>"] = i
    vocab = dict(sorted(vocab.items(), key=lambda item: item[1]))
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    names = {first_special: "<|endoftext|>", im_start: "<|im_start|>"}
    names[im_start + 1] = "<|im_end|>"
    names |= {tts_pad + i: token for i, token in enumerate(TTS_TOKENS)}
    specials = {  # without gaps: the loader numbers added tokens consecutively
        i: names.get(i, f"<|reserved_{i}|>")
        for i in range(first_special, tts_pad + len(TTS_TOKENS))
    }
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    added = {str(i): {"content": name} | flags | {"special": True} for i, name in specials.items()}
    tokenizer = read_json("tokenizer_config")
    _write_json(folder / "tokenizer_config.json", tokenizer | {"added_tokens_decoder": added})


def _write_json(path: Path, values: dict) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
