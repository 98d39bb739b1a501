"""Measure tokens per second of greedy text decoding: python bench.py --model Qwen/Qwen3-0.6B

`--random` uses random weights with the dimensions of Qwen3-0.6B: the speed is the same, the text
has no meaning, and nothing is downloaded.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # runs from a checkout

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads it when it is imported

import torch
from model import Decoder  # the file beside this one

from benchmarks import common
from qwen_megakernel.cli.parsing import at_least
from qwen_megakernel.decoders.kernel.text_model import layer_tensors, text_sizes

# Qwen/Qwen3-0.6B, config.json.
QWEN3_06B = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
}
PROMPT_TOKENS = 16


def random_weights(values: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return finite random weights of the right shapes, in bf16."""
    generator = torch.Generator().manual_seed(0)

    def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        noise = torch.randn(shape, generator=generator)
        return (1 + 0.1 * noise if "norm" in name else noise / shape[-1] ** 0.5).bfloat16()

    shapes = layer_tensors(text_sizes(values).talker.stack)
    weights = {name: draw(name, shape) for name, shape in shapes.items()}
    table = (values["vocab_size"], values["hidden_size"])
    return weights | {"model.embed_tokens.weight": draw("embed_tokens", table)}


def main() -> int:
    """Measure the speed, print it, and write it to a file if the options name one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="folder or hub id")
    parser.add_argument("--random", action="store_true", help="random weights, 0.6B dimensions")
    parser.add_argument("--tokens", type=at_least(1), default=128)
    parser.add_argument("--runs", type=at_least(1), default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=("float32", "bfloat16"))
    common.add_result_option(parser)
    args = parser.parse_args()
    if (args.model is None) != args.random:
        parser.error("give --model or --random")
    if args.json:
        common.observe(args.idle)
    options = {"device": args.device, "dtype": getattr(torch, args.dtype), "end_ids": {-1}}
    if args.random:
        decoder = Decoder(QWEN3_06B, random_weights(QWEN3_06B), **options)
    else:
        decoder = Decoder.from_pretrained(args.model, **options)
    speeds = []
    for run in range(args.runs + 1):  # the first run warms up
        started = time.perf_counter()
        made = decoder.generate_ids(list(range(PROMPT_TOKENS)), args.tokens)
        speeds.append(len(made) / (time.perf_counter() - started))
        if run:
            print(f"run {run}: {speeds[-1]:.1f} tokens/s", flush=True)
    found = common.header() | {
        "model": args.model or "random weights, dimensions of Qwen3-0.6B",
        "device": args.device,
        "dtype": args.dtype,
        "settings": {"prompt_tokens": PROMPT_TOKENS, "tokens": args.tokens},
        "summary": {"tokens_per_s": common.spread(speeds[1:])},
    }
    print(json.dumps(found["summary"]))
    common.write_json(args.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
