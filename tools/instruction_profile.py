#!/usr/bin/env python3
"""Count the instructions of a frame, stage by stage, as all blocks of a GPU would execute them.

Needs nvcc and no GPU: the kernel's PTX runs on the CPU (tools/ptx), a minute. PTX is not yet what a
GPU executes: moves between registers are left out, for ptxas removes most of them. A scheduler
starts one instruction a cycle at best, an integer one every second cycle: the counts bound from
below how long a stage keeps a block busy.
"""

import argparse
import ctypes
import os
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import torch

from benchmarks import common
from qwen_megakernel import build_tts, kernels
from qwen_megakernel.config import ModelConfig, parse_model_config
from qwen_megakernel.inventory import TALKER_PREFIX, model_tensors
from qwen_megakernel.synthetic_config import model_config
from qwen_megakernel.utterance import Sampling
from tools.frame_model import NUM_SMS
from tools.ptx import build as ptx

ARCH, CLOCK_GHZ = "sm_90a", 1.755  # of an H200 that is hot; NVIDIA: up to 1.98
LAYER = ("qkv_proj", "attention", "o_proj", "gate_up_proj", "down_proj")
NUM_CODE_GROUPS = 3  # a frame with two passes of the predictor: they are all alike


class Interval(ctypes.Structure):
    """Between two barriers, of the busiest scheduler: of all blocks, and of the mean block."""

    _fields_ = [
        ("instructions", ctypes.c_uint32),
        ("integers", ctypes.c_uint32),
        ("mean_instructions", ctypes.c_float),
    ]


def short(config: ModelConfig) -> ModelConfig:
    """The same shapes with one layer in each stack and fewer codes."""
    talker = config.talker
    stacks = [replace(each.stack, num_layers=1) for each in (talker, config.predictor)]
    return replace(
        config,
        talker=replace(
            talker, stack=stacks[0], num_code_groups=NUM_CODE_GROUPS, text_vocab_size=64
        ),
        predictor=replace(config.predictor, stack=stacks[1]),
    )


def stages() -> list[str]:
    """The stages of a frame of `short`, in their order."""
    names = ["input", *(f"talker {each}" for each in LAYER), "final_norm", "codec_head"]
    names.append("sample_code_0")
    for _ in range(1, NUM_CODE_GROUPS):
        names += [*(f"predictor {each}" for each in LAYER), "lm_head", "sample_code"]
    return names


def count(config: ModelConfig, num_streams: int) -> list[Interval]:
    """The stages of the second frame of `num_streams` streams."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        name.removeprefix(TALKER_PREFIX): 0.03 * torch.randn(shape, generator=generator)
        for name, shape in model_tensors(config).items()
    }
    os.environ["EMULATION_SMS"] = str(NUM_SMS)
    build_tts.build, build = (  # what is counted instead of what the emulation compiles
        lambda config, target: ptx.build(config, replace(target, arch=ARCH), count=True),
        build_tts.build,
    )
    decoder = kernels.KernelDecoder(
        SimpleNamespace(config=config, talker=weights),
        num_slots=num_streams,
        max_positions=64,
        max_text_rows=8,
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
    )
    build_tts.build = build
    decoder.launcher.timeout_seconds = 3600
    width = config.talker.stack.hidden_size
    for slot in range(num_streams):
        decoder.begin(slot, Sampling(), seed=slot, part=0)
        embeds = torch.randn(8, width, generator=generator).to(torch.bfloat16)
        decoder.prefill(slot, embeds, embeds[0])
    for _ in range(2):  # the first frame has no step of the talker
        decoder.step(list(range(num_streams)), 1)
    found = (Interval * 1000)()
    return list(found[: decoder.library._library.ptx_intervals(found, len(found))])


def main() -> None:
    """Print the counts, or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="random-0.6b", help="random-0.6b or random-1.7b")
    parser.add_argument("--streams", type=int, default=1)
    common.add_result_option(parser)
    args = parser.parse_args()
    full = parse_model_config(model_config(args.model))
    found = count(short(full), args.streams)
    names = stages()
    if len(found) not in (len(names), len(names) + 1):
        raise SystemExit(f"{len(found)} stages were counted, {len(names)} are known.")
    rows = defaultdict(list)
    for name, interval in zip(names, found, strict=False):
        rows[name].append(interval)
    print(f"{'stage':26} {'instructions':>12} {'integers':>9} {'us, at least':>12}")
    result = {}
    for name, intervals in rows.items():
        last = intervals[-1]
        cycles = max(last.instructions, 2 * last.integers)
        result[name] = {
            "instructions": last.instructions,
            "integers": last.integers,
            "mean_instructions": round(last.mean_instructions),
            "us": round(cycles / CLOCK_GHZ / 1000, 3),
        }
        print(f"{name:26} {last.instructions:12} {last.integers:9} {result[name]['us']:12}")


if __name__ == "__main__":
    main()
