"""What users choose from by name. It is here, without torch, for the command line to offer."""

from dataclasses import dataclass
from itertools import permutations, product

DEFAULT_MODEL = "Qwen/Qwen3-TTS-12Hz-0.6B-Base"

BACKENDS = ("auto", "kernel", "graph", "cpu", "torch", "emulation", "coreml")

DTYPES = ("float32", "bfloat16")
# What `dtype=` accepts beside these: talker and code predictor each in its own.
DTYPES_BY_PART = tuple(
    f"talker={talker},predictor={predictor}" for talker, predictor in permutations(DTYPES, 2)
)

# What `weights=` begins with, and the stacks whose layers each makes int8.
INT8_STACKS = {"int8-talker": ("talker",), "int8": ("talker", "predictor")}
SCALES = ("", "-rows", "-groups")  # what shares a scale; "": what suits the backend
HEADS = ("", "-heads")
# What `weights=` accepts beside None, with which weights are as the checkpoint stores them.
WEIGHTS = tuple(map("".join, product(INT8_STACKS, SCALES, HEADS)))
WEIGHTS_HELP = (
    "store weights in 8 bits (smaller, faster, slightly different speech): int8 for both models, "
    "int8-talker for the large one alone; append -rows or -groups for what shares a scale, -heads "
    "to include the output heads, as in int8-groups-heads (docs/precision.md)"
)


@dataclass(frozen=True, slots=True)
class Int8Format:
    """What one of `WEIGHTS` stands for."""

    stacks: tuple[str, ...]  # of "talker", "predictor": whose layers are int8
    in_groups: bool | None  # 64 columns of a row share a scale, else the row; None: not said
    heads: bool  # the codec head and the code predictor's heads are int8, too

    @staticmethod
    def parse(weights: str) -> "Int8Format":
        """Read one of `WEIGHTS`."""
        words = weights.split("-")
        return Int8Format(
            INT8_STACKS["int8-talker" if "talker" in words else "int8"],
            True if "groups" in words else False if "rows" in words else None,
            "heads" in words,
        )
