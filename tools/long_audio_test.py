"""Speak texts of growing length and look for decay: python tools/long_audio_test.py --model ...

For each text, the table shows whether the model ended by itself, how long it spoke, how often code
0 repeats, and how far its entropy falls from the first half to the second. A decoder that decays
has repeats above 10 % or a fall above 0.25 bits.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

from benchmarks import common, option_types, page_parts
from qwen_megakernel.cli import options, parsing
from qwen_megakernel.engine import codes_file

MAX_FRAMES = 1000  # 80 s; the longest text takes half of it
SENTENCES = (
    "The morning train was late.",
    "Nobody on the platform seemed to mind, for the sun was warm and there was coffee to be had.",
    "A boy with a large dog asked the guard whether dogs needed tickets of their own, and if so, "
    "whether a dog that slept under the seat the whole way might travel at half the price.",
    "The guard thought about this for a while, because the rules, which he had read more than "
    "once, said a great deal about bicycles, prams and musical instruments, but when it came to "
    "sleeping dogs they were silent. In the end he shook the dog by the paw, wished the two of "
    "them a pleasant journey, and wrote himself a note to look the matter up.",
    "By the time the train came in, the whole platform had an opinion, two strangers had become "
    "friends over it, and the dog, who was the cause of it all, had fallen fast asleep.",
)
TEXTS = {
    name: " ".join(SENTENCES[: index + 1])
    for index, name in enumerate(("short", "medium", "long", "very long", "extra long"))
}


def main(args: argparse.Namespace) -> int:
    """Speak every text; print the table."""
    with options.engine_from_args(args) as tts:
        speech_options = options.speech_options(args, tts)
        rows = [
            examine(name, text, tts.synthesize(text, split="off", **speech_options))
            for name, text in TEXTS.items()
        ]
        figures = common.engine_header(tts) | {"rows": rows}
    print(table(rows))
    common.write_json(args.json, figures)
    if args.plot:
        plot(args.plot, figures)
    return 0


def examine(name: str, text: str, speech: Any) -> dict[str, Any]:
    """Return the figures of one utterance."""
    found = codes_file.describe(speech.codes)
    return {
        "text": name,
        "chars": len(text),
        "steps": found["frames"],
        "finish_reason": speech.finish_reason,
        "seed": speech.seed,
        "duration_s": len(speech.audio) / speech.sample_rate,
        "cb0_repeat": found["repeat_rate"],
        "entropy_drop_bits": found["entropy_drop_bits"],
        "synth_s": speech.timings["total"] / 1000,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows in Markdown."""
    columns = ["Text", "Chars", "Steps", "EOS?", "Duration", "CB0 repeat", "Entropy drop"]
    cells = [
        [
            row["text"],
            row["chars"],
            row["steps"],
            "yes" if row["finish_reason"] == "eos" else f"no ({row['finish_reason']})",
            f"{row['duration_s']:.1f} s",
            f"{100 * row['cb0_repeat']:.1f} %",
            f"{row['entropy_drop_bits']:+.2f} b",
            f"{row['synth_s']:.1f} s",
        ]
        for row in rows
    ]
    return "\n".join(page_parts.table([*columns, "Synth time"], cells))


def plot(path: str, figures: dict[str, Any]) -> None:
    """Draw repeats and the fall of entropy over the steps."""
    pyplot = common.load_pyplot()
    steps = [row["steps"] for row in figures["rows"]]
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3))
    for axis, name in zip(axes, ("cb0_repeat", "entropy_drop_bits"), strict=True):
        axis.plot(steps, [row[name] for row in figures["rows"]], "o")
        axis.set(title=name, xlabel="steps")
    figure.suptitle(f"{figures['model']}, {figures['backend']}")
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    parser = parsing.Parser(description=__doc__)
    options.add_model_options(parser)
    options.add_speech_options(parser)
    parser.set_defaults(max_frames=MAX_FRAMES)
    common.add_result_option(parser)
    parsing.adder(parser)(
        "--plot FILE",
        "file for a picture of repeats and entropy by steps (needs the [plots] extra)",
        option_types.plot_file,
    )
    args = parser.parse_args()
    sys.exit(common.run(main, args))
