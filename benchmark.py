"""Measure speed and latency of the engine: python benchmark.py --runs 5

It prints machine, backend and figures; --json and --plot write them to files. The exit code is 1
if a median is above --max-ttfc-ms or --max-rtf.
"""

import argparse
import sys

from benchmarks import common, option_types
from qwen_megakernel.cli import parsing


def main(args: argparse.Namespace) -> int:
    """Measure, report, and compare the medians with the limits."""
    found = common.measure(args)
    common.print_table(found)
    common.write_json(args.json, found)
    common.plot(args.plot, found, ["first_frame_ms", "first_chunk_ms", "rtf"])
    missed = [
        f"{name} p50 {found['summary'][name]['p50']:.3f} is above {limit}"
        for name, limit in (("first_chunk_ms", args.max_ttfc_ms), ("rtf", args.max_rtf))
        if limit is not None and found["summary"][name]["p50"] > limit
    ]
    return common.report_missed(missed)


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = parsing.Parser(description=__doc__)
    common.add_arguments(parser)
    common.add_result_option(parser)
    add = parsing.adder(parser)
    add(
        "--max-ttfc-ms",
        "exit with 1 if the median of first_chunk_ms is above this",
        option_types.positive,
    )
    add(
        "--max-rtf",
        "exit with 1 if the median real-time factor is above this",
        option_types.positive,
    )
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    sys.exit(common.run(main, args))
