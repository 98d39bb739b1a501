"""Measure one engine's latency and speed: python benchmark.py --runs 5

Prints machine, backend and figures; --json and --plot keep them. Exits with 1 if --max-ttfc-ms or
--max-rtf is given and exceeded.
"""

import argparse
import sys

from benchmarks import common
from qwen_megakernel.cli import options


def main(args: argparse.Namespace) -> int:
    """Measure, print, and compare the result with the limits."""
    found = common.measure(args)
    common.print_table(found)
    common.write_json(args.json, found)
    common.plot(args.plot, found, ["first_frame_ms", "first_chunk_ms", "rtf"])
    missed = [
        f"{name} p50 {found['summary'][name]['p50']:.3f} is above {limit}"
        for name, limit in (("first_chunk_ms", args.max_ttfc_ms), ("rtf", args.max_rtf))
        if limit is not None and found["summary"][name]["p50"] > limit
    ]
    return common.tell_missed(missed)


def parse_args() -> argparse.Namespace:
    parser = options.Parser(description=__doc__.splitlines()[0])
    common.add_arguments(parser)
    common.add_result_option(parser)
    add = parser.add_argument
    add("--max-ttfc-ms", type=options.positive, help="highest median of first_chunk_ms to accept")
    add("--max-rtf", type=options.positive, help="highest median of rtf to accept")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    sys.exit(common.run(main, args))
