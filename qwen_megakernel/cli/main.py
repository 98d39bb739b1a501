"""The command line: speak | serve | sheen | train | voices | mark | detect | ... ."""

import argparse
import contextlib
import json
from pathlib import Path

from qwen_megakernel import __version__
from qwen_megakernel.cli import (
    build,
    convert,
    export,
    mark,
    options,
    parsing,
    running,
    serve,
    sheen,
    speak,
    train,
    voices,
)
from qwen_megakernel.errors import UsageError
from qwen_megakernel.output_files import writing


def download(args: argparse.Namespace) -> int:
    """Download a model's files unless this machine has them, and print their folder."""
    import shutil

    from qwen_megakernel.checkpoint import loading

    if not args.to:
        print(loading.resolve(args.model_id, progress=not args.quiet).folder)
        return 0
    to = Path(args.to)
    made = [each for each in (to, *to.parents) if not each.exists()]
    with writing(to):
        to.mkdir(parents=True, exist_ok=True)  # refused before the download

    def copy(source: str, target: str) -> object:
        with writing(to):
            return shutil.copy2(source, target)

    try:
        files = loading.resolve(args.model_id, progress=not args.quiet)
        shutil.copytree(files.folder, to, copy_function=copy, dirs_exist_ok=True)
        codec = files.speech_tokenizer
        if codec.parent != files.folder:  # it lies beside the model
            to /= loading.CODEC_FOLDER
            shutil.copytree(codec, to, copy_function=copy, dirs_exist_ok=True)
    except BaseException:
        if made:
            shutil.rmtree(args.to, ignore_errors=True)
            with contextlib.suppress(OSError):  # another program has put something there
                for folder in made[1:]:
                    folder.rmdir()
        raise
    print(args.to)
    return 0


def doctor(args: argparse.Namespace) -> int:
    """Print facts about this machine: versions, processor, GPU, compilers, caches, backend."""
    options.say(args, "loading PyTorch")
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
            shown = ", ".join(value) or None if isinstance(value, list) else value
            print(f"{name:18} {'none' if shown is None else shown}")
    return 0


def compare_codes(args: argparse.Namespace) -> int:
    """Compare files of codes: each figure with its usual range, and the overlap of each pair."""
    from itertools import combinations

    from qwen_megakernel.engine import codes_file

    dumps = {path: codes_file.read(Path(path)) for path in args.files}
    widths = {codes.shape[1] for codes in dumps.values()}
    if len(widths) > 1:
        raise UsageError(
            f"The files have {sorted(widths)} codes for each frame; they are of different codecs."
        )
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
    for a, b in combinations(dumps, 2):
        print(codes_file.difference(a, dumps[a], b, dumps[b]))
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
    """Return the parser of all commands and their options."""
    root = parsing.Parser(prog="qwen-megakernel", description="Qwen3-TTS speech, streamed.")
    root.epilog = 'Try first: qwen-megakernel speak "Hello." --model demo-voice'
    root.add_argument("--version", action="version", version=__version__)
    commands = root.add_subparsers(dest="command", required=True)

    for module in (speak, serve, sheen, train, voices, mark):
        module.add_commands(commands)

    command = parsing.new_command(commands, "download", download, "download a model")
    add = parsing.adder(command)
    add("model_id MODEL", "hub id of the model, such as Qwen/Qwen3-TTS-12Hz-0.6B-Base")
    add("--to DIR", "folder to which the files are copied, too", parsing.file_name)

    command = parsing.new_command(commands, "doctor", doctor, "describe this machine")
    parsing.adder(command)("--json", "print as JSON", bool)

    for module in (build, convert, export):
        module.add_commands(commands)

    codes = commands.add_parser("codes", help="inspect files of codec codes")
    command = parsing.new_command(
        codes.add_subparsers(required=True),
        "compare",
        compare_codes,
        "print entropy, repeats and overlap of files of codes",
    )
    add = parsing.adder(command)
    add("files TSV", "file that --dump-codes wrote", parsing.file_name, nargs="+")
    add("--strict", "exit with code 1 if a figure is suspicious", bool)
    add("--json", "print as JSON", bool)
    for command in parsing.commands_of(root):
        if "--debug" not in command._option_string_actions:
            options.add_verbosity(command)
    return root


def main(argv: list[str] | None = None) -> int:
    """Run `qwen-megakernel` or `python -m qwen_megakernel`; returns the exit code."""
    args = parser().parse_args(argv)
    return running.run(args.run, args)
