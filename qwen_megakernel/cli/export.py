"""The command `export coreml`: a checkpoint as Core ML models."""

import argparse
import logging
from pathlib import Path
from typing import Any

from qwen_megakernel.choices import WEIGHTS, WEIGHTS_HELP
from qwen_megakernel.cli import options

PRECISIONS = ("float16", "float32")  # coreml.export's, which imports torch


def export_coreml(args: argparse.Namespace) -> int:
    """Write a model's six Core ML models; works on any machine, and needs a Mac to run them."""
    from qwen_megakernel.checkpoint import loading
    from qwen_megakernel.decoders.coreml.export import ExportOptions, export

    level = logging.NOTSET if args.quiet or args.debug else logging.INFO
    logging.getLogger("qwen_megakernel.decoders.coreml").setLevel(level)
    chosen = ExportOptions(
        args.positions,
        args.precision,
        args.weights,
        args.chunk_frames,
        speech_precision=args.speech_precision,
    )
    files = loading.resolve(
        args.model, local_files_only=args.local_files_only, progress=not args.quiet
    )
    export(loading.load(files), Path(args.to), chosen)
    print(args.to)
    return 0


def add_command(commands: Any) -> None:
    """Add `export` to the subparsers `commands`."""
    targets = commands.add_parser("export", help="a model for other runtimes").add_subparsers(
        required=True
    )
    command = targets.add_parser(
        "coreml", help="for Apple's Neural Engine", description=export_coreml.__doc__
    )
    command.add_argument("model", metavar="MODEL", help="hub id, folder or built-in name")
    command.add_argument("--to", metavar="DIR", required=True, help="where the models go")
    command.add_argument(
        "--positions",
        type=options.at_least(1),
        default=1024,
        help="that the talker remembers: prompt and frames, 12.5 of them a second (default: 1024)",
    )
    command.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float16",
        help="of all models but the speech decoder (default: float16)",
    )
    command.add_argument(
        "--speech-precision",
        choices=PRECISIONS,
        default="float32",
        help="of the speech decoder: float32; why not float16, docs/coreml.md tells",
    )
    command.add_argument("--weights", choices=WEIGHTS, metavar="FORM", help=WEIGHTS_HELP)
    command.add_argument(
        "--chunk-frames",
        type=options.at_least(1),
        default=4,
        help="that the speech decoder takes at once (default: 4)",
    )
    command.add_argument("--local-files-only", action="store_true", help="never use the network")
    options.add_verbosity(command)
    command.set_defaults(run=export_coreml)
