"""Load time, and the most memory that an engine of so many slots takes; one engine a process."""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

from benchmarks import common
from qwen_megakernel import options


def main(args: argparse.Namespace) -> int:
    """Load, speak on every slot, report."""
    started = time.perf_counter()
    with options.load_engine(args, num_slots=args.streams) as tts:
        load_s = time.perf_counter() - started
        streams = [
            tts.stream("Hello.", voice=tts.default_voice, seed=index, max_frames=args.max_frames)
            for index in range(args.streams)
        ]
        for stream in streams:
            list(stream)
        peaks = common.peak_memory_mb()
        found = common.header() | {
            "model": tts.files.name,
            "is_synthetic": tts.files.is_synthetic,
            "backend": tts.backend,
            "device": str(tts.device),
            "dtype": str(tts.dtype).removeprefix("torch."),
            "settings": {"streams": args.streams, "max_frames": args.max_frames},
            "rows": [{"streams": args.streams, "load_s": load_s, "peak_memory_mb": peaks}],
        }
    print(f"{args.streams} slots: loaded in {load_s:.1f} s, peak {peaks} MB")
    common.write_json(args.json, found)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--max-frames", type=int, default=20)
    parser.add_argument("--json", metavar="FILE", help="write the result file")
    options.add_model_options(parser)
    args = parser.parse_args()
    sys.exit(options.run(main, args))
