#!/usr/bin/env python3
"""Count the instructions of a frame or a prompt, stage by stage, as all blocks of a GPU would
execute them.

This needs nvcc and no GPU: the kernel's PTX runs on the CPU (tools/kernel_study/ptx) for some
minutes. A GPU executes ptxas' translation of the PTX; moves between registers are not counted,
because ptxas removes most of them. A scheduler starts at most one instruction a cycle, and an
integer one every second cycle, so the counts are a lower bound of the time for which a stage keeps
a block busy.
"""

import ctypes
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import torch

from qwen_megakernel.checkpoint.config import ModelConfig, parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.checkpoint.tensor_shapes import TALKER_PREFIX, model_tensors
from qwen_megakernel.decoders.kernel import decoder as kernel_decoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling

sys.path.insert(0, str(Path(__file__).parents[2]))
from qwen_megakernel.cli import parsing
from tools.kernel_study.ptx import build as ptx

NUM_SMS = 132  # of an H200
ARCH, CLOCK_GHZ = "sm_90a", 1.755  # clock of a hot H200; NVIDIA names up to 1.98
LAYER = ("qkv_proj", "attention", "o_proj", "gate_up_proj", "down_proj")
NUM_CODE_GROUPS = 10  # the predictor's last pass then has the positions of an average one
NUM_LAYERS = 2  # so that one layer follows another, as nearly all layers do
NUM_POSITIONS = 250  # in the talker's cache: a prompt and a dozen seconds


class Tally(ctypes.Structure):
    """The counts of the busiest scheduler of all blocks."""

    _fields_ = [("instructions", ctypes.c_uint32), ("integers", ctypes.c_uint32)]


class Interval(ctypes.Structure):
    """Counts before the blocks arrived at a barrier, and while they waited for each other there."""

    _fields_ = [("stage", Tally), ("waiting", Tally)]


def short(config: ModelConfig) -> ModelConfig:
    """Return the same shapes with fewer layers and codes."""
    talker = config.talker
    stacks = [replace(each.stack, num_layers=NUM_LAYERS) for each in (talker, config.predictor)]
    return replace(
        config,
        talker=replace(
            talker, stack=stacks[0], num_code_groups=NUM_CODE_GROUPS, text_vocab_size=64
        ),
        predictor=replace(config.predictor, stack=stacks[1]),
    )


def stages(num_streams: int) -> list[str]:
    """Return the stages of a frame of `short`, in their order."""
    # With one stream every block does the predictor's attention, at the beginning of o_proj.
    predictor = [each for each in LAYER if num_streams > 1 or each != "attention"]
    names = [
        "input",
        *(f"talker {each}" for each in LAYER * NUM_LAYERS),
        "final_norm",
        "codec_head",
    ]
    names.append("sample_code_0")
    for _ in range(1, NUM_CODE_GROUPS):
        names += [f"predictor {each}" for each in predictor * NUM_LAYERS]
        names += ["lm_head", "sample_code"]
    return names


def count(config: ModelConfig, num_streams: int, num_positions: int = 0) -> list[Interval]:
    """Return the stages of the second frame of some streams, or of a prompt of some positions."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        name.removeprefix(TALKER_PREFIX): 0.03 * torch.randn(shape, generator=generator)
        for name, shape in model_tensors(config).items()
    }
    os.environ["EMULATION_SMS"] = str(NUM_SMS)
    with ptx.instead_of_emulation(ARCH, count=True):
        decoder = kernel_decoder.KernelDecoder(
            SimpleNamespace(config=config, talker=weights),
            DecoderSizes(
                num_slots=num_streams,
                max_positions=NUM_POSITIONS + 8,
                device=torch.device("cpu"),
                dtype=torch.bfloat16,
            ),
        )
    decoder.launcher.timeout_seconds = 3600
    intervals = decoder.library._library.ptx_intervals
    found = (Interval * 1000)()
    width = config.talker.stack.hidden_size
    for slot in range(num_streams):
        shape = (num_positions or NUM_POSITIONS, width)
        embeds = torch.randn(shape, generator=generator).to(torch.bfloat16)
        prefill = Prefill(embeds, embeds[:0], embeds[0])
        decoder.prefill(slot, prefill, Sampling(), seed=slot, part=0)
    if num_positions:
        return list(found[: intervals(found, len(found))])
    for _ in range(2):  # a stream's first frame has no talker step
        decoder.step(list(range(num_streams)), 1)
    return list(found[: intervals(found, len(found))])


def main() -> None:
    """Print the counts."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add(
        "--model", "random-0.6b or random-1.7b: the model whose shapes to count", str, "random-0.6b"
    )
    add("--streams", "number of streams that the frame decodes", int, 1)
    add("--prompt", "count a prompt of this many positions in one pass, instead of a frame", int, 0)
    args = parser.parse_args()
    full = parse_model_config(model_config(args.model))
    found = count(short(full), args.streams, args.prompt)
    print(f"{'stage':26} {'instructions':>12} {'integers':>9} {'us, at least':>12} {'waiting':>8}")
    if args.prompt:
        names = ["input", *(f"talker {each}" for each in LAYER * NUM_LAYERS)]
    else:
        names = stages(args.streams)
    named = list(zip(names, found, strict=True))
    # A stage that recurs is printed once: its last occurrence, because the predictor's first pass
    # has two rows a stream. A block prepares nothing after a last layer, so the column `waiting`
    # has the maximum of all occurrences.
    for name, each in dict(named).items():
        stage = each.stage
        us = max(stage.instructions, 2 * stage.integers) / CLOCK_GHZ / 1000
        waiting = max(other.waiting.instructions for its, other in named if its == name)
        print(f"{name:26} {stage.instructions:12} {stage.integers:9} {us:12.3f} {waiting:8}")


if __name__ == "__main__":
    main()
