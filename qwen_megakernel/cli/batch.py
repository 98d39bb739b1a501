"""`speak --batch`: many texts, from the lines of a JSON file, to the files of a folder."""

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from qwen_megakernel.cli import options, parsing
from qwen_megakernel.errors import QwenTTSError, UsageError, check_names
from qwen_megakernel.printable import printable
from qwen_megakernel.speech_options import OPTIONS, SpeechOptions


class Lines(str):
    """The path of a file, each line of which is a JSON object with a text."""


def add_options(parser: parsing.Parser) -> None:
    """Add --batch, which stands for the text, and its options."""
    add, action = parsing.adder(parser, options.OUTPUT), parsing.TextAction
    add(
        "--batch JSONL",
        "file of texts to speak, a JSON object a line: text, output (the file's name), and "
        "options of speech such as voice and speed",
        lambda path: Lines(parsing.file_name(path)),
        dest="text",
        action=action,
    )
    add(
        "--output-dir DIR",
        "folder for the files of --batch; texts whose files are there already are skipped",
        parsing.file_name,
    )
    add("--slots", "number of texts of --batch to speak at a time", parsing.POSITIVE, 4)


def run(args: argparse.Namespace) -> int:
    """Speak every line whose file is missing; return the exit code of the last failure, or 0."""
    from qwen_megakernel.audio import check_path

    others = (args.stdout, args.output, args.play, args.subtitles, args.dump_codes)
    if args.output_dir is None or any(others):
        raise UsageError("--batch writes files into --output-dir DIR, not to one output.")
    tasks, folder = _read(args.text), Path(args.output_dir)
    todo = [task for task in tasks if not (folder / task["output"]).is_file()]
    marking = options.marking_from_args(args)
    folder.mkdir(parents=True, exist_ok=True)
    for task in todo:
        path, rate = folder / task["output"], task.get("sample_rate", args.sample_rate)
        marking.check_file(path)
        check_path(path, args.encoding, rate)
    code = num_failed = 0
    if todo:
        with options.engine_from_args(args, marking, num_slots=min(args.slots, len(todo))) as tts:
            how = options.speech_options(args, tts)

            def speak(task: dict[str, Any]) -> float:
                """Speak to a file, which appears when it is complete; return its seconds."""
                own = {name: value for name, value in task.items() if name in OPTIONS}
                speech = tts.synthesize(task["text"], loudness=args.loudness, **(how | own))
                speech.save(folder / task["output"], args.encoding)
                return len(speech.audio) / speech.sample_rate

            pool = ThreadPoolExecutor(tts.num_slots)
            try:
                spoken = {pool.submit(speak, task): task for task in todo}
                for done in as_completed(spoken):
                    name = spoken[done]["output"]
                    try:
                        seconds = done.result()
                    except QwenTTSError as error:
                        num_failed, code = num_failed + 1, error.exit_code
                        print(f"{name}: {error}", file=sys.stderr)
                    else:
                        options.say(args, f"{name}: {seconds:.2f} s")
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    counts = f"{len(todo) - num_failed} spoken, {len(tasks) - len(todo)} there already"
    options.say(args, f"{folder}: {counts}, {num_failed} failed")
    return code


def _read(path: str) -> list[dict[str, Any]]:
    """Return the objects of a file's lines; a line without `output` gets its number as the name."""
    tasks: dict[str, dict[str, Any]] = {}
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from error
    # Of bytes, because a text may have other characters at which `str.splitlines` ends a line.
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            task = json.loads(line)
            if not isinstance(task, dict):
                raise UsageError(
                    f"{printable(str(task))} is no JSON object.",
                    hint='Write an object with a text, such as {"text": "Hello."}',
                )
            task = {"output": f"{number:04}.wav"} | task
            check_names(task, ["text", "output", *OPTIONS])
            SpeechOptions().override(**{n: v for n, v in task.items() if n in OPTIONS})
            name = task["output"]
            is_name = Path(str(name)).name == name and name not in ("", "..") and "\0" not in name
            if not isinstance(task.get("text"), str) or not is_name:
                raise UsageError(
                    f"text is {task.get('text')!r} and output {name!r}; both must be strings, "
                    "and output the name of a file in --output-dir."
                )
            try:
                os.fsencode(name)  # refuses half surrogate pairs
            except UnicodeEncodeError as error:
                raise UsageError(
                    f"output is {name!r}; names of files are {error.encoding} here.",
                    hint="If it has no half surrogate pair, set LC_ALL=C.UTF-8.",
                ) from error
            if tasks.setdefault(name, task) is not task:
                raise UsageError(f"{name} is the output of another line, too.")
        # A UsageError is a ValueError; JSON that is nested too deep is a RecursionError.
        except (ValueError, TypeError, RecursionError) as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
    if not tasks:
        raise UsageError(f"{path} has no line with a text.")
    return list(tasks.values())
