"""Say one sentence and write it to a file: python demo_tts.py "Hello." --output out.wav

It synthesizes the whole speech before it writes the file; `demo_pipeline.py` streams.
"""

import argparse
import sys

from qwen_megakernel.cli import options, parsing, running
from qwen_megakernel.speech_options import LOUDNESS


def main(args: argparse.Namespace) -> int:
    """Synthesize and save the speech; print a summary to stderr, unless --quiet is given."""
    text = running.read_speech(
        args.text,
        args.output,
        subtitles=args.subtitles,
        sample_rate=args.sample_rate,
        text_format=args.text_format,
    )
    with options.engine_from_args(args) as tts:
        how = options.speech_options(args, tts)
        speech = tts.synthesize(text, loudness=args.loudness, **how)
        speech.save(args.output)
        if args.subtitles:
            speech.save_subtitles(args.subtitles)
    if not args.quiet:
        seconds = len(speech.audio) / speech.sample_rate
        total = speech.timings["total"] / 1000
        print(
            f"{args.output}: {seconds:.2f} s of speech in {total:.2f} s "
            f"(RTF {total / seconds:.3f}), {speech.finish_reason}, seed {speech.seed}",
            file=sys.stderr,
        )
        running.warn_of_end(speech, tts.seconds_per_frame)
    return 0


def parse_args() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = parsing.Parser(description=__doc__)
    options.add_text_options(parser)
    add = parsing.adder(parser)
    add("-o --output", "wav, flac, ogg or mp3 file to write", parsing.file_name, "out.wav")
    options.add_subtitles_option(parser)
    options.add_model_options(parser)
    options.add_speech_options(parser)
    options.add_option(parser, LOUDNESS)
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    sys.exit(running.run(main, args))
