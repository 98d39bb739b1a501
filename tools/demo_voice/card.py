"""The model card of the shipped voice, its figures from the committed result file.

python -m tools.demo_voice.card            write it
python -m tools.demo_voice.card --check    exit 1 if that would change it
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from qwen_megakernel.checkpoint.loading import DEMO_VOICE, DEMO_VOICE_FOLDER
from tools.demo_voice.evaluate import AS_REFERENCE, FEEDS, LENGTH_TOLERANCE

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "demo_voice.json"
CARD = DEMO_VOICE_FOLDER / "MODEL_CARD.md"

KINDS = {
    "written": "written by hand",
    "template": "drawn from the training grammar",
    "all": "both",
}
HEAD = """\
# {name}

A small text-to-speech checkpoint of this project in the Qwen3-TTS-12Hz architecture and file
layout, so that the first demo speaks without a download. It is a demonstration, not a good voice,
and holds no weight of Qwen's. How it is made: `tools/demo_voice/README.md`.

| | |
|---|---|
| says | everyday English in one flat voice (100 Hz, monotone) |
| size | {talker:.1f} M + {vocoder:.1f} M parameters (talker bf16, vocoder fp16), {size:.1f} MB |
| frame | 8 codebooks of 256 codes, 80 ms, 24 kHz |
| ask for | nothing, or `voice="demo"`, `language="english"` |
| cannot | clone voices: the codec encoder is left out; follow an instruction: it is ignored |
| trained on | speech of espeak-ng 1.51, one voice; nothing recorded from people |
| licence | Apache-2.0, as the project |

## Figures

From `benchmarks/results/{result}` (commit {commit}). The sentences were not
trained on. A word is right if most of its frames were drawn close to the reference's: that is
strict, and does not see faults of the vocoder. Sampling is the checkpoint's own; no voice and no
language are named.
"""
TAIL = """
A sentence's length is right within {tolerance:.0f} % of the reference's. "In full" puts the whole
text into the prefill (the default), "stepwise" feeds it a token with each frame, as a voice agent
does.
"""
RECOGNISER = """
pocketsphinx, an old recogniser that is weak on synthetic voices, gets {wrong_full:.0f} %
(stepwise {wrong_stepwise:.0f} %) of the words wrong on {sentences} of the sentences written by
hand; asked which of them was said, it is right in {told_full:.0f} % ({told_stepwise:.0f} %).
Of the codes of the reference, where only the vocoder can be at fault, it gets
{wrong_reference:.0f} % wrong.
"""
LIMITS = """
## Limits

Nobody has judged it by ear. One voice, one pitch, no feeling. Speech starts after some 0.4 s of
silence: the training target waits until enough of the first word is there. Words it has not met are
guessed from their spelling and often wrong. Long texts are best given as sentences of under 100
characters.
"""


def card(result: dict[str, Any]) -> str:
    """The whole card."""
    weights = sum(path.stat().st_size for path in DEMO_VOICE_FOLDER.rglob("*.safetensors"))
    lines = [
        HEAD.format(
            name=DEMO_VOICE,
            talker=result["parameters"]["talker"] / 1e6,
            vocoder=result["parameters"]["vocoder"] / 1e6,
            size=weights / 1e6,
            result=RESULT.name,
            commit=result["commit"],
        ),
        "| sentences | number | text | words right | ended by themselves | length right |",
        "|---|---|---|---|---|---|",
    ]
    for kind, label in KINDS.items():
        for feed in FEEDS:
            figures = result["sets"][f"{kind}, {feed}"]
            shares = (figures[key] for key in ("word_accuracy", "ended", "length_right"))
            cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
            lines.append(f"| {label} | {figures['sentences']} | {_feed_label(feed)} | {cells} |")
    lines.append(TAIL.format(tolerance=100 * LENGTH_TOLERANCE).rstrip("\n"))
    if heard := result["recogniser"]:
        figures = {"sentences": heard[FEEDS[0]]["sentences"]}
        for feed in (*FEEDS, AS_REFERENCE):
            figures[f"wrong_{feed}"] = 100 * heard[feed]["word_error_rate"]
            figures[f"told_{feed}"] = 100 * heard[feed]["sentence_told_apart"]
        lines.append(RECOGNISER.format(**figures).rstrip("\n"))
    lines += [LIMITS.rstrip("\n"), ""]
    return "\n".join(lines)


def _feed_label(feed: str) -> str:
    return "in full" if feed == "full" else feed


def main(args: argparse.Namespace) -> int:
    """Write or check."""
    text = card(json.loads(RESULT.read_text(encoding="utf-8")))
    if args.check:
        return int(CARD.read_text(encoding="utf-8") != text)
    CARD.write_text(text, encoding="utf-8")
    return 0


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if it is out of date")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(parse_args()))
