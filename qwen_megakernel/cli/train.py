"""The command `train`: makes a voice of Qwen3-TTS from recordings."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_megakernel.cli import options, parsing

if TYPE_CHECKING:
    from qwen_megakernel.training.preparing import Row

DEFAULT_BASE = "Qwen/Qwen3-TTS-12Hz-0.6B-Base"


def add_commands(commands: Any) -> None:
    """Add `train prepare` to the subparsers `commands`."""
    command = commands.add_parser("train", help="fine-tune Qwen3-TTS on recordings of one speaker")
    _add_prepare(command.add_subparsers(required=True))


def prepare(args: argparse.Namespace) -> int:
    """Encode recordings: write codec frames and an x-vector of each to a JSONL file."""
    from qwen_megakernel.training import speech_data

    # Checks the recordings' list before anything is downloaded.
    speech_data.list_recordings(Path(args.recordings))
    options.report_loading(args, args.model)
    from tqdm import tqdm

    from qwen_megakernel.checkpoint import loading

    def bar(rows: "list[Row]") -> "Iterator[Row]":
        yield from tqdm(rows, unit="recording", disable=args.quiet, file=sys.stderr)

    files = loading.resolve(
        args.model, local_files_only=args.local_files_only, progress=not args.quiet
    )
    report = speech_data.prepare(Path(args.recordings), Path(args.output), loading.load(files), bar)
    print(
        f"{args.output}: {report.num_added} recordings added ({report.seconds:.1f} s), "
        f"{report.num_present} were there, {len(report.faults)} left out"
    )
    for fault in report.faults:
        print(f"  {fault}")
    return 0


def _add_prepare(train: Any) -> None:
    command = parsing.new_command(train, "prepare", prepare, "encode recordings for training")
    add = command.add_argument
    add(
        "recordings",
        metavar="RECORDINGS",
        help="folder with metadata.csv (id|text) and wav/, folder of NAME.wav beside NAME.txt, or "
        'JSONL file of {"audio": ..., "text": ...}',
    )
    add(
        "-o",
        "--output",
        required=True,
        metavar="DATA",
        help="JSONL file to write; the lines in it are kept, so an interrupted run goes on",
    )
    add(
        "--model",
        default=DEFAULT_BASE,
        help="Base model that will be trained, whose encoders are used (default: %(default)s)",
    )
    options.add_local_files_option(command)
    options.add_verbosity(command)
