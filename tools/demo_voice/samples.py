"""Write docs/samples: ten sentences to listen to, and spectrograms of three.

python -m tools.demo_voice.samples
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import numpy as np
import soundfile

from qwen_megakernel import TTSEngine
from qwen_megakernel.audio import to_int16
from qwen_megakernel.cli import parsing

FOLDER = Path(__file__).parents[2] / "docs" / "samples"
PICTURE = "spectrograms.png"
DRAWN = (0, 1, 7)  # sentences in the picture: two questions and a statement
DECIBELS = 70  # range of the picture below the loudest value
SENTENCES = (
    "Hello, how are you today?",
    "Your table for two is ready.",
    "We will meet you at the hotel on Friday.",
    "It will be cold and cloudy tomorrow.",
    "What would you like to do next?",
    "Let me know when you are ready to start.",
    "The price of the ticket is twenty dollars.",
    "Can you tell me where the train station is?",
    "The children are playing in the garden.",
    "Thank you for calling, and have a nice day.",
)


DESCRIPTION = (
    "`python -m tools.demo_voice.samples` wrote these files. The shipped checkpoint speaks with "
    "its own sampling settings; the seed is the number of the file minus one. A test speaks the "
    "sentences again and compares the samples. The training texts contain none of these sentences. "
    "The picture shows three of them: the lines are harmonics, so their slope is the melody."
)


def file_name(index: int) -> str:
    return f"{index + 1:02d}.wav"


def speak(tts: TTSEngine, index: int) -> np.ndarray:
    """Return [num_samples] int16 of sentence `index`; its number is the seed."""
    return to_int16(tts.synthesize(SENTENCES[index], seed=index).audio)


def page() -> str:
    """Return the page that lists the files."""
    lines = [
        "# Samples of the demonstration voice",
        "",
        *textwrap.wrap(DESCRIPTION, 120),
        "",
        "| file | text |",
        "|---|---|",
    ]
    lines += [f"| [{file_name(i)}]({file_name(i)}) | {s} |" for i, s in enumerate(SENTENCES)]
    lines += ["", f"![Spectrograms]({PICTURE})", ""]
    return "\n".join(lines)


def draw(sounds: Sequence[np.ndarray], rate: int, path: Path) -> None:
    """Draw spectrograms of the sentences `DRAWN`, one below the other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(DRAWN), figsize=(8, 2.6 * len(DRAWN)))
    for index, axis in zip(DRAWN, axes, strict=True):
        sound = sounds[index] / 32768 + 1e-9
        _, _, _, image = axis.specgram(sound, NFFT=2048, Fs=rate, noverlap=1928, cmap="magma")
        top = image.get_array().max()
        image.set_clim(top - DECIBELS, top)
        axis.set(ylabel="Hz", ylim=(0, 2500), title=SENTENCES[index])
    axes[-1].set(xlabel="seconds")
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main(args: argparse.Namespace) -> int:
    """Write the files, the picture and the page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with TTSEngine.from_pretrained(args.model, backend="torch", device="cpu") as tts:
        sounds = [speak(tts, index) for index in range(len(SENTENCES))]
        for index, (sentence, samples) in enumerate(zip(SENTENCES, sounds, strict=True)):
            soundfile.write(FOLDER / file_name(index), samples, tts.sample_rate)
            print(f"{file_name(index)} {len(samples) / tts.sample_rate:.2f} s  {sentence}")
        draw(sounds, tts.sample_rate, FOLDER / PICTURE)
    (FOLDER / "README.md").write_text(page(), encoding="utf-8")
    return 0


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add("--model", "name or folder of the checkpoint that speaks", str, "demo-voice")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(parse_args()))
