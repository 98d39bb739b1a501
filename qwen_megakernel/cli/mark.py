"""The commands `mark new-key` and `detect`."""

import argparse
import json
from pathlib import Path
from typing import Any

from qwen_megakernel.cli import options, parsing


def new_key(args: argparse.Namespace) -> int:
    """Make a key for the watermark, in a new file that only you may read."""
    from qwen_megakernel.sound.watermark import MarkKey

    MarkKey.create(Path(args.file), args.operator)
    return 0


def detect(args: argparse.Namespace) -> int:
    """Look for the watermark of a key in a recording; the exit code is 1 if no mark is found."""
    from qwen_megakernel.cloning import recordings
    from qwen_megakernel.sound.mark_detector import find_marks
    from qwen_megakernel.sound.watermark import MarkKey

    key = MarkKey.read(Path(args.mark_key))
    samples, rate = recordings.read(args.file)
    recordings.check_values(samples, args.file)
    marks = find_marks(samples, rate, key.secret, search_speeds=not args.own_speed)
    if args.json:
        print(json.dumps([mark.facts() for mark in marks]))
    elif not marks:
        print("no mark found")
    for mark in () if args.json else marks:
        operator = "operator unclear" if mark.operator is None else f"operator {mark.operator}"
        print(
            f"{mark.start_s:.1f} s to {mark.end_s:.1f} s: marked as synthetic, {operator}, chance "
            f"of a false alarm {mark.false_alarm:.0e}, speed {mark.speed:.3f}"
        )
    return 0 if marks else 1


def add_commands(commands: Any) -> None:
    """Add `mark` and `detect` to the subparsers `commands`."""
    mark = commands.add_parser("mark", help="make a key for the watermark")
    command = parsing.new_command(
        mark.add_subparsers(required=True), "new-key", new_key, "make a key for the watermark"
    )
    add = command.add_argument
    add("file", metavar="FILE", help="file to write, which must not exist yet")
    add(
        "--operator",
        type=parsing.at_least(0),
        default=0,
        help="number of the operator who marks, up to 65535 (default: 0)",
    )
    options.add_verbosity(command)

    command = parsing.new_command(commands, "detect", detect, "look for the watermark in a file")
    add = command.add_argument
    add("file", metavar="FILE", help="recording to search: wav, flac, ogg or mp3")
    add("--mark-key", required=True, metavar="KEY", help="file of `mark new-key`")
    add(
        "--own-speed",
        action="store_true",
        help="do not search recordings that play up to 10%% faster or slower, which takes longer",
    )
    add("--json", action="store_true", help="print as JSON")
    options.add_verbosity(command)
