"""The command `speak`, and how it and `sheen infer` write speech."""

import argparse
import io
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qwen_megakernel.choices import ENCODINGS
from qwen_megakernel.cli import batch, options, parsing, running
from qwen_megakernel.errors import UsageError
from qwen_megakernel.printable import get_logger
from qwen_megakernel.speech_options import LOUDNESS

logger = get_logger(__name__)

if TYPE_CHECKING:
    from tqdm import tqdm

    from qwen_megakernel.engine.speech_engine import SpeechEngine
    from qwen_megakernel.engine.stream import SpeechStream
    from qwen_megakernel.records import AudioChunk

DEFAULT_OUTPUT = "out.wav"
SECONDS_BETWEEN_LINES = 5
LONG_CHARS = 200_000  # numbers become words in more than a second, before the first sound


def add_output_options(parser: argparse.ArgumentParser) -> None:
    add = parsing.adder(parser, options.OUTPUT)
    add(
        "-o --output FILE",
        "wav, flac, ogg or mp3 file to write (default: out.wav)",
        parsing.file_name,
    )
    add(
        "--encoding",
        "samples of a wav file: pcm (16 bits), or ulaw or alaw (the telephone's 8 bits at 8000 Hz)",
        ENCODINGS,
        "pcm",
    )
    options.add_option(parser, LOUDNESS)
    add("--stream", "print a line to stderr when each chunk is made", bool)
    add("--stdout", "write raw 16-bit samples to standard output", bool)
    add("--play", "play the speech on the loudspeaker, too", bool)
    options.add_subtitles_option(parser)
    add("--dump-codes FILE", "TSV file to write the codes to, a row per frame", parsing.file_name)


def read_text(args: argparse.Namespace) -> str:
    """Return the text to speak; checks it and the output before a model is loaded."""
    from qwen_megakernel.sound.loudspeaker import check_loudspeaker

    if args.stdout and sys.stdout is None:
        raise UsageError("There is no standard output to write samples to.", hint="Use --output.")
    if args.stdout and sys.stdout.isatty():
        raise UsageError(
            "--stdout would fill the terminal with samples.",
            hint=f"Play them with a pipe: ... --stdout | {_player(args.sample_rate)}",
        )
    if args.stdout and args.output:
        raise UsageError("--stdout and --output cannot be combined; give one of them.")
    if args.output == "-":
        raise UsageError(
            "--output - is not a file.", hint="Write to standard output with --stdout."
        )
    if (args.stdout or args.play) and args.loudness is not None:
        option, heard = ("--stdout", "written") if args.stdout else ("--play", "played")
        raise UsageError(
            f"{option} and --loudness cannot be combined.",
            f"Samples are {heard} before the loudness of the whole speech is known.",
            "Write to a file with --output, or use --volume, in dB.",
        )
    if args.play:
        check_loudspeaker()
    if args.stdout and args.encoding != "pcm":
        raise UsageError(
            f"--stdout and --encoding {args.encoding} cannot be combined; "
            "standard output gets 16-bit samples."
        )
    output = None if args.stdout else args.output or DEFAULT_OUTPUT
    files = output, args.dump_codes, args.subtitles, args.encoding
    is_from_file = args.text == "-" or isinstance(args.text, parsing.FileText)
    text = running.read_speech(
        *(args.text, *files, args.sample_rate, args.text_format),
        max_chars=sys.maxsize if is_from_file else None,
    )
    if len(text) > LONG_CHARS:
        options.say(args, f"reading {len(text):,} characters".replace(",", " "))
    return text


def write_speech(
    args: argparse.Namespace, tts: "SpeechEngine", stream: "SpeechStream", text: str
) -> None:
    """Write a stream to the outputs in `args`; the length of `text` scales the progress bar."""
    import numpy as np

    from qwen_megakernel import audio
    from qwen_megakernel.engine import codes_file
    from qwen_megakernel.sound.loudness import at_loudness
    from qwen_megakernel.sound.loudspeaker import played
    from qwen_megakernel.timing import subtitles

    output, seconds = args.output or DEFAULT_OUTPUT, 0.0
    chunks = played(stream, stream.sample_rate) if args.play else stream
    writer = None
    if not args.stdout:
        writer = audio.WavWriter(output, stream.sample_rate, args.encoding, tts.mark)
    whole: list[np.ndarray] = []  # samples whose loudness will be changed
    try:
        with writer or nullcontext(), _progress_bar(args, text) as bar:
            for chunk in chunks:
                if writer is None:
                    running.write_output(chunk.pcm16)
                elif args.loudness is None:
                    writer.write(chunk.samples)
                else:
                    whole.append(chunk.samples)
                bar.update(chunk.num_frames * tts.seconds_per_frame)
                _print_chunk(args, chunk)
                seconds = chunk.end_s
            if writer and whole:
                samples = audio.to_float32(np.concatenate(whole))
                samples = at_loudness(samples, stream.sample_rate, args.loudness)
                writer.write(audio.to_int16(samples))
    except KeyboardInterrupt:
        if writer and seconds and not whole:
            options.say(args, f"{writer.path} has the first {seconds:.2f} s")
        raise
    if writer and not seconds:
        raise UsageError(f"There is no audio to write to {output}: all of it is silence.")
    if args.subtitles:
        subtitles.write(Path(args.subtitles), stream.times.words, stream.times.segments)
    if args.dump_codes:
        codes_file.write(Path(args.dump_codes), stream.codes)
    logger.debug("%s", ", ".join(f"{n} {ms:.1f} ms" for n, ms in stream.timings.items()))
    if not args.quiet:
        target = "standard output" if args.stdout else output
        hint = f"; to hear it: {_player(stream.sample_rate)}" if args.stdout else ""
        print(
            f"{target}: {seconds:.2f} s, {stream.finish_reason}, seed {stream.seed}{hint}",
            file=sys.stderr,
        )
        running.warn_of_end(stream, tts.seconds_per_frame)


def speak(args: argparse.Namespace) -> int:
    """Speak a text: to a file, or as raw samples to standard output; or many texts to files."""
    if isinstance(args.text, batch.Lines):
        return batch.run(args)
    if args.output_dir is not None:
        raise UsageError("--output-dir needs --batch.")
    text = read_text(args)
    # One text of a small model is spoken before a warm-up would end.
    with options.engine_from_args(args, warmup=not options.is_small(args)) as tts:
        tts.max_chars = sys.maxsize  # `read_text` has checked the length
        write_speech(args, tts, tts.stream(text, **options.speech_options(args, tts)), text)
    return 0


def add_commands(commands: Any) -> None:
    command = parsing.new_command(commands, "speak", speak, "speak a text")
    options.add_text_options(command)
    add_output_options(command)
    batch.add_options(command)
    options.add_speech_options(command)
    options.add_model_options(command)
    command.epilog = (
        'Example: qwen-megakernel speak "Hello." --model demo-voice --speed 1.2 -o hello.mp3'
    )


def _print_chunk(args: argparse.Namespace, chunk: "AudioChunk") -> None:
    if args.stream and chunk.pause_s:
        print(f"{chunk.t_ms:8.1f} ms  pause of {chunk.pause_s:g} s", file=sys.stderr)
    elif args.stream and chunk.num_frames:
        last = chunk.frame_index + chunk.num_frames - 1
        print(f"{chunk.t_ms:8.1f} ms  frames {chunk.frame_index}..{last}", file=sys.stderr)


def _player(rate: int | None) -> str:
    return f"aplay -t raw -f S16_LE -r {rate or 24000}"


class _Lines(io.TextIOBase):
    """Standard error for a progress bar where it is no terminal: each state is a line."""

    def write(self, text: str) -> int:
        if line := text.strip():
            print(line, file=sys.stderr, flush=True)
        return len(text)


def _progress_bar(args: argparse.Namespace, text: str) -> "tqdm":
    """Return a bar of the seconds of speech made; its end is estimated from the text's length.

    Where standard error is no terminal, there is a line every few seconds instead.
    """
    from tqdm import tqdm

    from qwen_megakernel.text.cleaning import CHARS_PER_SECOND

    is_shown = sys.stderr.isatty()
    words = "{n:.1f} s of speech in {elapsed}"
    return tqdm(
        total=max(1.0, len(text) / CHARS_PER_SECOND),
        disable=args.quiet or args.stream or args.stdout,
        file=None if is_shown else _Lines(),
        delay=0 if is_shown else SECONDS_BETWEEN_LINES,
        mininterval=0.1 if is_shown else SECONDS_BETWEEN_LINES,
        bar_format=f"{{desc}}{{bar}} {words}" if is_shown else f"... {words}",
        leave=False,
    )
