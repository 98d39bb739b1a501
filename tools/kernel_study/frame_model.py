#!/usr/bin/env python3
"""Calculate how long one frame of one stream takes on an H200: bytes, barriers and look-ahead.

Nothing here is measured on our kernel. The model walks through the stages of a frame as one block
sees them: weights arrive in the order in which they are read, as fast as memory delivers, while the
ring has room and for as many matrices as the forecast names; a stage multiplies what has arrived,
then everybody meets. It compares designs; the first run on a GPU (tools/gpu_check.sh) replaces it.
"""

import argparse
import os
from dataclasses import dataclass
from typing import NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # which torch reads when it is imported

from qwen_megakernel.checkpoint.config import ModelConfig, StackConfig, parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.choices import INT8_STACKS
from qwen_megakernel.decoders.kernel import build, packing

NUM_SMS = 132
BANDWIDTH = 4.3e6  # bytes a microsecond: the copy speed torch reports on an H200
LATENCY = 0.9  # us from the start of a copy to its arrival, under load
L2_LATENCY = 0.3  # us
BARRIER = 0.9  # us; csrc/README.md expects 0.7 to 1.1
# Instructions of the busiest scheduler in a microsecond: it starts one a cycle at 1.755 GHz.
ISSUE = 1755
# Of its four warps: a stage's before its first tile and behind its last, and those of attention
# (tools/kernel_study/instruction_profile.py; PTX).
ENTER = L2_LATENCY + 4 * 110 / ISSUE  # us until activations have been read again
LEAVE = 4 * 120 / ISSUE  # us to add the warps' sums and to store
# us of the talker's at 250 positions, which four blocks share: q, k and v, what is cached, each
# block's part and its ticket, all parts
ATTENTION = 5 * L2_LATENCY + 4 * 720 / ISSUE
SHORT_ATTENTION = 2 * L2_LATENCY + 4 * 325 / ISSUE  # us of the predictor's as a stage of its own
ATTENTION_EVERYWHERE = 4 * 510 / ISSUE  # us of the predictor's, as the beginning of o_proj
# us for one draw: logits, 435 instructions, three rounds of top-k in which the block meets twice,
# and the embedding of what was drawn
SAMPLING = L2_LATENCY + 4 * 435 / ISSUE + 0.6 + LATENCY
# us to multiply one tile in each of 16 warps: 42 instructions (in what ptxas makes for sm_90a)
TILE_TIME = 4 * 42 / ISSUE
# To widen int8 takes 20 more, 12 of them logical, at half rate.
INT8_TILE_TIME = TILE_TIME + 0.07
SCALES = 0.15  # us that the scales of int8 rows come later from L2 than the warps' sums are added
NUM_WARPS = build.GPU_THREADS // 32
TILE_WEIGHTS = packing.TILE_ROWS * packing.TILE_COLS * NUM_WARPS  # one tile for each


@dataclass(frozen=True, slots=True)
class Design:
    """What a variant of the kernel does differently."""

    ring_tiles: int = 7  # slots of a warp's ring that fit beside the stages on sm_90
    forecast: int = 2  # matrices fetched ahead of the one at hand
    norms_in_l2: bool = True  # or does every stage with a norm wait for memory?
    int8: tuple[str, ...] = ()  # stacks whose layers are
    attention_everywhere: bool = True  # the predictor's in every block, or a stage of its own?
    fused_draws: bool = False  # draws done by every block, without a barrier


class Stage(NamedTuple):
    """What one block does between two barriers."""

    extra: float  # us besides the product
    tiles: int = 0  # that one warp of the busiest block reads
    tile_time: float = TILE_TIME
    tile_bytes: int = 2 * TILE_WEIGHTS  # in all warps


class Block:
    """One block's clock and its stream of weights."""

    def __init__(self, design: Design, stages: list[Stage]):
        self.design, self.stages = design, stages
        self.now = 0.0
        self.arrived: list[float] = []  # when each tile is there
        self.read: list[float] = []  # when its slot was free again
        self.entered: list[float] = []  # when each stage with weights began

    def run(self) -> float:
        """Microseconds from the first stage to the end of the last."""
        matrices = [stage for stage in self.stages if stage.tiles]
        of_tile = [index for index, stage in enumerate(matrices) for _ in range(stage.tiles)]
        first_entry = [max(0, index - self.design.forecast) for index in of_tile]
        next_tile = 0

        def fetch(limit: int) -> None:
            """Start the copies of tiles below `limit`, in order."""
            nonlocal next_tile
            while next_tile < limit:
                start = self.entered[first_entry[next_tile]]
                if next_tile >= self.design.ring_tiles:
                    start = max(start, self.read[next_tile - self.design.ring_tiles])
                before = self.arrived[-1] if self.arrived else 0.0
                num_bytes = matrices[of_tile[next_tile]].tile_bytes
                transfer = num_bytes * NUM_SMS / BANDWIDTH
                self.arrived.append(max(start + LATENCY, before + transfer))
                next_tile += 1

        done = 0
        for stage in self.stages:
            if stage.tiles:
                self.entered.append(self.now)
                self.now += ENTER
                for tile in range(done, done + stage.tiles):
                    fetch(tile + 1)
                    self.now = max(self.now, self.arrived[tile]) + stage.tile_time
                    self.read.append(self.now)
                done += stage.tiles
                self.now += LEAVE
            self.now += stage.extra + BARRIER
        return self.now


def tiles_of(rows: int, cols: int) -> int:
    """Tiles that one warp of the busiest block reads of a matrix."""
    return -(-rows // packing.TILE_ROWS // NUM_SMS) * -(-cols // packing.TILE_COLS // NUM_WARPS)


def layer(
    stack: StackConfig, design: Design, *, int8: bool, attention_us: float | None
) -> list[Stage]:
    """The stages of a layer; attention is one of its own, or (None) the beginning of o_proj."""
    norm = 0.0 if design.norms_in_l2 else LATENCY - L2_LATENCY

    def product(extra: float, rows: int, cols: int) -> Stage:
        tiles = tiles_of(rows, cols)
        return Stage(extra, tiles, INT8_TILE_TIME, TILE_WEIGHTS) if int8 else Stage(extra, tiles)

    # Where sums are added to the residual, that is as late as the scales are.
    scales = SCALES if int8 else 0.0
    if attention_us is None:
        attention = [product(ATTENTION_EVERYWHERE + norm, stack.hidden_size, stack.q_size)]
    else:
        attention = [Stage(attention_us + norm), product(0.0, stack.hidden_size, stack.q_size)]
    return [
        product(norm + scales, stack.q_size + 2 * stack.kv_size, stack.hidden_size),
        *attention,
        product(norm + scales, 2 * stack.intermediate_size, stack.hidden_size),
        product(0.0, stack.hidden_size, stack.intermediate_size),
    ]


def frame(config: ModelConfig, design: Design) -> list[Stage]:
    """The stages of a frame, as csrc/frame.cuh goes through them."""
    talker, predictor = config.talker.stack, config.predictor.stack
    head = tiles_of(config.talker.vocab_size, talker.hidden_size)
    if config.has_projection:
        head += tiles_of(predictor.hidden_size, talker.hidden_size)
    lm_head = Stage(0.0, tiles_of(config.predictor.vocab_size, predictor.hidden_size))
    draw = Stage(SAMPLING - BARRIER if design.fused_draws else SAMPLING)
    talker_layer = layer(talker, design, int8="talker" in design.int8, attention_us=ATTENTION)
    predictor_layer = layer(
        predictor,
        design,
        int8="predictor" in design.int8,
        attention_us=None if design.attention_everywhere else SHORT_ATTENTION,
    )
    group = predictor_layer * predictor.num_layers + [lm_head, draw]
    start = [Stage(SAMPLING), *talker_layer * talker.num_layers, Stage(0.5), Stage(0.0, head), draw]
    return start + group * (config.talker.num_code_groups - 1)


VARIANTS = {
    "the kernel": Design(),
    **{weights: Design(int8=stacks) for weights, stacks in INT8_STACKS.items()},
    "one matrix ahead": Design(forecast=1),
    "no look-ahead": Design(forecast=0),
    "norms from memory": Design(norms_in_l2=False),
    "one matrix ahead, norms from memory": Design(forecast=1, norms_in_l2=False),
    "attention of the predictor as a stage of its own": Design(attention_everywhere=False),
    "draws in every block": Design(fused_draws=True),
}


def main() -> int:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    configs = [parse_model_config(model_config(name)) for name in ("random-0.6b", "random-1.7b")]
    print(f"{'ms a frame, calculated':52}{'0.6B':>6}{'1.7B':>6}")
    sizes = [sum(each.tiles * each.tile_bytes for each in frame(c, Design())) for c in configs]
    floor = "".join(f"{size * NUM_SMS / BANDWIDTH / 1000:6.2f}" for size in sizes)
    print(f"{'weights alone, as the busiest block reads them':52}{floor}")
    for name, design in VARIANTS.items():
        times = [Block(design, frame(config, design)).run() / 1000 for config in configs]
        print(f"{name:52}" + "".join(f"{each:6.2f}" for each in times))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
