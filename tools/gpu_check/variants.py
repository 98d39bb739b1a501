"""Builds of the kernel to compare on a GPU: names, and the -D options that differ in each build.

To add a build, add a line. `carry.py` compiles it ahead of time, and the step `variants` times it.
"""

VARIANTS: dict[str, dict[str, int]] = {
    "the kernel": {},
    "ring of 3 tiles": {"LOOKAHEAD_TILES": 3},
    "ring of 4 tiles": {"LOOKAHEAD_TILES": 4},
    "ring of 6 tiles": {"LOOKAHEAD_TILES": 6},
    "8 warps": {"NUM_THREADS": 256},
    "sums of 2 row tiles at a time": {"ROUND_TILES": 2},
    "weights stay in L2": {"WEIGHTS_EVICT_FIRST": 0},
    "predictor's attention in two stages": {"SHORT_ATTENTION": 0},
    "the first warp waits": {"FIRST_WARP_WAITS": 1},
}


def chosen(toy: bool) -> list[tuple[str, dict[str, int]]]:
    """Return the variants to be timed: all of them, or two where a CPU does the GPU's work."""
    return list(VARIANTS.items())[: 2 if toy else None]
