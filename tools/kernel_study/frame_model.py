#!/usr/bin/env python3
"""Calculate how long one frame of one stream takes on an H200: bytes, barriers and look-ahead.

Nothing here is measured on the kernel. The chip's prices (times of single operations) are assumed
twice: ideal ones, and those of such chips in ordinary programs (`CONSTANTS`). The model walks
through the stages of a frame as one block sees them: weights arrive in the order in which they are
read, as fast as memory delivers, while the ring has room and for as many matrices as the forecast
names; a stage multiplies the tiles that have arrived, then all blocks meet. It compares designs;
the first run on a GPU (tools/gpu_check.sh) replaces it.
"""

import argparse
import os
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

from qwen_megakernel.checkpoint.config import ModelConfig, StackConfig, parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.choices import INT8_STACKS
from qwen_megakernel.cli import parsing
from qwen_megakernel.decoders.kernel import build, packing

NUM_SMS = 132
BANDWIDTH = 4.3e6  # bytes a microsecond: the copy speed torch reports on an H200
LATENCY = 0.9  # us from a copy's start to its arrival, under load
IDEAL_ISSUE = 1755  # instructions of a scheduler per microsecond: one a cycle, at 1.755 GHz
# Instructions of a warp for a tile, counted in ptxas' code for sm_90a (benchmarks/LOG.md): for a
# tile alone, and for one of the two row tiles that a warp multiplies in turn (csrc/matvec.cuh).
TILE_INSTRUCTIONS, PAIRED_TILE_INSTRUCTIONS = 42, 35
# Widening int8 takes 20 instructions more a tile, 12 of them logical, at half rate.
INT8_TILE_TIME = 0.07  # us, in addition to the tile's own
SCALES = 0.15  # us from the moment the warps' sums are added until int8 scales arrive from L2
NUM_WARPS = build.GPU_THREADS // 32
TILE_WEIGHTS = packing.TILE_ROWS * packing.TILE_COLS * NUM_WARPS  # one for each warp


@dataclass(frozen=True, slots=True)
class Constants:
    """The chip's prices, which the first GPU run will measure, and the times that follow from them.

    Instructions are those of the busiest scheduler, with its four warps
    (tools/kernel_study/instruction_profile.py; PTX).
    """

    barrier: float = 0.9  # us; benchmarks/LOG.md predicts 0.7 to 1.1
    l2_latency: float = 0.3  # us of one trip to L2
    issue: float = IDEAL_ISSUE
    tile_time: float = 4 * TILE_INSTRUCTIONS / IDEAL_ISSUE  # us of a single tile in every warp
    draw_extra: float = 0.0  # us of a draw besides its instructions, trips and barriers

    @property
    def enter(self) -> float:
        """A stage's time before its first tile, in which it reads activations."""
        return self.l2_latency + 4 * 110 / self.issue

    @property
    def leave(self) -> float:
        """The time to add the warps' sums and to store the result."""
        return 4 * 120 / self.issue

    @property
    def attention(self) -> float:
        """The talker's attention at 250 positions, which four blocks share: q, k and v, the cache,
        each block's part and its ticket, all parts.
        """
        return 5 * self.l2_latency + 4 * 720 / self.issue

    @property
    def short_attention(self) -> float:
        """The predictor's attention as a stage of its own."""
        return 2 * self.l2_latency + 4 * 325 / self.issue

    @property
    def attention_everywhere(self) -> float:
        """The predictor's attention at the beginning of o_proj."""
        return 4 * 510 / self.issue

    @property
    def draw(self) -> float:
        """One draw: logits, 435 instructions, three rounds of top-k in which the block meets twice,
        and the embedding of the drawn code.
        """
        return self.l2_latency + 4 * 435 / self.issue + 0.6 + LATENCY + self.draw_extra

    def tile(self, stage: "Stage") -> float:
        """Return the time of a tile of this stage, averaged over paired and single tiles."""
        saved = 1 - PAIRED_TILE_INSTRUCTIONS / TILE_INSTRUCTIONS
        widening = INT8_TILE_TIME * IDEAL_ISSUE / self.issue if stage.is_int8 else 0.0
        return self.tile_time * (1 - saved * stage.paired / stage.tiles) + widening


IDEAL = Constants()
# The prices of such chips in ordinary programs: a barrier after stores that drain among the traffic
# of weights, trips to L2 that queue there, two instructions in three cycles, four products that
# wait for each other, and counting in shared memory that collides.
REALISTIC = Constants(
    barrier=1.2, l2_latency=0.45, issue=0.67 * IDEAL_ISSUE, tile_time=0.15, draw_extra=1.0
)
CONSTANTS = {"ideal": IDEAL, "realistic": REALISTIC}


@dataclass(frozen=True, slots=True)
class Design:
    """The choices in which a variant of the kernel differs."""

    ring_tiles: int = 7  # slots of a warp's ring that fit beside the stages on sm_90
    forecast: int = 2  # matrices fetched ahead of the current one
    norms_in_l2: bool = True  # False: every stage with a norm waits for memory
    int8: tuple[str, ...] = ()  # stacks with int8 layers
    attention_everywhere: bool = True  # False: the predictor's is a stage of its own
    fused_draws: bool = False  # every block draws, without a barrier


class Stage(NamedTuple):
    """What one block does between two barriers."""

    extra: float  # us besides the product
    tiles: int = 0  # tiles that one warp of the busiest block reads
    paired: int = 0  # how many of them are multiplied two at a time
    is_int8: bool = False

    @property
    def tile_bytes(self) -> int:
        """Bytes of one tile in each warp."""
        return TILE_WEIGHTS * (1 if self.is_int8 else 2)


class Block:
    """One block's clock and its stream of weights."""

    def __init__(self, design: Design, stages: list[Stage], constants: Constants = IDEAL):
        self.design, self.stages, self.constants = design, stages, constants
        self.now = 0.0
        self.arrived: list[float] = []  # when each tile has arrived
        self.read: list[float] = []  # when its slot became free again
        self.entered: list[float] = []  # when each stage with weights began

    def run(self) -> float:
        """Return the microseconds from the first stage to the end of the last."""
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
                tile_time = c.tile(stage)
                for tile in range(done, done + stage.tiles):
                    fetch(tile + 1)
                    self.now = max(self.now, self.arrived[tile])
                    self.now += tile_time
                    self.read.append(self.now)
                done += stage.tiles
                self.now += c.leave
            self.now += stage.extra + c.barrier
        return self.now


def tiles_of(rows: int, cols: int) -> tuple[int, int]:
    """Return the tiles of a matrix that one warp of the busiest block reads, and how many in pairs.

    A warp takes the block's row tiles two at a time, so only an odd last one is alone.
    """
    row_tiles = -(-rows // packing.TILE_ROWS // NUM_SMS)
    col_tiles = -(-cols // packing.TILE_COLS // NUM_WARPS)
    return row_tiles * col_tiles, row_tiles // 2 * 2 * col_tiles


def layer(
    stack: StackConfig, design: Design, c: Constants, *, int8: bool, attention_us: float | None
) -> list[Stage]:
    """Return a layer's stages; attention is one of them or, for None, the beginning of o_proj."""
    norm = 0.0 if design.norms_in_l2 else LATENCY - c.l2_latency

    def product(extra: float, rows: int, cols: int) -> Stage:
        return Stage(extra, *tiles_of(rows, cols), int8)

    # A product that adds to the residual waits for the residual, which arrives with the scales.
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
    """Return the stages of a frame, in the order of csrc/frame.cuh."""
    talker, predictor = config.talker.stack, config.predictor.stack
    heads = [tiles_of(config.talker.vocab_size, talker.hidden_size)]
    if config.has_projection:
        heads.append(tiles_of(predictor.hidden_size, talker.hidden_size))
    head = Stage(0.0, *(sum(counts) for counts in zip(*heads, strict=True)))
    lm_head = Stage(0.0, *tiles_of(config.predictor.vocab_size, predictor.hidden_size))
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
    start = [Stage(c.draw), *talker_layer * talker.num_layers, Stage(0.5), head, draw]
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
    """Return the milliseconds of a frame."""
    return Block(design, frame(config, design, constants), constants).run() / 1000


def parse_constants(text: str) -> Constants:
    """Return the constants of --set "barrier=1.3,l2_latency=0.5": realistic ones with replacements.

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
    """Print the table: designs by constants, then the time with each realistic price alone."""
    parser = parsing.Parser(description=__doc__.splitlines()[0])
    add = parsing.adder(parser)
    add(
        "--set NAME=VALUE,...",
        "further columns, with these measured values in place of the realistic constants",
        parse_constants,
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
