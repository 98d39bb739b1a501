"""Options that the commands, the demos and the benchmarks share, and the engine they describe."""

import argparse
import logging
import os
import shlex
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_megakernel.choices import (
    BACKENDS,
    DEFAULT_MODEL,
    DTYPES,
    DTYPES_BY_PART,
    TELEPHONE_RATE,
    TRAINED_VOICE,
    WEIGHTS,
    WEIGHTS_HELP,
)
from qwen_megakernel.cli import parsing
from qwen_megakernel.errors import UsageError
from qwen_megakernel.marking import Marking
from qwen_megakernel.printable import get_logger
from qwen_megakernel.speech_options import OPTIONS, Option, SpeechOptions
from qwen_megakernel.torch_import import import_torch

if TYPE_CHECKING:
    from qwen_megakernel.checkpoint.loading import ModelFiles
    from qwen_megakernel.engine.speech_engine import SpeechEngine
    from qwen_megakernel.voice import Voice

# Options of `SpeechOptions` that the commands do not have, or have in other words.
_NO_OPTIONS = {
    *("voice", "lexicon", "normalize", "split", "first_chunk_frames", "chunk_frames", "do_sample"),
    *(option.name for option in OPTIONS.values() if option.is_subtalker),
}
OFFERED = tuple(name for name in OPTIONS if name not in _NO_OPTIONS)

# Options of `TTSEngine.from_pretrained` that have the same name here.
_OF_ENGINES = (
    *("backend", "device", "dtype", "weights", "keep_packed", "local_files_only"),
    *("voices", "normalize"),
)

TEXT_FORMAT = "--text-format"  # as warnings of a command name it
LOCAL_FILES = (
    *("--local-files-only", "use only files that are on this machine; download nothing"),
    bool,
)
DEVICE_HELP = "device to run on: cpu, cuda or cuda:1 (default: a GPU if there is one, else the CPU)"

# Groups of options in --help, in the order in which a command adds their first options.
OUTPUT, VOICE, READING = "text and output", "voice", "reading"
SOUND, SAMPLING = "sound", "sampling"
MARKS, MACHINE = "marks of synthetic speech", "model and machine"
# The groups of records in `SpeechOptions`, and of options in no record.
_TITLES = {"sound": SOUND, "loudness": SOUND, "sampling": SAMPLING, "instruct": VOICE}
_TITLES |= {"style": VOICE, "language": VOICE, "seed": SAMPLING, "max_frames": SAMPLING}

logger = get_logger(__name__)


def add_model_options(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the options that describe an engine and its marks, and those of verbosity."""
    add_mark_options(parser)
    add = parsing.adder(parser, MACHINE)
    add(
        "--model",
        "model to speak with: hub id, folder, demo-voice, or random weights: tiny-random, "
        f"tiny-random-base, ... (default: {default or DEFAULT_MODEL})",
        default=default,
    )
    add(
        "--adapter VOICE",
        "folder of `train run`, whose voice is merged with its base model, --model, at load; "
        "anna=VOICE names its speaker anna",
        list,
        type=parsing.file_name,
    )
    parsing.adder(parser, VOICE)(
        "--voices DIR", "folder of voice files to find by name", parsing.file_name
    )
    add(
        "--backend",
        "backend that computes the codec codes: kernel (CUDA), graph (CUDA graphs), cpu (native "
        "code), torch (PyTorch), emulation (the kernel on a CPU, slow), coreml (Apple) "
        "(default: auto, the kernel on a GPU that can run it, native code on a CPU)",
        BACKENDS,
        "auto",
    )
    add("--device", DEVICE_HELP)
    add(
        "--threads",
        "number of CPU threads for computing (default: chosen by the model's size and the "
        "cores; 1 for demo-voice)",
        parsing.POSITIVE,
    )
    add(
        "--dtype DTYPE",
        "number format to compute in: float32 or bfloat16 (default: bfloat16 on a GPU, and on "
        "a CPU for large checkpoints with --backend torch; otherwise float32); on backends torch "
        "and graph one for each model: "
        f"{' or '.join(DTYPES_BY_PART)}",
        DTYPES + DTYPES_BY_PART,
    )
    add("--weights FORM", WEIGHTS_HELP, WEIGHTS)
    add(
        "--keep-packed",
        "keep the weights in the cache as the native CPU decoder reads them, so that the next "
        "start is faster and processes share them",
        bool,
    )
    add(*LOCAL_FILES)
    add_option(parser, OPTIONS["normalize"])
    parsing.adder(parser, READING)(
        "--lexicon FILE",
        "file of pronunciations: lines of a word, a tab and a respelling, or a W3C "
        "pronunciation lexicon",
        parsing.file_name,
    )
    add_verbosity(parser)


def add_mark_options(parser: argparse.ArgumentParser) -> None:
    """Add --mark and the files that marks need; `marking_from_args` reads them."""
    add = parsing.adder(parser, MARKS)
    add(
        "--mark KINDS",
        "what says that speech is synthetic: metadata, watermark, c2pa, with commas between "
        "them; or none (default: metadata, and those whose files are given)",
    )
    add("--mark-key FILE", "key of the watermark: a file of `mark new-key`", parsing.file_name)
    add(
        "--c2pa-cert FILE",
        "certificate that signs whole wav, mp3 and flac files, and those that lead to its root "
        "(PEM)",
        parsing.file_name,
    )
    add("--c2pa-key FILE", "private key of the certificate (PEM)", parsing.file_name)


def marking_from_args(args: argparse.Namespace) -> Marking:
    """Return the marking of `add_mark_options`, if what leaves the command has a place for it."""
    marking = Marking.read(
        args.mark, key=args.mark_key, certificate=args.c2pa_cert, private_key=args.c2pa_key
    )
    if getattr(args, "stdout", False):
        marking.check_format("standard output")
    elif getattr(args, "output", None):
        marking.check_file(Path(args.output))
    return marking


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    add = parsing.adder(parser)
    add("--quiet", "print errors only, no progress", bool)
    add("--debug", "log everything, and show Python tracebacks of errors", bool)


def add_speech_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a voice, and every option of `OFFERED`."""
    add = parsing.adder(parser, VOICE)
    add("--voice", "speaker of the model, name of a file in --voices, or path of a voice file")
    add("--voice-sample FILE", "recording whose voice to clone", parsing.file_name)
    add(
        "--ref-text",
        "exact transcript of --voice-sample: the model then continues the recording, which "
        "copies its manner, too",
    )
    add("--xvector", "clone from --voice-sample without a transcript, by its x-vector alone", bool)
    add_options(parser, OFFERED)


def add_options(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Add options of `SpeechOptions`, and --greedy with those of sampling."""
    for name in names:
        if name == "temperature":
            parsing.adder(parser, SAMPLING)(
                "--greedy", "take the likeliest codes instead of sampling", bool
            )
        add_option(parser, OPTIONS[name])


def add_option(parser: argparse.ArgumentParser, option: Option) -> None:
    """Add one option; None stands for a default that the model decides."""
    default = f" (default: {option.default_words})" if option.default_words else ""
    title = _TITLES.get(option.group or option.name, READING)
    parsing.group(parser, title).add_argument(
        f"--{option.name.replace('_', '-')}",
        type=parsing.temperature if option.name == "temperature" else option.kind,
        default=option.default if option.kind is str else None,
        choices=option.choices or None,
        metavar=option.unit.upper() or None,
        help=option.help + default,
    )


def add_text_options(parser: parsing.Parser) -> None:
    """Add the text: as an argument, as --text, or as the contents of --file."""
    for title in (OUTPUT, VOICE, READING, SAMPLING, SOUND, MARKS, MACHINE):
        parsing.group(parser, title)  # in this order
    add = parsing.adder(parser, OUTPUT)
    action = parsing.TextAction
    add("text", "text to speak; - reads standard input", action)
    add("--text", "the text, for scripts that name every argument", action)
    read = {"dest": "text", "type": parsing.file_text}
    add("-f --file FILE", "file of text to speak, in UTF-8", action, **read)
    like_option = "write --text=TEXT if the text begins with -"
    parser.hints = {
        "required: text": f"- reads standard input, --file FILE a file; {like_option}",
        "argument --text: expected": like_option,
        "-h/--help: ignored": like_option,  # "-hello"
        "--format": "the ending of --output names the format: -o out.mp3",
    }


def add_subtitles_option(parser: argparse.ArgumentParser) -> None:
    parsing.adder(parser, OUTPUT)(
        "--subtitles FILE",
        "file for the times of the speech: .srt or .vtt captions of its sentences, or .json "
        "with the seconds of every word",
        parsing.file_name,
    )


def speech_options(args: argparse.Namespace, tts: "SpeechEngine") -> dict[str, Any]:
    """Return keyword arguments for `TTSEngine.stream` from `add_speech_options`.

    A voice to clone is cloned here, by `tts`, which remembers it for the next call.
    """
    voice: str | Voice | None = args.voice
    if args.voice_sample is not None:
        require_cloning(tts, "--voice-sample")
        text = None if args.xvector else args.ref_text
        voice = tts.create_voice(args.recording, text, name=Path(args.voice_sample).stem)
    return {"voice": voice} | given_options(args)


def given_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return keyword arguments for `stream` from the options that `add_options` has added."""
    options = _values(args)
    if getattr(args, "greedy", False):
        for name in ("temperature", "top_k", "top_p"):  # the penalty changes an argmax, too
            if options[name] is not None:
                logger.warning("--greedy: --%s has no effect.", name.replace("_", "-"))
        options |= {"do_sample": False, "subtalker_do_sample": False}
    if getattr(args, "encoding", "pcm") != "pcm" and args.sample_rate is None:
        options["sample_rate"] = TELEPHONE_RATE
    return options


def _values(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in OFFERED if name in args}


def require_cloning(tts: "SpeechEngine", words: str) -> None:
    """Raise a UsageError with the option or command in `words` if the model cannot clone voices."""
    if not tts.can_clone:
        raise UsageError(
            f"{words} needs a model that clones voices; {tts.files.name} cannot.",
            "It has voices of its own; a Base model speaks with the voice of a recording.",
            f"Use --model {DEFAULT_MODEL} for example.",
        )


def check_speech(args: argparse.Namespace) -> None:
    """Refuse values of `add_speech_options` that can never work, before a model is loaded."""
    from qwen_megakernel.cloning import recordings
    from qwen_megakernel.voice import VOICE_SUFFIX

    check_options(args)
    if args.voice_sample is None and (args.ref_text is not None or args.xvector):
        raise UsageError("--ref-text and --xvector need a --voice-sample; none is given.")
    if args.voice_sample is not None:
        if args.voice is not None:
            raise UsageError("--voice and --voice-sample cannot be combined; give one of them.")
        if args.voice_sample.endswith(VOICE_SUFFIX):
            raise _misplaced("--voice-sample", args.voice_sample, "a voice file", "--voice")
        args.recording = recordings.read(args.voice_sample)  # once: it may be a pipe
    elif args.voice is not None:
        path = Path(args.voice)
        if os.path.isfile(path / TRAINED_VOICE):
            raise _misplaced("--voice", args.voice, "a folder of `train run`", "--adapter")
        if path.suffix.lower() in recordings.SUFFIXES and path.is_file():
            raise _misplaced("--voice", args.voice, "a recording, not a voice", "--voice-sample")


def _misplaced(option: str, value: str, what: str, other: str) -> UsageError:
    return UsageError(f"{option} {value} is {what}.", hint=f"Use {other} {shlex.quote(value)}")


def check_options(args: argparse.Namespace) -> None:
    """Refuse values of `add_options` and --loudness that can never work, before a model loads."""
    SpeechOptions().override(**_values(args))
    if getattr(args, "loudness", None) is not None:
        from qwen_megakernel.sound.loudness import check_loudness

        check_loudness(args.loudness)


def engine_from_args(
    args: argparse.Namespace, mark: Marking | None = None, **options: Any
) -> "SpeechEngine":
    """Make the engine that `add_model_options` describes, and report it on stderr.

    Args:
        mark: the marking; None: it is read.
    """
    if "voice_sample" in args:
        check_speech(args)
    from qwen_megakernel.voice import check_voices

    check_voices(args.voices)
    adapter, *others = args.adapter or [None]
    if others:
        raise UsageError(
            f"--adapter is given {len(args.adapter)} times; an engine holds one merged model.",
            hint="Start a server for each trained voice.",
        )
    from qwen_megakernel.text.reading.languages import ENGLISH, grammar_of
    from qwen_megakernel.text.reading.lexicon import Lexicon

    lexicon = Lexicon.of(args.lexicon)  # refused before a model is loaded
    mark = mark or marking_from_args(args)
    num_slots = options.get("num_slots", 1)
    slots = f", {num_slots} slots" if num_slots > 1 else ""
    if is_small(args):
        grammar_of(ENGLISH)  # demo-voice needs its tables, and a thread is loading PyTorch
    else:
        say(args, f"loading {args.model or 'the default model'}{slots}")
    if "torch" not in sys.modules:
        import_torch(is_command=True, with_compiler=not is_small(args))
    import torch

    from qwen_megakernel import families
    from qwen_megakernel.native import cpu_threads

    log_progress(args, "native.compiling")
    started = time.perf_counter()
    # PyTorch's limit for threads other than the engine's, such as one that reads a recording.
    most = min(cpu_threads.available_cores(), torch.get_num_threads())
    torch.set_num_threads(args.threads or most)
    options |= {name: getattr(args, name) for name in _OF_ENGINES}
    options |= {"adapter": adapter, "num_threads": args.threads, "lexicon": lexicon, "mark": mark}
    engine = families.load_engine(args.model, progress=not args.quiet, **options)
    if "text_format" in args:  # a command that speaks, not a server
        engine.format_option = TEXT_FORMAT
    logger.debug("Loaded in %.2f s.", time.perf_counter() - started)
    if not is_small(args):
        report_engine(args, engine)
    return engine


def model_files(args: argparse.Namespace, model: str | None = None) -> "ModelFiles":
    """Return the files of --model, or of another one; see `loading.resolve`."""
    from qwen_megakernel.checkpoint import loading

    where = {"local_files_only": args.local_files_only, "progress": not args.quiet}
    return loading.resolve(model or args.model, **where)


def is_small(args: argparse.Namespace) -> bool:
    """Return whether the model loads at once, so that its banner alone is worth a line."""
    return args.model == "demo-voice" and args.backend == "auto"


def say(args: argparse.Namespace, line: str) -> None:
    """Print a line to stderr, unless --quiet."""
    if not args.quiet:
        print(line, file=sys.stderr, flush=True)


def report_engine(args: argparse.Namespace, engine: "SpeechEngine") -> None:
    """Say which backend and device the engine has."""
    from qwen_megakernel.native.cpu_threads import available_cores

    facts = f"backend {engine.backend} ({engine.why}), {engine.device}, {engine.dtype_name}"
    if engine.device.type == "cpu":
        facts += f", threads: {engine.num_threads} (cores: {available_cores()})"
    say(args, facts)


def log_progress(args: argparse.Namespace, module: str) -> None:
    """Log the steps of a module of the package, unless --quiet or --debug sets the log level."""
    level = logging.NOTSET if args.quiet or args.debug else logging.INFO
    get_logger(f"qwen_megakernel.{module}").setLevel(level)
