"""The commands `mark new-key` and `detect`."""

import argparse
import io
import json
from pathlib import Path
from typing import Any

from qwen_megakernel.cli import options, parsing


def new_key(args: argparse.Namespace) -> int:
    """Make a key for the watermark, in a new file that only you may read."""
    from qwen_megakernel.marking import MarkKey

    MarkKey.create(Path(args.file), args.operator)
    options.say(args, f"{args.file}: key of operator {args.operator}")
    return 0


def detect(args: argparse.Namespace) -> int:
    """Look for marks in a recording; the exit code is 1 if none says that it is synthetic."""
    from qwen_megakernel.cloning import recordings
    from qwen_megakernel.marking import MarkKey
    from qwen_megakernel.sound import detection

    key = MarkKey.read(Path(args.mark_key)) if args.mark_key else None
    path = Path(args.file)
    data = path.read_bytes() if path.is_fifo() else b""  # what comes through a pipe is read once
    samples, rate = recordings.read(io.BytesIO(data) if data else path, args.file)
    recordings.check_values(samples, args.file)
    data = data or path.read_bytes()
    found = detection.detect(data, samples, rate, key, search_speeds=not args.own_speed)
    if args.json:
        print(json.dumps(found.facts()))
        return 0 if found.is_marked else 1
    for mark in found.marks:
        operator = "operator unclear" if mark.operator is None else f"operator {mark.operator}"
        print(
            f"{mark.start_s:.1f} s to {mark.end_s:.1f} s: marked as synthetic, {operator}, chance "
            f"of a false alarm {mark.false_alarm:.0e}, speed {mark.speed:.3f}"
        )
    if key and found.is_marked and not found.marks:
        print("no watermark of this key found")
    if (signed := found.credentials) is not None:
        said = "marked as synthetic" if signed.says_synthetic else signed.reason or "not marked"
        by = f", signed by {signed.signed_by}" if signed.signed_by else ""
        print(f"C2PA {signed.state}: {said}{by}")
    if found.metadata is not None:
        print(f"metadata, which anyone can write or remove: {found.metadata}")
    if not found.is_marked:
        print(detection.NO_MARK if key else f"{detection.NO_MARK}; --mark-key finds watermarks")
    return 0 if found.is_marked else 1


def add_commands(commands: Any) -> None:
    mark = commands.add_parser("mark", help="make a key for the watermark")
    command = parsing.new_command(
        mark.add_subparsers(required=True), "new-key", new_key, "make a key for the watermark"
    )
    add = parsing.adder(command)
    add("file FILE", "file to write, which must not exist yet", parsing.file_name)
    add("--operator", "number of the operator who marks, up to 65535", parsing.at_least(0), 0)

    command = parsing.new_command(commands, "detect", detect, "look for marks in a file")
    add = parsing.adder(command)
    add("file FILE", "recording to search: wav, flac, ogg or mp3", parsing.file_name)
    add("--mark-key KEY", "file of `mark new-key`, to look for its watermark", parsing.file_name)
    add(
        "--own-speed",
        "search for marks at their own speed alone; without this option, speeds up to 10%% "
        "lower and higher are searched, too, which takes longer",
        bool,
    )
    add("--json", "print as JSON", bool)
