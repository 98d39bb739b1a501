"""Load a speech server: Poisson arrivals (--rps) or a number of listeners at once (--concurrency).

It can measure any OpenAI-compatible server in the same way:

    python -m qwen_megakernel serve --model demo-voice &
    python benchmarks/load_test --url http://127.0.0.1:8090 --rps 1,2,4 --pid $!

First audio is reported in two ways: `first_byte` is the first byte of audio, `first_audible` the
first sound that a listener hears (two 20 ms windows in a row above -45 dBFS, the second 10 ms after
the first), both counted from the first byte of the request's body; `first_byte_planned` counts from
the planned arrival. Percentiles are nearest-rank. The definitions are those of nari-labs' benchmark
of speech servers (docs/tts_bench/methodology.md) and, for `planned` and `c50`, of SGLang-Omni's;
the arrivals are drawn with SHA-256, as theirs are, but they are other draws.
"""

import argparse
import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs as a script from anywhere

from benchmarks import common, option_types
from benchmarks.load_test.workload import PROMPTS
from qwen_megakernel.cli import options, parsing
from qwen_megakernel.errors import UsageError
from qwen_megakernel.installing import require


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    root = parsing.Parser(prog="load_test", description=__doc__)
    add = parsing.adder(root)
    add("--url", "address of the server, without /v1", str, "http://127.0.0.1:8090")
    rates, counts = map(option_types.numbers, (option_types.positive, parsing.at_least(1)))
    add("--rps", "rates of requests per second, separated by commas: 1,2,4", rates, [])
    add("--concurrency", "numbers of listeners at once, separated by commas: 1,4,16", counts, [])
    add("--duration", "seconds that each load lasts", option_types.positive, 30.0)
    add("--warmup", "seconds of unmeasured load before each level", float, 5.0)
    add("--timeout", "longest time for a request, in seconds", option_types.positive, 120.0)
    add(
        "--word-ms",
        "send the text over the WebSocket, a word at a time; milliseconds between two words",
        option_types.positive,
    )
    add(
        "--max-in-flight",
        "most requests to have open at once; further ones count as failed",
        parsing.at_least(1),
        4096,
    )
    add("--seed", "seed of arrivals and of the order of texts", int, 0)
    add("--prompts FILE", "file of texts to speak, one per line", parsing.file_name)
    add("--voice", "voice that the requests name")
    add("--language", "language that the requests name")
    add("--model-name", "value of the requests' field `model`")
    add("--body", "further fields of the requests, as JSON", option_types.json_object, {})
    add("--api-key", "key to send with every request, as a bearer token")
    add("--label", "name of the model for the result (default: the first that the server lists)")
    add("--pid", "process id of the server, to measure its memory", int)
    common.add_result_option(root)
    add(
        "--plot FILE",
        "picture of the result to write (needs the [plots] extra)",
        option_types.plot_file,
    )
    options.add_verbosity(root)
    return root


def main(args: argparse.Namespace) -> int:
    """Measure and report; return 1 if a request failed."""
    if not args.rps and not args.concurrency:
        raise UsageError("No load is given.", hint="Give --rps 1,2,4 or --concurrency 1,4,16.")
    with require("bench", by="The load test"):
        from benchmarks.load_test import plot
        from benchmarks.load_test.levels import measure
    args.texts = list(PROMPTS)
    if args.prompts:
        lines = Path(args.prompts).read_text(encoding="utf-8").splitlines()
        args.texts = [line.strip() for line in lines if line.strip()]
    found = asyncio.run(measure(args))
    common.write_json(args.json, found)
    plot.draw(args.plot, found)
    return int(any(level["errors"] for level in found["levels"]))


if __name__ == "__main__":
    parsed = parser().parse_args()
    sys.exit(common.run(main, parsed))
