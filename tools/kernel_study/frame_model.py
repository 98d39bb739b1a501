#!/usr/bin/env python3
"""Calculate how long one frame of one stream takes on an H200: bytes, barriers and look-ahead.

Nothing here is measured on our kernel, and the chip's prices are assumed twice: ideal ones, and
what such chips charge in ordinary programs (`CONSTANTS`). The model walks through the stages of a
frame as one block sees them: weights arrive in the order in which they are read, as fast as memory
delivers, while the ring has room and for as many matrices as the forecast names; a stage multiplies
what has arrived, then everybody meets. It compares designs; the first run on a GPU
(tools/gpu_check.sh) replaces it.
"""

import argparse
import os
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # which torch reads when it is imported

from qwen_megakernel.checkpoint.config import ModelConfig, StackConfig, parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.choices import INT8_STACKS
from qwen_megakernel.decoders.kernel import build, packing

NUM_SMS = 132
BANDWIDTH = 4.3e6  # bytes a microsecond: the copy speed torch reports on an H200
LATENCY = 0.9  # us from the start of a copy to its arrival, under load
IDEAL_ISSUE = 1755  # instructions of a scheduler in a microsecond: one a cycle, at 1.755 GHz
# To widen int8 takes 20 instructions more a tile, 12 of them logical, at half rate.
INT8_TILE_TIME = 0.07  # us, beside the tile's own
SCALES = 0.15  # us that the scales of int8 rows come later from L2 than the warps' sums are added
NUM_WARPS = build.GPU_THREADS // 32
TILE_WEIGHTS = packing.TILE_ROWS * packing.TILE_COLS * NUM_WARPS  # one tile for each


@dataclass(frozen=True, slots=True)
class Constants:
    """What the chip charges: prices that a GPU's first minutes measure, and what follows of them.

    Instructions are those of the busiest scheduler, of its four warps
    (tools/kernel_study/instruction_profile.py; PTX).
    """

    barrier: float = 0.9  # us; csrc/README.md expects 0.7 to 1.1
    l2_latency: float = 0.3  # us of one trip to L2
    issue: float = IDEAL_ISSUE
    tile_time: float = 4 * 42 / IDEAL_ISSUE  # us to multiply one tile in each of 16 warps (sm_90a)
    draw_extra: float = 0.0  # us of a draw beside its instructions, trips and meetings

    @property
    def enter(self) -> float:
        """Until activations have been read again: a stage's beginning before its first tile."""
        return self.l2_latency + 4 * 110 / self.issue

    @property
    def leave(self) -> float:
        """To add the warps' sums and to store."""
        return 4 * 120 / self.issue

    @property
    def attention(self) -> float:
        """Of the talker at 250 positions, which four blocks share: q, k and v, what is cached,
        each block's part and its ticket, all parts."""
        return 5 * self.l2_latency + 4 * 720 / self.issue

    @property
    def short_attention(self) -> float:
        """Of the predictor, as a stage of its own."""
        return 2 * self.l2_latency + 4 * 325 / self.issue

    @property
    def attention_everywhere(self) -> float:
        """Of the predictor, as the beginning of o_proj."""
        return 4 * 510 / self.issue

    @property
    def draw(self) -> float:
        """One draw: logits, 435 instructions, three rounds of top-k in which the block meets twice,
        and the embedding of what was drawn."""
        return self.l2_latency + 4 * 435 / self.issue + 0.6 + LATENCY + self.draw_extra

    @property
    def int8_tile_time(self) -> float:
        """To widen and multiply one tile of int8."""
        return self.tile_time + INT8_TILE_TIME * IDEAL_ISSUE / self.issue


IDEAL = Constants()
# What such chips charge in ordinary programs: a barrier behind stores that drain among the traffic
# of weights, trips to L2 that queue there, two instructions in three cycles, four products that
# wait for each other, and counting in shared memory that collides.
REALISTIC = Constants(
    barrier=1.2, l2_latency=0.45, issue=0.67 * IDEAL_ISSUE, tile_time=0.15, draw_extra=1.0
)
CONSTANTS = {"ideal": IDEAL, "realistic": REALISTIC}


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
    is_int8: bool = False

    @property
    def tile_bytes(self) -> int:
        """In all warps."""
        return TILE_WEIGHTS * (1 if self.is_int8 else 2)


class Block:
    """One block's clock and its stream of weights."""

    def __init__(self, design: Design, stages: list[Stage], constants: Constants = IDEAL):
        self.design, self.stages, self.constants = design, stages, constants
        self.now = 0.0
        self.arrived: list[float] = []  # when each tile is there
        self.read: list[float] = []  # when its slot was free again
        self.entered: list[float] = []  # when each stage with weights began

    def run(self) -> float:
        """Microseconds from the first stage to the end of the last."""
        c = self.constants
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
                self.now += c.enter
                for tile in range(done, done + stage.tiles):
                    fetch(tile + 1)
                    self.now = max(self.now, self.arrived[tile])
                    self.now += c.int8_tile_time if stage.is_int8 else c.tile_time
                    self.read.append(self.now)
                done += stage.tiles
                self.now += c.leave
            self.now += stage.extra + c.barrier
        return self.now


def tiles_of(rows: int, cols: int) -> int:
    """Tiles that one warp of the busiest block reads of a matrix."""
    return -(-rows // packing.TILE_ROWS // NUM_SMS) * -(-cols // packing.TILE_COLS // NUM_WARPS)


def layer(
    stack: StackConfig, design: Design, c: Constants, *, int8: bool, attention_us: float | None
) -> list[Stage]:
    """The stages of a layer; attention is one of its own, or (None) the beginning of o_proj."""
    norm = 0.0 if design.norms_in_l2 else LATENCY - c.l2_latency

    def product(extra: float, rows: int, cols: int) -> Stage:
        return Stage(extra, tiles_of(rows, cols), int8)

    # Where sums are added to the residual, that is as late as the scales are.
    scales = SCALES if int8 else 0.0
    if attention_us is None:
        attention = [product(c.attention_everywhere + norm, stack.hidden_size, stack.q_size)]
    else:
        attention = [Stage(attention_us + norm), product(0.0, stack.hidden_size, stack.q_size)]
    return [
        product(norm + scales, stack.q_size + 2 * stack.kv_size, stack.hidden_size),
        *attention,
        product(norm + scales, 2 * stack.intermediate_size, stack.hidden_size),
        product(0.0, stack.hidden_size, stack.intermediate_size),
    ]


def frame(config: ModelConfig, design: Design, c: Constants = IDEAL) -> list[Stage]:
    """The stages of a frame, as csrc/frame.cuh goes through them."""
    talker, predictor = config.talker.stack, config.predictor.stack
    head = tiles_of(config.talker.vocab_size, talker.hidden_size)
    if config.has_projection:
        head += tiles_of(predictor.hidden_size, talker.hidden_size)
    lm_head = Stage(0.0, tiles_of(config.predictor.vocab_size, predictor.hidden_size))
    draw = Stage(c.draw - c.barrier if design.fused_draws else c.draw)
    talker_layer = layer(talker, design, c, int8="talker" in design.int8, attention_us=c.attention)
    predictor_layer = layer(
        predictor,
        design,
        c,
        int8="predictor" in design.int8,
        attention_us=None if design.attention_everywhere else c.short_attention,
    )
    group = predictor_layer * predictor.num_layers + [lm_head, draw]
    start = [Stage(c.draw), *talker_layer * talker.num_layers, Stage(0.5), Stage(0.0, head), draw]
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


def frame_ms(config: ModelConfig, design: Design, constants: Constants = IDEAL) -> float:
    """Milliseconds of a frame."""
    return Block(design, frame(config, design, constants), constants).run() / 1000


def parse_constants(text: str) -> Constants:
    """Constants of --set: the realistic ones, some of them replaced: "barrier=1.3,l2_latency=0.5".

    Raises:
        ArgumentTypeError: no such constant, or no number.
    """
    try:
        values = {name: float(value) for name, value in (s.split("=") for s in text.split(","))}
        return replace(REALISTIC, **values)
    except (ValueError, TypeError) as error:
        names = ", ".join(each.name for each in fields(Constants))
        raise argparse.ArgumentTypeError(f"{text!r}; known constants: {names}") from error


def main() -> int:
    """Print the table: designs by constants, then what each realistic price costs alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--set",
        type=parse_constants,
        metavar="NAME=VALUE,...",
        help="realistic constants with measured ones in their place, as columns of their own",
    )
    args = parser.parse_args()
    configs = [parse_model_config(model_config(name)) for name in ("random-0.6b", "random-1.7b")]
    columns = CONSTANTS | ({"as set": args.set} if args.set else {})
    head = "".join(f"{name:>11}      " for name in columns)
    print(f"{'ms a frame, calculated':50}{head}")
    print(f"{'':50}" + f"{'0.6B':>10}{'1.7B':>7}" * len(columns))
    sizes = [sum(each.tiles * each.tile_bytes for each in frame(c, Design())) for c in configs]
    floor = [size * NUM_SMS / BANDWIDTH / 1000 for size in sizes]
    print(f"{'weights alone, as the busiest block reads them':50}{floor[0]:10.2f}{floor[1]:7.2f}")

    def line(name: str, times: list[float]) -> str:
        return f"{name:50}" + "".join(
            f"{each:{10 if index % 2 == 0 else 7}.2f}" for index, each in enumerate(times)
        )

    for name, design in VARIANTS.items():
        print(line(name, [frame_ms(c, design, each) for each in columns.values() for c in configs]))
    print("\none realistic price alone, the others ideal")
    for field in fields(Constants):
        value = getattr(REALISTIC, field.name)
        alone = replace(IDEAL, **{field.name: value})
        print(line(f"{field.name} {value:.4g}", [frame_ms(c, Design(), alone) for c in configs]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
