"""Check speech on a real GPU: python test_e2e.py --model Qwen/Qwen3-TTS-12Hz-0.6B-Base

The script speaks several texts and checks each speech: it ends with an end token, has a plausible
length, is not silent, its chunks are in order, and the same seed gives the same codes in chunks of
another size. Then it prints every figure of the benchmarks. The exit code is 0 if all checks pass,
1 if one fails, and 77 if this machine has no GPU (without --device) or no weights.
"""

import argparse
import sys
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import common
from qwen_megakernel.audio import FULL_SCALE
from qwen_megakernel.cli import options, parsing
from qwen_megakernel.errors import ModelFilesError
from qwen_megakernel.speech_options import MAX_SILENCE

if TYPE_CHECKING:
    from qwen_megakernel import TTSEngine

CANNOT_RUN = 77

TEXTS = (
    "Hello, how are you today?",
    "Your table for two is ready.",
    "We will meet you at the hotel on Friday.",
    "It will be cold and cloudy tomorrow.",
)

# Speech has about 15 characters per second; from a third of that to three times is plausible.
CHARS_PER_S = (5, 45)
QUIET = 10 ** (-45 / 20)  # the loudest 80 ms of speech are above -45 dBFS


def problems(tts: "TTSEngine", text: str, seed: int, speech: dict) -> list[str]:
    """Return what is wrong with one speech, a phrase for each fault.

    Args:
        speech: what `speak` returned for this text and seed.
    """
    found = []
    seconds = len(speech["samples"]) / tts.sample_rate
    if speech["finish_reason"] != "eos":
        found.append(f"ended with {speech['finish_reason']}, not with an end token")
    if not CHARS_PER_S[0] <= len(text) / seconds <= CHARS_PER_S[1]:
        found.append(f"{seconds:.1f} s for {len(text)} characters")
    frames = speech["samples"].reshape(len(speech["codes"]), -1) / FULL_SCALE
    if np.sqrt((frames**2).mean(axis=1)).max() < QUIET:
        found.append("silent")
    if speech["starts"] != sorted(speech["starts"]):
        found.append("chunks out of order")
    again = tts.synthesize(text, seed=seed, chunk_frames=7)
    if not np.array_equal(again.codes, speech["codes"]):
        found.append("the same seed gave other codes in another chunking")
    return found


def speak(tts: "TTSEngine", text: str, seed: int) -> dict:
    """Stream one speech without cutting its leading silence, so that every frame is heard."""
    stream = tts.stream(text, seed=seed, leading_silence=MAX_SILENCE)
    chunks = list(stream)
    return {
        "samples": np.concatenate([chunk.samples for chunk in chunks]),
        "starts": [chunk.frame_index for chunk in chunks if chunk.num_frames],
        "codes": stream.codes,
        "finish_reason": stream.finish_reason,
    }


def main(args: argparse.Namespace) -> int:
    """Check, measure, and print the results."""
    import torch

    if args.device is None and not torch.cuda.is_available():
        print(
            "This machine has no GPU. To run the checks on the CPU, add --device cpu.",
            file=sys.stderr,
        )
        return CANNOT_RUN
    try:
        tts = options.engine_from_args(args)
    except ModelFilesError as error:
        print(error, file=sys.stderr)
        return CANNOT_RUN
    failures = 0
    with tts:
        for seed, text in enumerate(TEXTS):
            found = problems(tts, text, seed, speak(tts, text, seed))
            failures += bool(found)
            print(
                f"{'FAILED' if found else 'ok':7}{text}" + "".join(f"\n       {f}" for f in found)
            )
        args.text, args.seed = TEXTS[0], 0
        runs = [common.run_once(tts, args, index) for index in range(args.runs)]
        measured = common.result(tts, runs, {"texts": TEXTS, "failures": failures})
    common.print_table(measured)
    common.write_json(args.json, measured)
    return 1 if failures else 0


def parse_args() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = parsing.Parser(description=__doc__)
    common.add_arguments(parser, runs=3)
    common.add_result_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    sys.exit(common.run(main, args))
