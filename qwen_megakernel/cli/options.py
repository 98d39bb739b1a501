"""What the commands, the demos and the benchmarks share: options, errors and exit codes."""

import argparse
import contextlib
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from qwen_megakernel.choices import (
    BACKENDS,
    DEFAULT_MODEL,
    DTYPES,
    DTYPES_BY_PART,
    NORMALIZE,
    TELEPHONE_RATE,
    WEIGHTS,
    WEIGHTS_HELP,
)
from qwen_megakernel.errors import MissingPackageError, QwenTTSError, ResourceError, UsageError
from qwen_megakernel.installing import install_command
from qwen_megakernel.signals import GracefulExit

if TYPE_CHECKING:
    from qwen_megakernel.engine.speech_engine import SpeechEngine
    from qwen_megakernel.voice import Voice

KNOBS = ("temperature", "top_k", "top_p", "repetition_penalty")
SOUND = ("speed", "volume", "sample_rate", "leading_silence", "trailing_silence")

DEVICE_HELP = "device to run on: cpu, cuda or cuda:1 (default: a GPU if there is one, else the CPU)"

STANDARD_OUTPUT = "standard output"

logger = logging.getLogger(__name__)

# How a warning about a speech that ended without an end token begins, by finish reason.
_ENDS = {
    "length": "Stopped",
    "silence": "The speech fell silent: stopped",
    "repeat": "The speech repeated itself: stopped",
}


def whole_number(text: str) -> int:
    """Parse a whole number, as an argparse type."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    """Parse a number, as an argparse type."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def at_least(minimum: int) -> Callable[[str], int]:
    """Return an argparse type: whole numbers from `minimum` on."""

    def bounded(text: str) -> int:
        if (value := whole_number(text)) < minimum:
            raise argparse.ArgumentTypeError(f"{value} is less than {minimum}")
        return value

    return bounded


def positive(text: str) -> float:
    """Parse a finite number above zero, as an argparse type."""
    if not 0 < (value := number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def temperature(text: str) -> float:
    """Parse a temperature, by which logits can be divided, as an argparse type."""
    from qwen_megakernel.records import MAX_FACTOR, MIN_FACTOR

    if not MIN_FACTOR <= (value := number(text)) <= MAX_FACTOR:
        raise argparse.ArgumentTypeError(
            f"temperature is {text}; it must be in {MIN_FACTOR:g} .. {MAX_FACTOR:g}. "
            "For greedy decoding use --greedy."
        )
    return value


class Parser(argparse.ArgumentParser):
    """A parser whose errors take two lines and suggest the nearest option for an unknown one."""

    def __init__(self, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        # argparse's own errors of `type=int` and `type=float` would name the Python type.
        self.register("type", int, whole_number)
        self.register("type", float, number)

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with 2; argparse would print the usage of all options before."""
        self.exit(2, f"{self.prog}: error: {message}\n{self.prog} --help explains all options.\n")

    # argparse's stub has overloads, one for each type of `namespace`.
    def parse_known_args(  # type: ignore[override]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            names = (word.partition("=")[0] for word in unknown if word.startswith("-"))
            close = [get_close_matches(name, self._option_string_actions, n=1) for name in names]
            meant = ", ".join(dict.fromkeys(name for match in close for name in match))
            hint = f"; did you mean {meant}?" if meant else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return known, unknown


def new_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str
) -> Any:
    """Add a command, `run` with its docstring as description, to the subparsers `commands`."""
    command = commands.add_parser(name, help=summary, description=run.__doc__)
    command.set_defaults(run=run)
    return command


def plot_file(text: str) -> str:
    """Refuse a plot's file where matplotlib is missing, before anything is measured (argparse)."""
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError(f"drawing needs matplotlib: {install_command('plots')}")
    return text


def add_model_options(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the options that describe an engine, and those of verbosity."""
    add = parser.add_argument
    add(
        "--model",
        default=default,
        help="model to speak with: hub id, folder, demo-voice, or random weights: tiny-random, "
        f"tiny-random-base, ... (default: {default or DEFAULT_MODEL})",
    )
    add("--voices", metavar="DIR", help="folder of voice files to find by name")
    add(
        "--backend",
        default="auto",
        choices=BACKENDS,
        help="decoder: kernel (CUDA), graph (CUDA graphs), cpu (native code), torch (PyTorch), "
        "emulation (the kernel on a CPU, slow), coreml (Apple) (default: auto, the kernel on a GPU "
        "that can run it, native code on a CPU)",
    )
    add("--device", help=DEVICE_HELP)
    add(
        "--threads",
        type=at_least(1),
        help="threads that compute on the CPU (default: by the model's size and the cores; "
        "1 for demo-voice)",
    )
    add(
        "--dtype",
        choices=DTYPES + DTYPES_BY_PART,
        metavar="DTYPE",
        help="number format to compute in: float32 or bfloat16 (default: bfloat16 on a GPU, "
        "float32 on a CPU); on backends torch and graph one for each model: "
        f"{' or '.join(DTYPES_BY_PART)}",
    )
    add("--weights", choices=WEIGHTS, metavar="FORM", help=WEIGHTS_HELP)
    add("--local-files-only", action="store_true", help="download nothing")
    add(
        "--normalize",
        default="auto",
        choices=NORMALIZE,
        help="read numbers, dates, abbreviations and Markdown as words (default: what the model "
        "needs: on for demo-voice, off for Qwen's)",
    )
    add(
        "--lexicon",
        metavar="FILE",
        help="how words are said: rows of word<TAB>respelling, or a W3C pronunciation lexicon",
    )
    add_verbosity(parser)


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Add --quiet and --debug."""
    add = parser.add_argument
    add("--quiet", action="store_true", help="print errors alone, no progress")
    add("--debug", action="store_true", help="log everything, show tracebacks")


def add_speech_options(parser: argparse.ArgumentParser) -> None:
    """Add voice, language, instruction, text feed, and the options of sampling."""
    add = parser.add_argument
    add("--voice", help="speaker of the model, name of a file in --voices, or path of a voice file")
    add("--voice-sample", metavar="FILE", help="recording whose voice to clone")
    add("--ref-text", help="exact transcript of --voice-sample, to clone in context")
    add("--xvector", action="store_true", help="clone without the transcript")
    add("--language", default="auto", help='language to speak: a name, a code like "en", or auto')
    add("--instruct", help="how to speak, in words, for models that follow it")
    add(
        "--text-feed",
        default="auto",
        choices=("auto", "stepwise", "full"),
        help='how the model reads the text: "stepwise" a token for each frame (speech can start '
        'before the text is complete), "full" all of it before speaking (default: auto, as the '
        "official package does for this model)",
    )
    add_sampling_options(parser)
    add_sound_options(parser)


def add_subtitles_option(parser: argparse.ArgumentParser) -> None:
    """--subtitles."""
    parser.add_argument(
        "--subtitles",
        metavar="FILE",
        help="write when each sentence is heard: .srt or .vtt captions, or .json with every word",
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add --seed, --max-frames and the sampling options that every family of models has."""
    add = parser.add_argument
    add("--seed", type=int, help="number that makes speech repeatable (default: drawn, printed)")
    add(
        "--max-frames",
        type=int,
        help="stop after so many frames; a frame is 80 ms of audio (85 ms with a voice of `sheen "
        "train`), so 125 are 10 s (default: no limit but that of each part of the text)",
    )
    add("--greedy", action="store_true", help="take the likeliest codes instead of sampling")
    knobs: tuple[tuple[str, Callable[[str], float], str], ...] = (
        ("temperature", temperature, "divisor of the logits: below 1 less varied"),
        ("top-k", int, "number of likeliest codes to draw from; 0: all"),
        ("top-p", float, "share of the probability to draw from; 1: all"),
        ("repetition-penalty", float, "factor against codes drawn before; 1: none"),
    )
    for name, kind, meaning in knobs:
        add(f"--{name}", type=kind, help=f"{meaning} (default: the checkpoint's own)")


def add_sound_options(parser: argparse.ArgumentParser) -> None:
    """The options of `SOUND`, which every family of models has."""
    parser.add_argument(
        "--speed", type=float, help="0.25 to 4, at the same pitch: 2 takes half the time"
    )
    parser.add_argument(
        "--volume", type=float, metavar="DB", help="-60 to 20 dB; what is made louder does not clip"
    )
    parser.add_argument(
        "--sample-rate",
        type=int,
        metavar="HZ",
        help="8000 to 48000 samples per second (default: the model's, 24000)",
    )
    for name, where in (("leading", "before the first sound"), ("trailing", "after the last one")):
        parser.add_argument(
            f"--{name}-silence",
            type=float,
            metavar="MS",
            help=f"at most so many ms of silence {where} (default: the model's)",
        )


def add_loudness_option(parser: argparse.ArgumentParser) -> None:
    """--loudness, for programs that write whole speeches."""
    parser.add_argument(
        "--loudness", type=float, metavar="LUFS", help="of the whole file, -40 to -5 (-16 is usual)"
    )


def speech_options(args: argparse.Namespace, tts: "SpeechEngine") -> dict[str, Any]:
    """Return keyword arguments for `TTSEngine.stream` from `add_speech_options`.

    A voice to clone is cloned here, by `tts`, which remembers it for the next call.
    """
    names = ("language", "instruct", "text_feed")
    options = {name: getattr(args, name) for name in names} | {"voice": _voice(args, tts)}
    return options | sampling_options(args) | sound_options(args)


def sampling_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return keyword arguments for `stream` from `add_sampling_options`."""
    options = {name: getattr(args, name) for name in ("seed", "max_frames", *KNOBS)}
    if args.greedy:
        for name in ("temperature", "top_k", "top_p"):  # the penalty changes an argmax, too
            if options[name] is not None:
                logger.warning("--greedy: --%s has no effect.", name.replace("_", "-"))
        options |= {"do_sample": False, "subtalker_do_sample": False}
    return options


def sound_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments for `stream` from `add_sound_options`."""
    options = {name: getattr(args, name) for name in SOUND}
    if getattr(args, "encoding", "pcm") != "pcm" and args.sample_rate is None:
        options["sample_rate"] = TELEPHONE_RATE
    return options


def _voice(args: argparse.Namespace, tts: "SpeechEngine") -> "str | Voice | None":
    if args.voice_sample is None:
        return args.voice
    require_cloning(tts, "--voice-sample")
    return tts.create_voice(args.voice_sample, None if args.xvector else args.ref_text)


def require_cloning(tts: "SpeechEngine", words: str) -> None:
    """Refuse to clone with a model that cannot.

    Args:
        words: the option or command that asks for it.
    Raises:
        UsageError: the model has no speaker encoder.
    """
    if not tts.can_clone:
        raise UsageError(
            f"{words} needs a model that clones voices; {tts.files.name} cannot.",
            "It has voices of its own; a Base model speaks with the voice of a recording.",
            f"Use --model {DEFAULT_MODEL} for example.",
        )


def check_speech(args: argparse.Namespace) -> None:
    """Refuse values of `add_speech_options` that can never work, before a model is loaded.

    Raises:
        UsageError: names the options, or the value and what it must be.
    """
    from qwen_megakernel.cloning import recordings

    check_sampling(args)
    if args.voice_sample is None and (args.ref_text is not None or args.xvector):
        raise UsageError("--ref-text and --xvector need a --voice-sample; none is given.")
    if args.voice is None:
        return
    if args.voice_sample is not None:
        raise UsageError("--voice and --voice-sample exclude each other.")
    path = Path(args.voice)
    if path.suffix.lower() in recordings.SUFFIXES and path.is_file():
        raise UsageError(
            f"--voice {path} is a recording, not a voice.", hint=f"Use --voice-sample {path}"
        )


def check_sampling(args: argparse.Namespace) -> None:
    """Refuse values of `add_sampling_options` and `add_sound_options` that can never work, before a
    model is loaded.

    Raises:
        UsageError: names the value and what it must be.
    """
    from qwen_megakernel.records import Sampling, SoundOptions, SpeechRequest
    from qwen_megakernel.sound.loudness import check_loudness

    SoundOptions().override(**sound_options(args))
    if getattr(args, "loudness", None) is not None:
        check_loudness(args.loudness)
    sampling = Sampling().override(**{name: getattr(args, name) for name in KNOBS})
    SpeechRequest("", sampling=sampling, seed=args.seed or 0, max_frames=args.max_frames)


def engine_from_args(args: argparse.Namespace, **options: Any) -> "SpeechEngine":
    """Make the engine that `add_model_options` describes, and report it on stderr."""
    if "voice_sample" in args:
        check_speech(args)
    from qwen_megakernel.text.reading.lexicon import Lexicon

    lexicon = Lexicon.of(args.lexicon)  # refused before a model is loaded
    num_slots = options.get("num_slots", 1)
    slots = f", {num_slots} slots" if num_slots > 1 else ""
    report_loading(args, f"{args.model or 'the default model'}{slots}")
    import torch

    from qwen_megakernel import families
    from qwen_megakernel.native import cpu_threads

    report_compiling(args)
    # PyTorch's limit for threads beside the engine's own, which read recordings, for example.
    most = min(cpu_threads.available_cores(), torch.get_num_threads())
    torch.set_num_threads(args.threads or most)
    engine = families.load_engine(
        args.model,
        backend=args.backend,
        device=args.device,
        dtype=args.dtype,
        weights=args.weights,
        num_threads=args.threads,
        local_files_only=args.local_files_only,
        voices=args.voices,
        normalize=args.normalize,
        lexicon=lexicon,
        progress=not args.quiet,
        **options,
    )
    report_engine(args, engine)
    return engine


def report_loading(args: argparse.Namespace, what: str) -> None:
    """Print to stderr what is being loaded, unless --quiet.

    Importing PyTorch alone takes seconds, beside busy programs ten of them, which nothing else
    explains to the user.
    """
    if not args.quiet:
        print(f"loading {what}", file=sys.stderr, flush=True)


def report_engine(args: argparse.Namespace, engine: "SpeechEngine") -> None:
    """Print to stderr what an engine runs on, unless --quiet."""
    if not args.quiet:
        from qwen_megakernel.native.cpu_threads import available_cores

        facts = f"backend {engine.backend} ({engine.why}), {engine.device}, {engine.dtype_name}"
        if engine.device.type == "cpu":
            facts += f", threads: {engine.num_threads} (cores: {available_cores()})"
        print(facts, file=sys.stderr)


def report_compiling(args: argparse.Namespace) -> None:
    """Log what is compiled and how long it takes, unless --quiet or --debug sets the level."""
    from qwen_megakernel.native import compiling

    level = logging.NOTSET if args.quiet or args.debug else logging.INFO
    logging.getLogger(compiling.__name__).setLevel(level)


def read_text(text: str) -> str:
    """Return the text itself, or standard input for "-"."""
    if text != "-":
        return text
    if sys.stdin is None:
        raise UsageError("There is no standard input to read the text from.")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"Standard input is not {error.encoding} text: {error.reason}.") from error


def read_speech(
    text: str,
    output: str | None,
    dump_codes: str | None = None,
    subtitles: str | None = None,
    encoding: str = "pcm",
    sample_rate: int | None = None,
) -> str:
    """Return the cleaned text to speak; checks it and the outputs before a model is loaded.

    Args:
        text: the text, or "-" for standard input.
        output: the audio file to be written; None: no file.
        dump_codes: the file of codes to be written; None: none.
        subtitles: the file of the words' times to be written; None: none.
        encoding: encoding of the audio file.
        sample_rate: samples per second of the audio file; None: the model's.
    Raises:
        UsageError: the text is empty or too long, a format of audio or subtitles is unknown, or
            it has not the sample rate.
        OutputError: a file cannot be written.
    """
    from qwen_megakernel import audio
    from qwen_megakernel.engine import codes_file
    from qwen_megakernel.text.cleaning import validate
    from qwen_megakernel.timing.subtitles import check_path as check_subtitles

    if output is not None:
        audio.check_path(output, encoding, sample_rate)
    if dump_codes is not None:
        codes_file.check_path(Path(dump_codes))
    if subtitles is not None:
        check_subtitles(Path(subtitles))
    return validate(read_text(text))


def warn_of_end(finish_reason: str | None, num_frames: int, seconds: float, seed: int) -> None:
    """Warn that a speech ended without an end token; what was spoken until then is kept."""
    how = _ENDS.get(finish_reason or "")
    if how:
        logger.warning(
            "%s at %d frame%s (%.1f s) without an end token (seed %d).",
            *(how, num_frames, "" if num_frames == 1 else "s", seconds, seed),
        )


def write_output(data: bytes) -> None:
    """Write all of `data` to standard output, at once.

    Raises:
        OSError: the write failed; `filename` names standard output, which `run` reports.
    """
    left = memoryview(data)
    try:
        while left:  # without a buffer (PYTHONUNBUFFERED) a write may take only a part
            left = left[sys.stdout.buffer.write(left) :]
        sys.stdout.buffer.flush()
    except OSError as error:
        error.filename = STANDARD_OUTPUT
        raise


@contextlib.contextmanager
def needed(*extras: str, by: str, also: Sequence[str] = ()) -> Iterator[None]:
    """Exit with the packages to install if the block cannot import one.

    Args:
        extras: this package's extras that bring the packages that the block imports.
        by: the script's name.
        also: requirements of other packages.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        command = install_command(*extras, also=also)
        print(f"error: {by} needs {error.name}.\n{command}", file=sys.stderr)
        sys.exit(MissingPackageError.exit_code)


def wait_passively() -> None:
    """Let PyTorch's threads sleep while they wait for each other, unless the user set a policy.

    By default they wait in a loop that keeps their cores busy: if another program has the core of
    the thread they wait for, all of them wait until that program gives it up. OpenMP reads the
    variable when it is loaded, so a command must call this before it imports torch.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def run(main: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command; turn its errors into a message and an exit code.

    Returns:
        `main`'s exit code, an error's (2 usage, 3 environment, 4 model files, 5 resources, such as
        a disk that is full, 6 generation), or 128 and the signal's number after Ctrl-C (130),
        SIGTERM (143) or SIGHUP (129).
    """
    level = logging.DEBUG if args.debug else logging.ERROR if args.quiet else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    wait_passively()
    end = GracefulExit()
    try:
        with end:
            # Before torch, which would import it from C++ and swallow a Ctrl-C there.
            import numpy  # noqa: F401

            code = main(args)
            if sys.stdout:  # None where the caller closed it
                sys.stdout.flush()  # here, where an error can still be reported
            return code
    except QwenTTSError as error:
        if args.debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return end.exit_code
    except OSError as error:  # a full disk, a folder without permission to write
        is_output = _has_output_failed() or error.filename == STANDARD_OUTPUT
        if is_output and isinstance(error, BrokenPipeError):
            return 0  # the program that read it has ended (`... | head`)
        if args.debug:
            raise
        where = error.filename or (STANDARD_OUTPUT if is_output else None)
        what = error.strerror or error
        print(f"error: {where}: {what}." if where else f"error: {what}.", file=sys.stderr)
        return ResourceError.exit_code


def _has_output_failed() -> bool:
    """Return whether standard output fails; drops what it has not taken, which Python would report
    at exit."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
