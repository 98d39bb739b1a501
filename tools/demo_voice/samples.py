"""Write docs/samples: ten sentences to listen to, and a picture of one.

python -m tools.demo_voice.samples
"""

import argparse
import os
import sys
import textwrap
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import numpy as np
import soundfile

from qwen_megakernel import TTSEngine
from qwen_megakernel.audio import to_int16

FOLDER = Path(__file__).parents[2] / "docs" / "samples"
PICTURE = "spectrogram.png"
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
    "sentences again and compares the samples. The training texts contain none of these sentences."
)


def file_name(index: int) -> str:
    """Return the file name of sentence `index`."""
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
    lines += ["", f"![{SENTENCES[0]}]({PICTURE})", ""]
    return "\n".join(lines)


def draw(samples: np.ndarray, rate: int, path: Path) -> None:
    """Draw a spectrogram of one sentence."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 2.4))
    sound = samples / 32768 + 1e-9
    _, _, _, image = axis.specgram(sound, NFFT=512, Fs=rate, noverlap=512 - 120, cmap="magma")
    top = image.get_array().max()
    image.set_clim(top - DECIBELS, top)
    axis.set(xlabel="seconds", ylabel="Hz", ylim=(0, 8000), title=SENTENCES[0])
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main(args: argparse.Namespace) -> int:
    """Write the files, the picture and the page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with TTSEngine.from_pretrained(args.model, backend="torch", device="cpu") as tts:
        for index, sentence in enumerate(SENTENCES):
            samples = speak(tts, index)
            soundfile.write(FOLDER / file_name(index), samples, tts.sample_rate)
            print(f"{file_name(index)} {len(samples) / tts.sample_rate:.2f} s  {sentence}")
            if index == 0:
                draw(samples, tts.sample_rate, FOLDER / PICTURE)
    (FOLDER / "README.md").write_text(page(), encoding="utf-8")
    return 0


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", default="demo-voice", help="name or folder of the checkpoint that speaks"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main(parse_args()))
