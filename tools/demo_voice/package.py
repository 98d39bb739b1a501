"""Make a checkpoint folder in the official layout from training states.

python -m tools.demo_voice.package --talker talker.pt --vocoder vocoder.pt --output demo-voice
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from qwen_megakernel.checkpoint.tensor_shapes import (
    CODEC_DECODER_PREFIX,
    CODEC_ENCODER_PREFIX,
    TALKER_PREFIX,
)
from qwen_megakernel.cli import parsing
from tools.demo_voice import recipe, tokenizer

WEIGHTS = "model.safetensors"
MAX_BYTES = 12e6


def package(
    folder: Path,
    talker: dict[str, Tensor] | None = None,
    vocoder: dict[str, Tensor] | None = None,
    encoder: dict[str, Tensor] | None = None,
) -> int:
    """Write a checkpoint folder; return its size in bytes.

    Args:
        folder: the folder to write; weights that are not given stay as they are there, and must
            have as many codes in a frame as the others.
        talker: names without "talker."; stored in bfloat16, as released models are.
        vocoder, encoder: of the codec, names without "decoder." and "encoder."; stored in float16,
            and widened when they are loaded.
    """
    codec = folder / "speech_tokenizer"
    codec.mkdir(parents=True, exist_ok=True)
    tokenizer.write(folder)
    books = codebook_shapes(vocoder or load_codec(folder))
    if talker and num_codes(talker) != len(books):
        raise ValueError(
            f"The talker draws {num_codes(talker)} codes a frame and the vocoder takes "
            f"{len(books)}; package a pair that was trained on the same codebooks."
        )
    configs = {
        folder / "config.json": recipe.model_config(len(books)),
        folder / "generation_config.json": recipe.generation_config(),
        folder / "preprocessor_config.json": recipe.preprocessor_config(),
        codec / "config.json": recipe.codec_config(len(books), books[0][1]),
        codec / "preprocessor_config.json": recipe.codec_preprocessor_config(),
    }
    for path, values in configs.items():
        path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    if talker:
        _write_weights(folder / WEIGHTS, talker, TALKER_PREFIX, torch.bfloat16)
    if vocoder or encoder:
        parts = {CODEC_DECODER_PREFIX: vocoder, CODEC_ENCODER_PREFIX: encoder}
        both = {
            prefix + name: tensor
            for prefix, part in parts.items()
            for name, tensor in (part or load_codec(folder, prefix)).items()
        }
        _write_weights(codec / WEIGHTS, both, "", torch.float16)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def load_codec(folder: Path, prefix: str = CODEC_DECODER_PREFIX) -> dict[str, Tensor]:
    """Return the float32 weights of the codec's vocoder, or of its encoder, by their names without
    the prefix; none if the checkpoint folder has none."""
    path = folder / "speech_tokenizer" / WEIGHTS
    return {
        name.removeprefix(prefix): tensor.float()
        for name, tensor in (load_file(path) if path.exists() else {}).items()
        if name.startswith(prefix)
    }


def num_codes(talker: dict[str, Tensor]) -> int:
    return 1 + sum(".lm_head." in name for name in talker)


def codebook_shapes(vocoder: dict[str, Tensor]) -> list[tuple[int, int]]:
    """Return (size, width) of each of a vocoder's codebooks."""
    return [
        (tensor.shape[0], tensor.shape[1])
        for name, tensor in vocoder.items()
        if name.startswith("quantizer.") and name.endswith("embedding_sum")
    ]


def _write_weights(path: Path, tensors: dict[str, Tensor], prefix: str, dtype: torch.dtype) -> None:
    stored = {prefix + name: t.detach().cpu().to(dtype) for name, t in tensors.items()}
    save_file(stored, path, metadata={"format": "pt"})


def main(args: argparse.Namespace) -> int:
    """Write the folder; return 1 if it is larger than it may be."""
    weights: dict[str, Any] = {
        part: torch.load(path, map_location="cpu", weights_only=True)["weights"] if path else None
        for part, path in (
            ("talker", args.talker),
            ("vocoder", args.vocoder),
            ("encoder", args.encoder),
        )
    }
    size = package(args.output, **weights)
    print(f"{args.output}: {size / 1e6:.2f} MB")
    return int(size > MAX_BYTES)


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add(
        "--talker",
        "state file of tools.demo_voice.train_talker; without it, the folder's talker stays",
        Path,
    )
    add(
        "--vocoder",
        "state file of tools.demo_voice.train_vocoder; without it, the folder's vocoder stays",
        Path,
    )
    add(
        "--encoder",
        "state file of tools.demo_voice.train_encoder; without it, the folder's encoder stays",
        Path,
    )
    add("--output", "checkpoint folder to write", Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main(parse_args()))
