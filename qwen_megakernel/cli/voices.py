"""The command `voices`: make voice files from recordings, list, show and delete them."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_megakernel.cli import options, parsing
from qwen_megakernel.errors import QwenTTSError, RecordingError, UnknownVoice, UsageError, listed
from qwen_megakernel.output_files import check_folder
from qwen_megakernel.printable import printable

if TYPE_CHECKING:
    from qwen_megakernel.engine.speech_engine import SpeechEngine
    from qwen_megakernel.voice import Voice


_FOLDER_HELP = "folder of voice files (default: .)"


def add_commands(commands: Any) -> None:
    voices = commands.add_parser("voices", help="make and manage voices")
    voices = voices.add_subparsers(required=True)
    command = parsing.new_command(voices, "create", create, "make voices from recordings")
    first, then = "recording and voice", "other ways to make and keep voices"
    for title in (first, then, options.MACHINE, options.READING, options.VOICE, options.MARKS):
        parsing.group(command, title)  # in this order
    add = parsing.adder(command, first)
    add(
        "source DIR|FILE",
        "recording, or folder of recordings; NAME.txt beside NAME.wav is its transcript",
        parsing.file_name,
    )
    add(
        "-o --output",
        "file to write (.voice.safetensors), or folder, which is made if need be (default: .)",
        parsing.file_name,
    )
    add("--ref-text", "exact transcript of the recording, if there is one recording")
    add = parsing.adder(command, then)
    add("--force", "replace voices that exist already", bool)
    add("--xvector", "make voices without transcripts, by their x-vectors alone", bool)
    add("--legacy-bin", "write all voices to one voice_presets.bin, the older format", bool)
    options.add_model_options(command)
    command.epilog = (
        'Example: qwen-megakernel voices create anna.wav --ref-text "Hello, I\'m Anna."'
    )

    command = parsing.new_command(voices, "mix", mix, "make a voice between others")
    add = parsing.adder(command)
    add(
        "parts NAME=WEIGHT",
        "name in --voices, or voice file, and its weight, as in anna=.7; 1 if it has none",
        nargs="+",
    )
    add("-o --output", "file to write (.voice.safetensors)", parsing.file_name, required=True)
    add("--force", "replace a voice that exists already", bool)
    add("--voices DIR", _FOLDER_HELP, parsing.file_name, ".")

    command = parsing.new_command(voices, "list", list_voices, "list the voices of a folder")
    add = parsing.adder(command)
    add("folder DIR|FILE", "voice file, or " + _FOLDER_HELP, parsing.file_name, ".", nargs="?")
    add("--json", "print as JSON", bool)

    for run in (show, delete):
        name = run.__name__
        command = parsing.new_command(voices, name, run, f"{name} a voice")
        add = parsing.adder(command)
        add("voice NAME|FILE", "name in --voices, or voice file", parsing.file_name)
        add("--voices DIR", _FOLDER_HELP, parsing.file_name, ".")
        if run is show:
            add("--json", "print as JSON", bool)


def create(args: argparse.Namespace) -> int:
    """Make a voice file from a recording, or from a folder: one file for each recording, or one
    file that has all of them as styles.
    """
    from qwen_megakernel.cloning.recordings import read
    from qwen_megakernel.voice import PRESETS_FILE, VOICE_SUFFIX, Voice, save_presets

    recordings = _recordings(Path(args.source))
    if args.ref_text is not None and len(recordings) > 1:
        raise UsageError(
            f"--ref-text is the transcript of one recording; {args.source} has {len(recordings)}.",
            hint="For a folder, put each transcript into NAME.txt beside NAME.wav.",
        )
    ending = PRESETS_FILE if args.legacy_bin else VOICE_SUFFIX
    output = Path(args.output or ".")
    is_folder = output.is_dir() or (args.output or "").endswith("/")
    is_file = not is_folder and output.name.endswith((VOICE_SUFFIX, ".bin"))
    if not (is_file or is_folder) and output.suffix:
        raise UsageError(
            f"-o {output} is neither a folder nor a file that ends in {VOICE_SUFFIX}.",
            hint=f"Use -o {shlex.quote(str(output.with_suffix(VOICE_SUFFIX)))}",
        )
    # One file of a folder's recordings is one voice, which has a style for each.
    has_styles = is_file and not args.legacy_bin and Path(args.source).is_dir()
    if is_file and output.suffix != Path(ending).suffix:
        raise UsageError(f"-o {output} does not fit: this command writes {ending} files.")
    names = [PRESETS_FILE] if args.legacy_bin else [f"{each.stem}{ending}" for each in recordings]
    _check_free([output] if is_file else [output / name for name in names], force=args.force)
    check_folder(output.parent if is_file else output)
    own_name = Voice(output.name.removesuffix(VOICE_SUFFIX)).name if is_file else ""
    needs_all = len(recordings) == 1 or has_styles  # a voice that lacks a style is no result
    # Raises before a model is loaded; what comes through a pipe can be read once.
    samples = {each: read(each) for each in recordings} if needs_all else {}
    made, failed = [], 0
    with options.engine_from_args(args, warmup=False) as tts:
        options.require_cloning(tts, "`voices create`")
        for recording in recordings:
            try:
                voice = _clone(tts, recording, samples.get(recording), args)
            except QwenTTSError as error:
                if needs_all:
                    raise
                print(f"{recording.name}: {error}", file=sys.stderr)
                failed = error.exit_code
                continue
            made.append(voice)
            if not (args.legacy_bin or has_styles):
                voice = replace(voice, name=own_name or voice.name)
                path = output if is_file else output / f"{voice.name}{VOICE_SUFFIX}"
                _save(path, _describe(voice), voice.save)
    if has_styles:
        voice = Voice.of_styles(own_name, made)
        _save(output, _describe(voice), voice.save)
    if args.legacy_bin and made:
        path = output if is_file else output / PRESETS_FILE
        names = [voice.name for voice in made]
        _save(path, ", ".join(names), lambda path: save_presets(path, made))
    return failed


def mix(args: argparse.Namespace) -> int:
    """Make a voice file whose x-vector lies between those of other voices."""
    from qwen_megakernel.cloning import mixing
    from qwen_megakernel.voice import VOICE_SUFFIX

    output = Path(args.output)
    _check_free([output], force=args.force)
    parts = []
    for part in args.parts:
        name, _, weight = part.rpartition("=") if "=" in part else (part, "", "1")
        try:
            share = float(weight)
        except ValueError as error:
            raise UsageError(
                f"{part} has the weight {weight!r}.", hint="Write a number, as in anna=.7"
            ) from error
        parts.append((_voice(name, args.voices), share))
    voice = mixing.mix(output.name.removesuffix(VOICE_SUFFIX), parts)
    _save(output, _describe(voice), voice.save)
    return 0


def list_voices(args: argparse.Namespace) -> int:
    """List the voices of a folder, a voice_presets.bin or a voice file."""
    found, failed = _voices_in(Path(args.folder))
    if args.json:
        facts = [_facts(voice) | {"name": name} for name, voice in found.items()]
        print(json.dumps(facts, indent=2))
        return failed
    for name, voice in found.items():  # the file's name, by which --voice finds it
        print(f"{_shown(name):24} {_describe(voice)}")
    if not found:
        options.say(args, f"no voices in {args.folder}")
    return failed


def show(args: argparse.Namespace) -> int:
    """Show a voice: its mode, size, transcript, fingerprint, and the consent to an upload."""
    facts = _facts(_voice(args.voice, args.voices))
    if args.json:
        print(json.dumps(facts, indent=2))
    else:
        for name, value in facts.items():
            text = ", ".join(value) if isinstance(value, list) else value
            print(f"{name:12} {'-' if value is None else _shown(text)}")
    return 0


def delete(args: argparse.Namespace) -> int:
    """Delete a voice of a folder: its file, or its entry in voice_presets.bin."""
    from qwen_megakernel.voice import PRESETS_FILE, VOICE_SUFFIX, Voice, save_presets

    name, place = args.voice, Path(args.voices)
    if name.endswith(VOICE_SUFFIX) and Path(name).is_file():
        name, place = Path(name).name.removesuffix(VOICE_SUFFIX), Path(name)
    own = f"{Voice(name).name}{VOICE_SUFFIX}"  # `Voice` refuses a path as a name
    path = place if place.is_file() and place.name == own else place / own
    if path.is_file() or path.is_symlink():
        path.unlink()
    else:
        voice = _named(name, _voices_in(place)[0])
        path = place if place.is_file() else place / PRESETS_FILE
        presets = Voice.load_presets(path)
        save_presets(path, [kept for kept in presets.values() if kept.name != voice.name])
    options.say(args, f"deleted {name}")
    return 0


def _recordings(source: Path) -> list[Path]:
    from qwen_megakernel.cloning.recordings import SUFFIXES

    if not source.is_dir():
        return [source]
    found = sorted(path for path in source.iterdir() if path.suffix.lower() in SUFFIXES)
    if not found:
        raise UsageError(f"{source} has no recording.", hint=f"Looked for: {', '.join(SUFFIXES)}.")
    first: dict[str, Path] = {}  # the first recording of each name
    for path in found:
        if (other := first.setdefault(path.stem, path)) != path:
            raise UsageError(
                f"{other.name} and {path.name} would both become the voice {path.stem!r}.",
                hint="Rename one of them.",
            )
    return found


def _check_free(paths: list[Path], *, force: bool) -> None:
    """Refuse to replace voices without --force, before a model is loaded."""
    present = [str(path) for path in paths if path.exists()]
    if present and not force:
        raise UsageError(
            f"{', '.join(present)} {'exists' if len(present) == 1 else 'exist'} already.",
            hint="Replace with --force, or write elsewhere with -o.",
        )


def _save(path: Path, what: str, save: Callable[[Path], None]) -> None:
    how = " (replaced)" if path.exists() else ""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    save(path)
    print(f"{path}: {what}{how}")


def _clone(
    tts: "SpeechEngine", recording: Path, samples: object, args: argparse.Namespace
) -> "Voice":
    text, beside = args.ref_text, recording.with_suffix(".txt")
    if args.xvector or args.legacy_bin:  # a presets file holds only x-vectors
        text = None
    elif text is None and beside.is_file():
        try:
            text = beside.read_text(encoding="utf-8-sig").strip()
        except UnicodeDecodeError as error:
            raise RecordingError(f"{beside} is not UTF-8 text: {error.reason}.") from error
    return tts.create_voice(samples or recording, text, name=recording.stem)


def _voices_in(folder: Path) -> tuple[dict[str, "Voice"], int]:
    """Return the readable voices by name, and the exit code; prints the damaged files' errors."""
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


def _voice(name: str, folder: str) -> "Voice":
    """Return the voice of a file, or that of a name in a folder."""
    from qwen_megakernel.voice import VOICE_SUFFIX, Voice

    if name.endswith(VOICE_SUFFIX):
        return Voice.load(name)
    if Path(name).is_file():
        raise _no_voice_file(Path(name))
    return _named(name, _voices_in(Path(folder))[0])


def _no_voice_file(path: Path) -> UsageError:
    """Return the error for a file that is given where voices are expected."""
    from qwen_megakernel.cloning.recordings import SUFFIXES
    from qwen_megakernel.voice import VOICE_SUFFIX

    if path.suffix.lower() in SUFFIXES:
        make = f"qwen-megakernel voices create {shlex.quote(str(path))}"
        return UsageError(f"{path} is a recording, not a voice.", hint=f"Make a voice: {make}")
    return UsageError(
        f"{path} is not a file of voices.",
        hint=f"Give a folder, a file that ends in {VOICE_SUFFIX}, or a voice_presets.bin.",
    )


def _named(name: str, found: dict[str, "Voice"]) -> "Voice":
    if name not in found:
        raise UnknownVoice(f'Unknown voice "{name}". There are: {listed(found, name)}.')
    return found[name]


def _facts(voice: "Voice") -> dict[str, Any]:
    assert voice.x_vector is not None  # every voice of a file has one
    return {
        "name": voice.name,
        "dim": len(voice.x_vector),
        "mode": "in context" if voice.in_context else "x-vector",
        "styles": voice.style_names if voice.styles else None,
        "frames": None if voice.codes is None else len(voice.codes),
        "transcript": voice.transcript,
        "fingerprint": voice.fingerprint,
        "uploaded": voice.is_uploaded,
        "consent": voice.consent,
    }


def _describe(voice: "Voice") -> str:
    facts = _facts(voice)
    size = f"{facts['mode']}, {facts['dim']}-dim"
    if voice.styles:
        size += f", styles: {', '.join(map(_shown, voice.style_names))}"
    if not voice.in_context:
        return size
    return f'{size}, {facts["frames"]} frames, "{_shown(voice.transcript)}"'


def _shown(value: object) -> str:
    """Return a value as one line; a client of a server may have written it."""
    return printable(str(value), max_chars=10_000)
