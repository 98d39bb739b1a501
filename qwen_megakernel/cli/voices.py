"""The command `voices`: make voice files from recordings, look at them, delete them."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_megakernel.cli import options
from qwen_megakernel.errors import QwenTTSError, RecordingError, UnknownVoice, UsageError

if TYPE_CHECKING:
    from qwen_megakernel.tts_engine import TTSEngine
    from qwen_megakernel.voice import Voice


def add_commands(commands: Any) -> None:
    """Add `voices create | list | show | delete` to the subparsers `commands`."""
    voices = commands.add_parser("voices", help="make and manage voices").add_subparsers(
        required=True
    )
    command = voices.add_parser(
        "create", help="make them from recordings", description=create.__doc__
    )
    command.add_argument(
        "source",
        metavar="DIR|FILE",
        help="a recording, or a folder of them; NAME.txt beside NAME.wav is its transcript",
    )
    command.add_argument(
        "-o",
        "--output",
        help="file ending in .voice.safetensors, or folder, which is made (default: here)",
    )
    command.add_argument("--force", action="store_true", help="replace voices that are there")
    command.add_argument("--ref-text", help="exactly what is said, for one recording")
    command.add_argument("--xvector", action="store_true", help="leave transcripts out")
    command.add_argument("--legacy-bin", action="store_true", help="one voice_presets.bin")
    options.add_model_options(command)
    command.set_defaults(run=create)

    command = voices.add_parser(
        "list", help="list those of a folder", description=list_voices.__doc__
    )
    command.add_argument("folder", nargs="?", default=".", metavar="DIR|FILE", help="default: here")
    command.add_argument("--json", action="store_true", help="for a program")
    options.add_verbosity(command)
    command.set_defaults(run=list_voices)

    command = voices.add_parser("show", help="show one", description=show.__doc__)
    command.add_argument("voice", metavar="NAME|FILE", help="a name in --voices, or a file")
    command.add_argument(
        "--voices", default=".", metavar="DIR", help="where names are looked up (default: here)"
    )
    command.add_argument("--json", action="store_true", help="for a program")
    options.add_verbosity(command)
    command.set_defaults(run=show)

    command = voices.add_parser("delete", help="delete one", description=delete.__doc__)
    command.add_argument("voice", metavar="NAME", help="a name in --voices")
    command.add_argument(
        "--voices", default=".", metavar="DIR", help="the folder it is in (default: here)"
    )
    options.add_verbosity(command)
    command.set_defaults(run=delete)


def create(args: argparse.Namespace) -> int:
    """Make a voice file of a recording, or one for each recording of a folder."""
    from qwen_megakernel.voice import PRESETS_FILE, VOICE_SUFFIX, save_presets

    recordings = _recordings(Path(args.source))
    if args.ref_text is not None and len(recordings) > 1:
        raise UsageError(
            "--ref-text is of one recording.",
            hint="For a folder, put each transcript into NAME.txt beside NAME.wav.",
        )
    ending = PRESETS_FILE if args.legacy_bin else VOICE_SUFFIX
    output = Path(args.output or ".")
    is_folder = output.is_dir() or (args.output or "").endswith("/")
    is_file = not is_folder and output.name.endswith((VOICE_SUFFIX, ".bin"))
    if not (is_file or is_folder) and output.suffix:
        raise UsageError(
            f"-o {output} is neither a folder nor a file that ends in {VOICE_SUFFIX}.",
            hint=f"Say -o {output.with_suffix('')}{VOICE_SUFFIX}",
        )
    if is_file and (
        output.suffix != Path(ending).suffix or (len(recordings) > 1 and not args.legacy_bin)
    ):
        raise UsageError(f"-o {output} does not fit: what is written are {ending} files.")
    names = [PRESETS_FILE] if args.legacy_bin else [f"{each.stem}{ending}" for each in recordings]
    _check_free([output] if is_file else [output / name for name in names], force=args.force)
    made, failed = [], 0
    with options.engine_from_args(args, warmup=False) as tts:
        options.require_cloning(tts, "`voices create`")
        (output.parent if is_file else output).mkdir(parents=True, exist_ok=True)
        for recording in recordings:
            try:
                voice = _clone(tts, recording, args)
            except QwenTTSError as error:
                if len(recordings) == 1:
                    raise
                print(f"{recording.name}: {error}", file=sys.stderr)
                failed = error.exit_code
                continue
            made.append(voice)
            if not args.legacy_bin:
                path = output if is_file else output / f"{voice.name}{VOICE_SUFFIX}"
                how = _replaced(path)
                voice.save(path)
                print(f"{path}: {_describe(voice)}{how}")
    if args.legacy_bin and made:
        path = output if is_file else output / PRESETS_FILE
        how = _replaced(path)
        save_presets(path, made)
        print(f"{path}: {', '.join(voice.name for voice in made)}{how}")
    return failed


def list_voices(args: argparse.Namespace) -> int:
    """List the voices of a folder, a voice_presets.bin or a voice file."""
    found, failed = _voices_in(Path(args.folder))
    if args.json:
        facts = [_facts(voice) | {"name": name} for name, voice in found.items()]
        print(json.dumps(facts, indent=2))
        return failed
    for name, voice in found.items():  # by which --voice finds it: that of its file
        print(f"{name:24} {_describe(voice)}")
    if not found and not args.quiet:
        print(f"no voices in {args.folder}", file=sys.stderr)
    return failed


def show(args: argparse.Namespace) -> int:
    """Show one voice."""
    from qwen_megakernel.voice import VOICE_SUFFIX, Voice

    if args.voice.endswith(VOICE_SUFFIX):
        voice = Voice.load(args.voice)
    elif Path(args.voice).is_file():
        raise _no_voice_file(Path(args.voice))
    else:
        voice = _named(args.voice, _voices_in(Path(args.voices))[0])
    facts = _facts(voice)
    if args.json:
        print(json.dumps(facts, indent=2))
    else:
        for name, value in facts.items():
            print(f"{name:12} {'-' if value is None else value}")
    return 0


def delete(args: argparse.Namespace) -> int:
    """Delete a voice of a folder: its file, or its entry in voice_presets.bin."""
    from qwen_megakernel.voice import PRESETS_FILE, VOICE_SUFFIX, Voice, save_presets

    folder = Path(args.voices)
    path = folder / f"{Voice(args.voice).name}{VOICE_SUFFIX}"  # a name, so no path to elsewhere
    if path.is_file():
        path.unlink()
    else:
        found = _voices_in(folder)[0]
        voice = _named(args.voice, found)
        presets = Voice.load_presets(folder / PRESETS_FILE)
        save_presets(
            folder / PRESETS_FILE, [kept for kept in presets.values() if kept.name != voice.name]
        )
    if not args.quiet:
        print(f"deleted {args.voice}", file=sys.stderr)
    return 0


def _recordings(source: Path) -> list[Path]:
    from qwen_megakernel.cloning.recordings import SUFFIXES

    if not source.exists():
        raise RecordingError(f"{source} cannot be read as audio: no such file.")
    if not source.is_dir():
        return [source]
    found = sorted(path for path in source.iterdir() if path.suffix.lower() in SUFFIXES)
    if not found:
        raise UsageError(f"{source} has no recording.", hint=f"Looked for: {', '.join(SUFFIXES)}.")
    first: dict[str, Path] = {}  # of each name
    for path in found:
        if (other := first.setdefault(path.stem, path)) != path:
            raise UsageError(
                f"{other.name} and {path.name} would both become the voice {path.stem!r}.",
                hint="Rename one of them.",
            )
    return found


def _check_free(paths: list[Path], *, force: bool) -> None:
    """Refuse to replace voices that are there, before a model is loaded."""
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        raise UsageError(
            f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} there already.",
            hint="Replace with --force, or write elsewhere with -o.",
        )


def _replaced(path: Path) -> str:
    """What to say of a file that is about to be written."""
    return " (replaced)" if path.exists() else ""


def _clone(tts: "TTSEngine", recording: Path, args: argparse.Namespace) -> "Voice":
    text, beside = args.ref_text, recording.with_suffix(".txt")
    without_text = args.xvector or args.legacy_bin  # which holds x-vectors alone
    if text is None and beside.is_file() and not without_text:
        try:
            text = beside.read_text(encoding="utf-8").strip()
        except UnicodeDecodeError as error:
            raise RecordingError(f"{beside} is not UTF-8 text: {error.reason}.") from error
    return tts.create_voice(recording, None if without_text else text)


def _voices_in(folder: Path) -> tuple[dict[str, "Voice"], int]:
    """The readable voices by name, and the exit code: damaged files are reported, not fatal."""
    from qwen_megakernel.voice import PRESETS_FILE, VOICE_SUFFIX, Voice

    if folder.is_file():
        if folder.name.endswith(VOICE_SUFFIX):
            return {folder.name.removesuffix(VOICE_SUFFIX): Voice.load(folder)}, 0
        if folder.suffix != Path(PRESETS_FILE).suffix:
            raise _no_voice_file(folder)
        return Voice.load_presets(folder), 0
    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder}.")
    found, failed = {}, 0
    for path in [folder / PRESETS_FILE, *sorted(folder.glob(f"[!.]*{VOICE_SUFFIX}"))]:
        try:
            if path.name != PRESETS_FILE:
                found[path.name.removesuffix(VOICE_SUFFIX)] = Voice.load(path)
            elif path.is_file():
                found |= Voice.load_presets(path)
        except QwenTTSError as error:
            print(error, file=sys.stderr)
            failed = error.exit_code
    return found, failed


def _no_voice_file(path: Path) -> UsageError:
    """What to say of a file that is given where voices are expected."""
    from qwen_megakernel.cloning.recordings import SUFFIXES
    from qwen_megakernel.voice import VOICE_SUFFIX

    if path.suffix.lower() in SUFFIXES:
        make = f"qwen-megakernel voices create {path}"
        return UsageError(f"{path} is a recording, no voice.", hint=f"Make a voice of it: {make}")
    return UsageError(
        f"{path} is no file of voices.",
        hint=f"Give a folder, a file that ends in {VOICE_SUFFIX}, or a voice_presets.bin.",
    )


def _named(name: str, found: dict[str, "Voice"]) -> "Voice":
    if name not in found:
        known = ", ".join(found) or "(none)"
        raise UnknownVoice(f'Unknown voice "{name}". There are: {known}.')
    return found[name]


def _facts(voice: "Voice") -> dict[str, Any]:
    return {
        "name": voice.name,
        "dim": len(voice.x_vector),
        "mode": "in context" if voice.in_context else "x-vector",
        "frames": len(voice.codes) if voice.in_context else None,
        "transcript": voice.transcript,
        "fingerprint": voice.fingerprint,
    }


def _describe(voice: "Voice") -> str:
    if not voice.in_context:
        return f"x-vector, {len(voice.x_vector)}-dim"
    return f'in context, {len(voice.x_vector)}-dim, {len(voice.codes)} frames, "{voice.transcript}"'
