"""Every measurement in one program: python benchmarks/measure.py NAME [options].

A measurement is a function of a module in measures/. That module is imported only when the command
line names the measurement, because a machine with a GPU lacks what measurements of servers need.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs as a script from anywhere

from benchmarks import common
from qwen_megakernel.cli import parsing, running
from qwen_megakernel.torch_import import wait_passively

# name -> (function in measures/, what it measures)
MEASUREMENTS = {
    "ttfc": ("speed.speech", "Measure the time to the first codec frame and first audible sample."),
    "rtf": ("speed.speech", "Measure the real-time factor of whole utterances, streamed."),
    "tok-s": ("speed.speech", "Measure how many codec frames and codes are decoded in a second."),
    "e2e": ("speed.speech", "Measure everything between a text and its last sample."),
    "streams": ("speed.streams", "Measure many streams at once, and what the engine adds to each."),
    "memory": ("speed.memory", "Measure the load time of an engine and the memory that it takes."),
    "bandwidth": ("speed.bandwidth", "Compare decoding with the measured bandwidth of the memory."),
    "profile": ("speed.profile", "Profile the torch operations in a frame of the plain decoder."),
    "first-sound": ("latency.first_sound", "Measure each stage from a text to its first sound."),
    "start": ("start.start", "Measure how long a new process takes to its first sound."),
    "texts": ("latency.texts", "Measure short, medium and long texts, to first sound and to end."),
    "peers": ("peers.peers", "Compare all decoders, and the official package, on one checkpoint."),
    "threads": ("threads.threads", "Compare numbers of threads, alone and beside busy programs."),
    "processes": ("processes.processes", "Measure what processes share that map one model."),
    "cpu-decode": ("cpu_decode.cpu_decode", "Compare the CPU decoder with memory and PyTorch."),
    "cpu-speech": ("cpu_decode.cpu_speech", "Compare whole speeches of the CPU's two backends."),
    "vocoder": ("vocoder.vocoders", "Compare the vocoders of a CPU on one checkpoint."),
    "vocoder-precision": ("vocoder.precision", "Measure what a vocoder's weights in float16 cost."),
    "train-step": ("train_step.train_step", "Measure a step of `train run`: seconds and memory."),
    "servers": ("servers.servers", "Compare servers, this project's and others, on one model."),
    "voices": ("voices.voices", "Measure what cloning a voice from a recording costs."),
    "pipecat": ("pipecat.pipecat", "Measure what the Pipecat service adds to the engine."),
    "server": ("load.server", "Measure what the HTTP server adds to the engine."),
    "reading": ("reading.reading", "Measure what reading a text in words costs."),
    "word-times": ("word_times.word_times", "Measure how exactly the times of words are found."),
    "sound": ("sound.sound", "Measure what changing the sound of a speech costs."),
    "drift": ("drift.drift", "Measure how a voice changes over minutes of speech, on any server."),
    "drift-band": ("drift.drift_band", "Measure how far apart the texts of a steady voice are."),
    "continuity": (
        "continuity.continuity",
        "Measure how late a sentence is heard that continues the one before it.",
    ),
    "marks": ("marks.marks", "Measure what the watermark changes, and what it survives."),
    "mark-words": ("marks.mark_words", "Measure how many words the watermark costs a recogniser."),
    "open-loop": ("load.open_loop", "Measure an engine that many listeners use at once."),
}


EXTRAS = ("bench", "pipecat", "server")  # measurements that need more than the package import these


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurement that the command line names."""
    wait_passively()
    with running.needed(*EXTRAS, by="This measurement"):
        return run(parser(argv), argv)


def script(name: str) -> int:
    """Run the measurement `name` as a script of its own, without NAME on its command line."""
    wait_passively()
    return run(_complete(parsing.Parser(description=MEASUREMENTS[name][1]), name))


def parser(argv: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser, with the options of the measurement that `argv` begins with."""
    words = sys.argv[1:] if argv is None else argv
    root = parsing.Parser(prog="measure.py", description=__doc__)
    names = root.add_subparsers(metavar="NAME", required=True)
    for name, (_, description) in MEASUREMENTS.items():
        command = names.add_parser(name, help=description, description=description)
        if name == next(iter(words), None):
            _complete(command, name)
    return root


def run(command: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Parse, measure, and return the exit code."""
    args = command.parse_args(argv)
    return common.run(args.measure, args)


def _complete(command: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    """Add to `command` the options of a measurement, and --json, which all have; return it."""
    module, function = MEASUREMENTS[name][0].split(".")
    measurement = getattr(import_module(f"benchmarks.measures.{module}"), function)
    for add in (*measurement.options, common.add_result_option):
        add(command)
    command.set_defaults(name=name, measure=measurement)
    return command


if __name__ == "__main__":
    sys.exit(main())
