"""Every measurement in one program: python benchmarks/measure.py NAME [options].

A measurement is a function of a module in measures/, which is imported when it is asked for: a
machine with a GPU lacks what the measurements of servers need.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs as a script from anywhere

from benchmarks import common
from qwen_megakernel.cli import options

# name -> (function in measures/, what it measures)
MEASUREMENTS = {
    "ttfc": (
        "speed.speech",
        "Measure the time to the first codec frame, the first samples and the first audible sample "
        "of a speech.",
    ),
    "rtf": ("speed.speech", "Measure the real-time factor of whole utterances, streamed."),
    "tok-s": (
        "speed.speech",
        "Measure decoding: frames and codes a second, and the milliseconds of a frame by part.",
    ),
    "e2e": ("speed.speech", "Measure everything between a text and its last sample."),
    "streams": (
        "speed.streams",
        "Measure many streams at once: their speed together, and what the engine itself costs for "
        "each frame.",
    ),
    "memory": (
        "speed.memory",
        "Measure how long an engine takes to load and how much memory it uses at most.",
    ),
    "bandwidth": (
        "speed.bandwidth",
        "Compare decoding with the memory: the weights that a frame reads, at what part of the "
        "measured bandwidth.",
    ),
    "profile": (
        "speed.profile",
        "Profile a frame of the plain decoder: the share of each torch operation, and its calls.",
    ),
    "first-sound": (
        "latency.first_sound",
        "Measure the way from a text to its first sound, stage by stage and as a whole, and the "
        "first request of an engine.",
    ),
    "texts": (
        "latency.texts",
        "Measure short, medium and long texts: load time, memory, the time of a step, and first "
        "packets of 1 and of 3 frames.",
    ),
    "peers": (
        "peers.peers",
        "Compare the decoders that can run here, and the official package, on one checkpoint.",
    ),
    "voices": (
        "voices.voices",
        "Measure what cloning a voice costs: the x-vector of a recording, its codes, and asking "
        "for them again.",
    ),
    "pipecat": (
        "pipecat.pipecat",
        "Measure what the Pipecat service adds: from a chunk to its frame, how long the event loop "
        "is held up, and from a barge-in to quiet.",
    ),
    "server": (
        "load.server",
        "Measure what the HTTP server adds to the engine: to the first byte, to each chunk, and "
        "with many streams at once.",
    ),
    "open-loop": (
        "load.open_loop",
        "Measure an engine under many listeners, in one process: requests at random times, or "
        "listeners who play what they hear.",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what the command line names."""
    return run(parser(argv), argv)


def script(name: str) -> int:
    """The measurement `name` as a script of its own, which has no NAME on its command line."""
    return run(_complete(argparse.ArgumentParser(description=MEASUREMENTS[name][1]), name))


def parser(argv: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The command line, with the options of the measurement that `argv` begins with."""
    words = sys.argv[1:] if argv is None else argv
    root = argparse.ArgumentParser(prog="measure.py", description=__doc__.splitlines()[0])
    names = root.add_subparsers(metavar="NAME", required=True)
    for name, (_, description) in MEASUREMENTS.items():
        command = names.add_parser(name, help=description, description=description)
        if name == next(iter(words), None):
            _complete(command, name)
    return root


def run(command: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Parse, measure, and return the exit code."""
    args = command.parse_args(argv)
    return options.run(args.measure, args)


def _complete(command: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    """`command` with the options of a measurement and the one that all have, --json."""
    module, function = MEASUREMENTS[name][0].split(".")
    found = import_module(f"benchmarks.measures.{module}")
    getattr(found, f"{function}_options")(command)
    common.add_result_option(command)
    command.set_defaults(name=name, measure=getattr(found, function))
    return command


if __name__ == "__main__":
    sys.exit(main())
