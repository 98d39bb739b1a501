#!/usr/bin/env python3
"""Calculate how long a prompt takes on an H200, with its rows shared by teams of blocks or not.

Nothing here is measured on the kernel. The time depends on the bytes that a block reads from L2:
its share of the weights, which each team reads in full, and all activations of the team's rows. The
first run of `benchmarks/measure.py first-sound` on a GPU replaces this calculation.
"""

import argparse
import os
import sys
from itertools import product
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

from qwen_megakernel.checkpoint.config import ModelConfig, parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.decoders.kernel import build, packing

sys.path.insert(0, str(Path(__file__).parents[2]))
from tools.kernel_study.frame_model import BANDWIDTH, CONSTANTS, IDEAL, NUM_SMS, Constants

L2_BANDWIDTH = 5.5e6 / NUM_SMS  # bytes a microsecond that reach one SM
TEAM_ROWS, MOST_TEAMS = 16, 8  # as in csrc/dims.cuh
POSITIONS = (10, 30, 110, 200)  # as in `benchmarks/measure.py first-sound`


def attention_us(positions: int, c: Constants) -> float:
    """Return the time of attention for the pass's last row: the instructions that
    instruction_profile.py --prompt counts for 10 and 110 positions (PTX), and the trips to L2 for
    qkv, cos and sin, and the result.
    """
    return (1985 + 74 * positions) / c.issue + 3 * c.l2_latency


def product_us(
    rows: int, num_blocks: int, width: int, out_size: int, in_size: int, c: Constants = IDEAL
) -> float:
    """Return the time of one product for `rows` rows of a team of `num_blocks`, all teams at once.

    `width` columns of activations lie in shared memory.
    """
    tiles = -(-out_size // packing.TILE_ROWS // num_blocks)
    is_resident = in_size <= width or rows * (in_size + 4) <= TEAM_ROWS * (width + 4)
    loads = 1 if is_resident else -(-tiles // build.ROUND_TILES)
    num_bytes = tiles * packing.TILE_ROWS * in_size * 2 + loads * rows * in_size * 4
    return max(num_bytes / L2_BANDWIDTH, 2 * out_size * in_size / BANDWIDTH) + c.l2_latency


def prompt_us(
    config: ModelConfig,
    positions: int,
    c: Constants = IDEAL,
    *,
    most_teams: int = MOST_TEAMS,
    width: int | None = None,
) -> float:
    """Return a prompt's microseconds with nothing cached; width None: that of a build for an
    H200."""
    stack = config.talker.stack
    if width is None:
        target = build.Target("sm_90a", "bfloat16")
        width = build.definitions(config, target)["FORWARD_CHUNK_COLS"]
    num_passes = -(-positions // (TEAM_ROWS * most_teams))
    num_teams = -(-positions // (TEAM_ROWS * num_passes))
    pass_rows = -(-positions // num_passes)
    rows, num_blocks = -(-pass_rows // num_teams), NUM_SMS // num_teams
    products = (
        (stack.q_size + 2 * stack.kv_size, stack.hidden_size),
        (stack.hidden_size, stack.q_size),
        (2 * stack.intermediate_size, stack.hidden_size),
        (stack.hidden_size, stack.intermediate_size),
    )
    layer = sum(product_us(rows, num_blocks, width, *shape, c) + c.barrier for shape in products)
    total = 0.0
    for number in range(num_passes):
        seen = pass_rows * (number + 1)
        total += stack.num_layers * (layer + attention_us(seen, c) + c.barrier)
        total += c.l2_latency + c.barrier
    return total


VARIANTS = {
    "the kernel": {},
    "rows of 1024 columns in shared memory": {"width": 1024},
    "16 rows a pass, one team": {"most_teams": 1, "width": 1024},
}


def main() -> int:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    head = "".join(f"{count:8}" for count in POSITIONS)
    print(f"{'ms of a prompt, calculated; positions':46}{head}")
    for (constants, c), size in product(CONSTANTS.items(), ("0.6b", "1.7b")):
        config = parse_model_config(model_config(f"random-{size}"))
        for name, changes in VARIANTS.items():
            times = [prompt_us(config, count, c, **changes) / 1000 for count in POSITIONS]
            row = "".join(f"{ms:8.2f}" for ms in times)
            print(f"{size.upper() + ', ' + name:46}{row}  {constants}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
