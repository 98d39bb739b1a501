"""Load time, and the most memory that an engine of so many slots takes; one engine a process."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

from benchmarks import common
from qwen_megakernel.cli import options


def main(args: argparse.Namespace) -> int:
    """Load, speak on every slot, report."""
    with common.timed_engine(args, num_slots=args.streams) as (tts, load_s):
        streams = [
            tts.stream("Hello.", voice=tts.default_voice, seed=index, max_frames=args.max_frames)
            for index in range(args.streams)
        ]
        for stream in streams:
            list(stream)
        peaks = common.peak_memory_mb()
        found = common.engine_header(tts) | {
            "settings": {"streams": args.streams, "max_frames": args.max_frames},
            "rows": [{"streams": args.streams, "load_s": load_s, "peak_memory_mb": peaks}],
        }
    print(f"{args.streams} slots: loaded in {load_s:.1f} s, peak {peaks} MB")
    common.write_json(args.json, found)
    return 0


if __name__ == "__main__":
    parser = common.model_parser(__doc__)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--max-frames", type=int, default=20)
    sys.exit(options.run(main, parser.parse_args()))
