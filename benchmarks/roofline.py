"""Calculate what a frame, a prompt and a first sound must cost at least, from the model's config.

python benchmarks/roofline.py                        both released sizes on every known GPU
python benchmarks/roofline.py --bandwidth 4300       at a measured GB/s

Nothing here is measured. A floor is the time for the bytes at the bandwidth or for the products at
the arithmetic peak, whichever is longer; kernels, barriers and the host take further time.
"""

import os
import sys
from dataclasses import astuple, dataclass
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

from benchmarks import option_types
from qwen_megakernel.checkpoint.codec_config import CodecConfig
from qwen_megakernel.checkpoint.config import ModelConfig, parse_model_config
from qwen_megakernel.checkpoint.frame_weights import frame_weights, layer_weights
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.checkpoint.tensor_shapes import CODEC_DECODER_PREFIX, codec_tensors
from qwen_megakernel.cli import parsing
from qwen_megakernel.decoders.quantization import GROUPS

RELEASED = {"0.6B": "random-0.6b", "1.7B": "random-1.7b"}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's published peaks."""

    name: str
    gb_per_s: float  # memory bandwidth
    tflops: float  # dense bf16 with float32 sums
    source: str


GPUS = (
    Gpu("H200 SXM", 4800, 989, "NVIDIA H200 datasheet"),
    Gpu("H100 SXM", 3350, 989, "NVIDIA H100 datasheet"),
    Gpu("A100 SXM 80 GB", 2039, 312, "NVIDIA A100 datasheet"),
    Gpu("A100 SXM 40 GB", 1555, 312, "NVIDIA A100 datasheet"),
    Gpu("RTX 5090", 1792, 209.5, "NVIDIA RTX Blackwell GPU architecture whitepaper"),
    Gpu("RTX 4090", 1008, 165.2, "NVIDIA Ada GPU architecture whitepaper"),
    Gpu("L40S", 864, 362, "NVIDIA L40S datasheet"),
    Gpu("L4", 300, 121, "NVIDIA L4 datasheet"),
)


# The integers, and their part of a bf16 scale.
_GROUPED, _6_BITS, _4_BITS = (bits / 8 + 2 / GROUPS[bits] for bits in (8, 6, 4))

# Bytes of a weight, in the order of `FrameWeights`: the talker's layers, codec head, projection,
# the predictor's layers, its heads.
WIDTHS = {
    "fp32": (4, 4, 4, 4, 4),
    "bf16": (2, 2, 2, 2, 2),
    "mixed": (2, 2, 4, 4, 4),
    "int8-talker": (1, 2, 2, 2, 2),
    "int8": (1, 2, 2, 1, 2),
    "int8-rows-heads": (1, 1, 2, 1, 1),
    "int8-groups": (_GROUPED, 2, 2, _GROUPED, 2),
    "int8-groups-heads": (_GROUPED, _GROUPED, 2, _GROUPED, _GROUPED),
    "int6": (_6_BITS, 2, 2, _6_BITS, 2),
    "int4-int8": (_4_BITS, 2, 2, _GROUPED, 2),
    "int4": (_4_BITS, 2, 2, _4_BITS, 2),
    "int4-heads": (_4_BITS, _GROUPED, 2, _4_BITS, _GROUPED),
}


def weight_bytes(config: ModelConfig, precision: str) -> int:
    """Return the bytes of weights that a frame reads.

    Args:
        precision: one of `WIDTHS`; the scales of int8 rows, one in a thousand, are not counted.
    """
    counts = astuple(frame_weights(config))
    return round(sum(n * width for n, width in zip(counts, WIDTHS[precision], strict=True)))


def cache_bytes(config: ModelConfig, itemsize: int, streams: int, position: float) -> float:
    """Return the bytes of talker keys and values that a frame of `streams` at `position` reads."""
    stack = config.talker.stack
    return 2 * stack.num_layers * stack.kv_size * position * streams * itemsize


def frame_bytes(config: ModelConfig, itemsize: int, streams: int, position: float) -> float:
    """Return the bytes of weights and cache of one frame, all in numbers of `itemsize` bytes."""
    weights = frame_weights(config).total * itemsize
    return weights + cache_bytes(config, itemsize, streams, position)


def frame_barriers(config: ModelConfig, *, streams: int) -> int:
    """Return the number of grid barriers in a frame of the kernel (csrc/README.md). A layer has
    five stages; a layer of the predictor has four if one stream decodes alone.
    """
    passes = config.talker.num_code_groups - 1
    predictor_stages = 4 if streams == 1 else 5
    of_predictor = predictor_stages * config.predictor.stack.num_layers + 2
    return 5 * config.talker.stack.num_layers + passes * of_predictor + 4


def milliseconds(num_bytes: float, gb_per_s: float) -> float:
    return num_bytes / gb_per_s / 1e6


def prompt_floor_ms(config: ModelConfig, positions: int, gpu: Gpu) -> float:
    """Return the time to read the weights once, or to do two operations per weight and position."""
    weights = layer_weights(config.talker.stack)
    arithmetic = 2 * weights * positions / gpu.tflops / 1e9
    return max(milliseconds(2 * weights, gpu.gb_per_s), arithmetic)


def first_frame_bytes(config: ModelConfig) -> int:
    """Return the bytes of a prompt's first codes: a frame without the talker's step, in bf16."""
    w = frame_weights(config)
    return 2 * (w.total - w.talker)


def vocoder_weights(codec: CodecConfig) -> int:
    """Return the vocoder's weights that a chunk of any length reads: all but the codebooks."""
    return sum(
        prod(shape)
        for name, shape in codec_tensors(codec).items()
        if name.startswith(CODEC_DECODER_PREFIX) and "_codebook." not in name
    )


def main() -> None:
    """Print the table."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add("--model", "built-in name of the model whose shapes to use (default: both sizes)", list)
    add(
        "--bandwidth GB/S",
        "memory bandwidth of a machine that is not among the known GPUs",
        option_types.positive,
    )
    args = parser.parse_args()
    models = {name: name for name in args.model} if args.model else RELEASED
    gpus = [Gpu("this one", args.bandwidth, float("inf"), "")] if args.bandwidth else GPUS
    print(f"{'ms a frame, at least':24}{'GB/s':>8}{'bf16':>9}{'int8-talker':>13}{'int8':>9}")
    for label, name in models.items():
        config = parse_model_config(model_config(name))
        for gpu in gpus:
            floors = [
                milliseconds(weight_bytes(config, precision), gpu.gb_per_s)
                for precision in ("bf16", "int8-talker", "int8")
            ]
            print(
                f"{label + ', ' + gpu.name:24}{gpu.gb_per_s:8.0f}{floors[0]:9.3f}{floors[1]:13.3f}"
                f"{floors[2]:9.3f}"
            )


if __name__ == "__main__":
    main()
