"""The file that `prepare` writes and `train` reads: a JSON object on each line, for one recording.

    {"id": "0001", "text": "həˈloʊ wɝld", "snac_codes": [[...], [...], [...]], "espeak": "en-us"}

`text` is what the model reads: phonemes. `espeak` is the voice that made them from a text; it is
absent if the phonemes were given. `id` is optional, too.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qwen_megakernel.errors import DatasetError
from qwen_megakernel.sheen.codes import deinterleave, interleave
from qwen_megakernel.training import preparing

PREPARE = "sheen prepare"  # the command that writes such a file


@dataclass(frozen=True, slots=True)
class Sample:
    """A recording: its text and its codes."""

    id: str
    text: str
    frames: np.ndarray  # [num_frames, 7] int32
    espeak: str | None = None  # the espeak-ng voice that made `text`

    def to_json(self) -> str:
        values: dict[str, Any] = {
            "id": self.id,
            "text": self.text,
            "snac_codes": [layer.tolist() for layer in deinterleave(self.frames)],
        }
        if self.espeak:
            values["espeak"] = self.espeak
        return json.dumps(values, ensure_ascii=False)


def parse(line: str, codebook_size: int) -> Sample:
    """Read one line of a dataset.

    Raises:
        DatasetError: the line is not a sample, or a code is outside the codebook.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"it is not JSON: {error}.") from error
    if not isinstance(values, dict) or not {"text", "snac_codes"} <= values.keys():
        raise DatasetError("it is not an object with `text` and `snac_codes`.")
    text, layers, espeak = values["text"], values["snac_codes"], values.get("espeak")
    if not isinstance(text, str) or not text.strip():
        raise DatasetError(f"text is {text!r}; it must be a string that is not empty.")
    if not isinstance(espeak, str | None):
        raise DatasetError(f"espeak is {espeak!r}; it must be the name of an espeak-ng voice.")
    is_table = isinstance(layers, list) and all(
        isinstance(layer, list) and all(type(code) is int for code in layer) for layer in layers
    )
    if not is_table:
        raise DatasetError("snac_codes is not a list of lists of integers.")
    codes = [code for layer in layers for code in layer]
    if codes and not 0 <= min(codes) <= max(codes) < codebook_size:
        raise DatasetError(
            f"codes are {min(codes)} .. {max(codes)}; they must be 0 .. {codebook_size - 1}."
        )
    frames = interleave(layers)
    if not len(frames):
        raise DatasetError("snac_codes is empty.")
    return Sample(str(values.get("id", "")), text, frames, espeak)


def read(path: Path, codebook_size: int) -> list[Sample]:
    """Read a dataset to train on.

    Raises:
        DatasetError: a line is damaged (the error has its number), there are no lines, or different
            voices phonemised the texts.
    """
    samples = preparing.read_samples(
        path, lambda line: parse(line, codebook_size), PREPARE, "sheen verify dataset"
    )
    check_one_phonemiser(path, {sample.espeak for sample in samples})
    return samples


def check_one_phonemiser(path: Path, voices: set[str | None]) -> None:
    """Raise if the texts of a dataset were phonemised in different ways.

    Args:
        voices: the espeak-ng voices of its samples; None stands for given phonemes.
    Raises:
        DatasetError: there is more than one voice.
    """
    if len(voices) > 1:
        names = ", ".join(sorted(voice or "given phonemes" for voice in voices))
        raise DatasetError(
            f"{path} mixes phonemes of different origin: {names}.",
            "The model would have to guess the origin of each text.",
            "Prepare all recordings with the same --espeak, or all without.",
        )
