"""Options that the commands, the demos and the benchmarks share, and the engine they describe."""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_megakernel.choices import (
    BACKENDS,
    DEFAULT_MODEL,
    DTYPES,
    DTYPES_BY_PART,
    NORMALIZE,
    TELEPHONE_RATE,
    TEXT_FORMATS,
    WEIGHTS,
    WEIGHTS_HELP,
)
from qwen_megakernel.cli import parsing
from qwen_megakernel.errors import UsageError
from qwen_megakernel.printable import get_logger

if TYPE_CHECKING:
    from qwen_megakernel.engine.speech_engine import SpeechEngine
    from qwen_megakernel.voice import Voice

KNOBS = ("temperature", "top_k", "top_p", "repetition_penalty")
SOUND = ("speed", "volume", "sample_rate", "leading_silence", "trailing_silence")

DEVICE_HELP = "device to run on: cpu, cuda or cuda:1 (default: a GPU if there is one, else the CPU)"

logger = get_logger(__name__)


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
        help="backend that computes the codec codes: kernel (CUDA), graph (CUDA graphs), cpu "
        "(native code), torch (PyTorch), emulation (the kernel on a CPU, slow), coreml (Apple) "
        "(default: auto, the kernel on a GPU that can run it, native code on a CPU)",
    )
    add("--device", help=DEVICE_HELP)
    add(
        "--threads",
        type=parsing.at_least(1),
        help="number of CPU threads for computing (default: chosen by the model's size and the "
        "cores; 1 for demo-voice)",
    )
    add(
        "--dtype",
        choices=DTYPES + DTYPES_BY_PART,
        metavar="DTYPE",
        help="number format to compute in: float32 or bfloat16 (default: bfloat16 on a GPU, and on "
        "a CPU for large checkpoints with --backend torch; otherwise float32); on backends torch "
        "and graph one for each model: "
        f"{' or '.join(DTYPES_BY_PART)}",
    )
    add("--weights", choices=WEIGHTS, metavar="FORM", help=WEIGHTS_HELP)
    add_local_files_option(parser)
    add(
        "--normalize",
        default="auto",
        choices=NORMALIZE,
        help="whether to read numbers, dates, abbreviations and Markdown as words (default: auto, "
        "which is on for demo-voice and off for Qwen's models)",
    )
    add(
        "--lexicon",
        metavar="FILE",
        help="file of pronunciations: lines of a word, a tab and a respelling, or a W3C "
        "pronunciation lexicon",
    )
    add_verbosity(parser)


def add_local_files_option(parser: argparse.ArgumentParser) -> None:
    """Add --local-files-only."""
    parser.add_argument(
        "--local-files-only",
        action="store_true",
        help="use only files that are on this machine; download nothing",
    )


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Add --quiet and --debug."""
    add = parser.add_argument
    add("--quiet", action="store_true", help="print errors only, no progress")
    add("--debug", action="store_true", help="log everything, and show Python tracebacks of errors")


def add_speech_options(parser: argparse.ArgumentParser) -> None:
    """Add voice, language, instruction, text feed, and the options of sampling."""
    add = parser.add_argument
    add("--voice", help="speaker of the model, name of a file in --voices, or path of a voice file")
    add("--voice-sample", metavar="FILE", help="recording whose voice to clone")
    add(
        "--ref-text",
        help="exact transcript of --voice-sample: the model then continues the recording, which "
        "copies its manner, too",
    )
    add(
        "--xvector",
        action="store_true",
        help="clone from --voice-sample without a transcript, by its x-vector alone",
    )
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
    add_text_format_option(parser)
    add_sampling_options(parser)
    add_sound_options(parser)


def add_text_format_option(parser: argparse.ArgumentParser) -> None:
    """Add --text-format."""
    parser.add_argument(
        "--text-format",
        default="plain",
        choices=TEXT_FORMATS,
        help="format of the text: plain, ssml (markup), or pauses (plain text with [pause 1.5s] "
        "in it) (default: plain)",
    )


def add_subtitles_option(parser: argparse.ArgumentParser) -> None:
    """Add --subtitles."""
    parser.add_argument(
        "--subtitles",
        metavar="FILE",
        help="file for the times of the speech: .srt or .vtt captions of its sentences, or .json "
        "with the seconds of every word",
    )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add --seed, --max-frames and the sampling options that every family of models has."""
    add = parser.add_argument
    add("--seed", type=int, help="number that makes speech repeatable (default: random, printed)")
    add(
        "--max-frames",
        type=int,
        help="number of frames after which to stop; a frame is 80 ms of audio (85 ms with a "
        "voice of `sheen train`), so 125 are 10 s (default: no limit but that of each part of "
        "the text)",
    )
    add("--greedy", action="store_true", help="take the likeliest codes instead of sampling")
    knobs: tuple[tuple[str, Callable[[str], float], str], ...] = (
        ("temperature", parsing.temperature, "how varied the codes are: it divides the logits"),
        ("top-k", int, "how many of the likeliest codes to draw from; 0: all"),
        ("top-p", float, "draw only from the likeliest codes, of this total probability; 1: all"),
        ("repetition-penalty", float, "factor that makes codes drawn before less likely; 1: none"),
    )
    for name, kind, meaning in knobs:
        add(f"--{name}", type=kind, help=f"{meaning} (default: the checkpoint's own)")


def add_sound_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `SOUND`, which every family of models has."""
    parser.add_argument(
        "--speed",
        type=float,
        help="how fast to speak, 0.25 to 4, at the same pitch: 2 takes half the time (default: 1)",
    )
    parser.add_argument(
        "--volume",
        type=float,
        metavar="DB",
        help="change of volume in dB, -60 to 20; a limiter prevents clipping (default: 0)",
    )
    parser.add_argument(
        "--sample-rate",
        type=int,
        metavar="HZ",
        help="samples per second of the audio, 8000 to 48000 (default: the model's, 24000)",
    )
    for name, where in (
        ("leading", "before the first sound"),
        ("trailing", "after the last sound"),
    ):
        parser.add_argument(
            f"--{name}-silence",
            type=float,
            metavar="MS",
            help=f"longest silence {where}, in ms; more is cut off (default: the model's own)",
        )


def add_loudness_option(parser: argparse.ArgumentParser) -> None:
    """Add --loudness, for programs that write whole speeches."""
    parser.add_argument(
        "--loudness",
        type=float,
        metavar="LUFS",
        help="loudness of the whole file, -40 to -5 LUFS; podcasts have about -16 "
        "(default: as the model speaks)",
    )


def speech_options(args: argparse.Namespace, tts: "SpeechEngine") -> dict[str, Any]:
    """Return keyword arguments for `TTSEngine.stream` from `add_speech_options`.

    A voice to clone is cloned here, by `tts`, which remembers it for the next call.
    """
    names = ("language", "instruct", "text_feed", "text_format")
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
    """Return keyword arguments for `stream` from `add_sound_options`."""
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
    """Raise an error if the model cannot clone voices.

    Args:
        words: the option or command that needs it.
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
        raise UsageError("--voice and --voice-sample cannot be combined; give one of them.")
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
    # PyTorch's limit for threads other than the engine's, such as one that reads a recording.
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
    """Print to stderr that a model is being loaded, unless --quiet.

    Importing PyTorch alone takes seconds, or ten of them next to busy programs; without this line
    the user would not know what the command is waiting for.
    """
    if not args.quiet:
        print(f"loading {what}", file=sys.stderr, flush=True)


def report_engine(args: argparse.Namespace, engine: "SpeechEngine") -> None:
    """Print the engine's backend and device to stderr, unless --quiet."""
    if not args.quiet:
        from qwen_megakernel.native.cpu_threads import available_cores

        facts = f"backend {engine.backend} ({engine.why}), {engine.device}, {engine.dtype_name}"
        if engine.device.type == "cpu":
            facts += f", threads: {engine.num_threads} (cores: {available_cores()})"
        print(facts, file=sys.stderr)


def report_compiling(args: argparse.Namespace) -> None:
    """Log compilations and their durations, unless --quiet or --debug sets the log level."""
    from qwen_megakernel.native import compiling

    level = logging.NOTSET if args.quiet or args.debug else logging.INFO
    logging.getLogger(compiling.__name__).setLevel(level)
