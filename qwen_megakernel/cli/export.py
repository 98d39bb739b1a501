"""The command `export coreml`: a checkpoint as Core ML models."""

import argparse
from pathlib import Path
from typing import Any

from qwen_megakernel.choices import WEIGHTS, WEIGHTS_HELP
from qwen_megakernel.cli import options, parsing

PRECISIONS = ("float16", "float32")  # as in coreml.export, which imports torch


def export_coreml(args: argparse.Namespace) -> int:
    """Convert a model to six Core ML models, on any machine; running them takes a Mac."""
    from qwen_megakernel.checkpoint import loading
    from qwen_megakernel.decoders.backends import check_form
    from qwen_megakernel.decoders.coreml.export import ExportOptions, export

    options.log_progress(args, "decoders.coreml")
    chosen = ExportOptions(
        args.positions,
        args.precision,
        args.weights,
        args.chunk_frames,
        speech_precision=args.speech_precision,
    )
    checkpoint = loading.load(options.model_files(args))
    check_form(checkpoint, "coreml", args.weights)
    export(checkpoint, Path(args.to), chosen)
    print(args.to)
    return 0


def add_commands(commands: Any) -> None:
    targets = commands.add_parser("export", help="convert a model for other runtimes")
    command = parsing.new_command(
        targets.add_subparsers(required=True),
        "coreml",
        export_coreml,
        "convert for Apple's Neural Engine",
    )
    add = parsing.adder(command)
    add("model MODEL", "model to convert: hub id, folder or built-in name")
    add("--to DIR", "folder to write the models to", parsing.file_name, required=True)
    add(
        "--positions",
        "length of the talker's memory, prompt plus frames, 12.5 frames per second (default: "
        "1024, about 80 s)",
        parsing.POSITIVE,
        1024,
    )
    add("--precision", "number format of all models but the speech decoder", PRECISIONS, "float16")
    add(
        "--speech-precision",
        "number format of the speech decoder (default: float32; see docs/coreml.md)",
        PRECISIONS,
        "float32",
    )
    add("--weights FORM", WEIGHTS_HELP, WEIGHTS)
    add("--chunk-frames", "frames that the speech decoder takes in one call", parsing.POSITIVE, 4)
    add(*options.LOCAL_FILES)
