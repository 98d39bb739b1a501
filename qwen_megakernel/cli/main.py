"""The command line: speak | serve | sheen | voices | download | doctor | build | export | codes."""

import argparse
import json
from pathlib import Path

from qwen_megakernel import __version__
from qwen_megakernel.cli import build, export, options, serve, speak, voices
from qwen_megakernel.cli import sheen as sheen_cli
from qwen_megakernel.errors import UsageError


def download(args: argparse.Namespace) -> int:
    """Fetch a model's files, or say where they are already."""
    import shutil

    from qwen_megakernel.checkpoint import loading

    files = loading.resolve(args.model_id, progress=not args.quiet)
    if args.to:
        shutil.copytree(files.folder, args.to, dirs_exist_ok=True)
    print(args.to or files.folder)
    return 0


def doctor(args: argparse.Namespace) -> int:
    """Say what this machine has."""
    from qwen_megakernel.cli.doctor import report

    facts = report()
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    for name, value in facts.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, entry in value.items():
                print(f"  {key:16} {entry if entry is not None else 'not installed'}")
        else:
            print(f"{name:18} {value if value is not None else 'none'}")
    return 0


def compare_codes(args: argparse.Namespace) -> int:
    """Compare dumps of codes: each figure with what is usual, and the overlap of each pair."""
    from itertools import combinations

    from qwen_megakernel.engine import codes_file

    dumps = {path: codes_file.read(Path(path)) for path in args.files}
    widths = {codes.shape[1] for codes in dumps.values()}
    if len(widths) > 1:
        raise UsageError(f"The dumps have {sorted(widths)} groups; they are of different codecs.")
    figures = {path: codes_file.describe(codes) for path, codes in dumps.items()}
    overlaps = {
        f"{a} ~ {b}": codes_file.overlap(dumps[a], dumps[b]) for a, b in combinations(dumps, 2)
    }
    expected = {path: codes_file.expectations(values) for path, values in figures.items()}
    anomalies = {
        path: [name for name, judged in expected[path].items() if judged.is_suspicious]
        for path in figures
    }
    code = 1 if args.strict and any(anomalies.values()) else 0
    if args.json:
        found = {"dumps": figures, "overlaps": overlaps, "anomalies": anomalies}
        print(json.dumps(found, indent=2))
        return code
    for path, values in figures.items():
        print(path)
        for name, value in values.items():
            shown = f"{value:.3f}" if isinstance(value, float) else str(value)
            judged = expected[path][name]
            mark = "SUSPICIOUS; " if judged.is_suspicious else ""
            print(f"  {name:19} {shown:>8}  {mark}{judged.description}".rstrip())
    for pair, value in overlaps.items():
        print(f"{pair}: overlap {value:.3f}  {codes_file.OVERLAP.description}")
    return code


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    root = options.Parser(prog="qwen-megakernel", description="Qwen3-TTS speech, streamed.")
    root.add_argument("--version", action="version", version=__version__)
    commands = root.add_subparsers(dest="command", required=True)

    speak.add_command(commands)
    serve.add_command(commands)
    sheen_cli.add_commands(commands)
    voices.add_commands(commands)

    command = commands.add_parser("download", help="fetch a model", description=download.__doc__)
    command.add_argument(
        "model_id", metavar="MODEL", help="hub id, as Qwen/Qwen3-TTS-12Hz-0.6B-Base"
    )
    command.add_argument("--to", metavar="DIR", help="copy the files there as well")
    options.add_verbosity(command)
    command.set_defaults(run=download)

    command = commands.add_parser(
        "doctor", help="describe this machine", description=doctor.__doc__
    )
    command.add_argument("--json", action="store_true", help="for a program")
    options.add_verbosity(command)
    command.set_defaults(run=doctor)

    build.add_command(commands)
    export.add_command(commands)

    codes = commands.add_parser("codes", help="look at dumped codes").add_subparsers(required=True)
    command = codes.add_parser(
        "compare", help="entropy, repeats, overlap", description=compare_codes.__doc__
    )
    command.add_argument("files", nargs="+", metavar="TSV", help="from --dump-codes")
    command.add_argument("--strict", action="store_true", help="exit 1 if a figure is suspicious")
    command.add_argument("--json", action="store_true", help="for a program")
    options.add_verbosity(command)
    command.set_defaults(run=compare_codes)
    return root


def main(argv: list[str] | None = None) -> int:
    """Entry point of `qwen-megakernel` and `python -m qwen_megakernel`; returns the exit code."""
    args = parser().parse_args(argv)
    return options.run(args.run, args)
