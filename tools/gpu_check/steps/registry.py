"""The steps by name, and the program that runs one of them."""

import time
from functools import partial
from pathlib import Path

from qwen_megakernel.choices import INT8_STACKS
from qwen_megakernel.cli import parsing
from tools.gpu_check.steps import correctness, endurance, libraries, profiles, scripts, speed
from tools.gpu_check.steps.context import BIG, SMALL, TOY, Context
from tools.validation import compare

# Two kinds of layers compare twice as many decoders as another validation does.
INT8 = {"kinds": tuple(INT8_STACKS), "frames": 16}

STEPS = {
    "build": libraries.build,
    "variant_build": partial(libraries.build, name="variant_build"),
    "int8_build": partial(libraries.build, name="int8_build"),
    "tests": correctness.tests,
    "sanitizer": correctness.sanitizer,
    "toy_frames": correctness.toy_frames,  # the sanitizer step runs this
    "validate_tiny": partial(correctness.validate, name=TOY, frames=8),
    "validate_0.6b": partial(correctness.validate, name=SMALL, frames=8),
    "validate_0.6b_long": partial(correctness.validate, name=SMALL),
    "validate_1.7b_long": partial(correctness.validate, name=BIG),
    "int8_validate_0.6b": partial(correctness.validate, name=SMALL, **INT8),
    "int8_validate_1.7b": partial(correctness.validate, name=BIG, **INT8),
    "endurance": endurance.endurance,
    "million": partial(endurance.endurance, goal=1_000_000),
    "abort": endurance.abort,
    "two_engines": endurance.two_engines,
    "microbenchmark": speed.microbenchmark,
    "stage_times": profiles.stage_times_of_models,
    "ncu": profiles.ncu,
    "profiled_frames": profiles.profiled_frames,  # the ncu step watches this
    "frame_times": speed.frame_times,
    "variants": speed.variants,
    "prompt_times": speed.prompt_times,
    "int8_frame_times": speed.int8_frame_times,
    "vocoder_times": speed.vocoder_times,
    "batch_curve": speed.batch_curve,
    "benchmark": scripts.benchmark,
    "first_sound": scripts.first_sound,
    "open_loop": scripts.open_loop,
    "open_loop_long": scripts.open_loop_long,
    "capacity": scripts.capacity,
    "peers": scripts.peers,
    "memory": scripts.memory,
    "texts": scripts.texts,
}


def main() -> None:
    """Run the step that the command line names."""
    parser = parsing.Parser(description="Run one step of tools/gpu_check.sh.")
    add = parsing.adder(parser)
    add("step", "the step to run", STEPS)
    add("--json FILE", "file to write the result to", parsing.file_name, required=True)
    add("--emulation", "run toy sizes on the CPU", bool)
    add("--toy", "run toy sizes on the GPU", bool)
    add("--until", "time on the monotonic clock (time.monotonic) at which to finish early", float)
    args = parser.parse_args()
    compare.forbid_reduced_precision()
    deadline = time.monotonic() + 600 if args.until is None else args.until
    context = Context(args.emulation, deadline, Path(args.json), toy=args.toy)
    context.keep(STEPS[args.step](context))
