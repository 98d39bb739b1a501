"""Many streams at once: aggregate speed, and what the engine itself costs a frame."""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

from benchmarks import common
from qwen_megakernel import TTSEngine
from qwen_megakernel.cli import options


def run_once(tts: TTSEngine, args: argparse.Namespace, index: int) -> dict[str, float]:
    """Speak `--streams` utterances side by side and read them all."""
    speech_options = options.speech_options(args, tts)
    before, started = tts.spent_ms, time.perf_counter()
    streams = []
    for number in range(args.streams):
        speech_options["seed"] = index * args.streams + number
        streams.append(tts.stream(args.text, **speech_options))
    for stream in streams:
        list(stream)
    wall_ms = 1000 * (time.perf_counter() - started)
    spent = {stage: total - before[stage] for stage, total in tts.spent_ms.items()}
    frames = sum(len(stream.codes) for stream in streams)
    return {
        "frames": frames,
        "total_ms": wall_ms,
        "audio_s": frames * tts.seconds_per_frame,
        "rtf": wall_ms / 1000 / (frames * tts.seconds_per_frame),
        "frames_per_s": 1000 * frames / wall_ms,
        "decode_ms_per_frame": spent["decode"] / frames,
        "vocoder_ms_per_frame": spent["vocoder"] / frames,
        "overhead_ms_per_frame": (wall_ms - sum(spent.values())) / frames,
    }


def main(args: argparse.Namespace) -> int:
    """Measure and report."""
    with options.engine_from_args(args, num_slots=args.streams) as tts:
        for index in range(args.warmup):
            run_once(tts, args, index)
        runs = [run_once(tts, args, index) for index in range(args.runs)]
        found = common.result(tts, runs, {"text": args.text, "streams": args.streams})
    common.print_table(found)
    common.write_json(args.json, found)
    common.plot(args.plot, found, ["rtf", "overhead_ms_per_frame"])
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    common.add_arguments(parser)
    parser.add_argument("--streams", type=options.at_least(1), default=8)
    sys.exit(options.run(main, parser.parse_args()))
