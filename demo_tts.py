"""Speak a text to a file: python demo_tts.py "Hello." --output out.wav

The demo writes the file when all speech is made; `demo_pipeline.py` streams.
"""

import argparse
import sys

from qwen_megakernel.cli import options


def main(args: argparse.Namespace) -> int:
    """Synthesize and save the speech; prints a summary to stderr unless --quiet."""
    text = options.read_speech(args.text, args.output)
    with options.engine_from_args(args) as tts:
        speech = tts.synthesize(text, **options.speech_options(args, tts))
        speech.save(args.output)
    if not args.quiet:
        seconds = len(speech.audio) / speech.sample_rate
        total = speech.timings["total"] / 1000
        print(
            f"{args.output}: {seconds:.2f} s of speech in {total:.2f} s "
            f"(RTF {total / seconds:.3f}), {speech.finish_reason}, seed {speech.seed}",
            file=sys.stderr,
        )
        options.warn_of_end(speech.finish_reason, len(speech.codes), seconds, speech.seed)
    return 0


def parse_args() -> argparse.Namespace:
    parser = options.Parser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("text", help="text to speak; - reads standard input")
    add("-o", "--output", default="out.wav", help="audio file to write (default: %(default)s)")
    options.add_model_options(parser)
    options.add_speech_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_args()
    sys.exit(options.run(main, args))
