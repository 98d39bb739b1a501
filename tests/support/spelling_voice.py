"""A test voice that spells: each letter is a sound with a known place, exact to the sample."""

from dataclasses import dataclass

import numpy as np

RATE = 24000
SECONDS = {"a": 0.11, "o": 0.14, "i": 0.08, "n": 0.07, "l": 0.06, "s": 0.10, "f": 0.08, "t": 0.07}
PAUSES = {" ": 0.0, ",": 0.2, ".": 0.4}


@dataclass(frozen=True, slots=True)
class Spelled:
    samples: np.ndarray  # [num_samples] int16
    word_times: list[tuple[float, float]]  # begin and end of each word, in seconds

    @property
    def seconds(self) -> float:
        return len(self.samples) / RATE


def spell(text: str, *, seed: int = 0, lead_s: float = 0.1, tail_s: float = 0.2) -> Spelled:
    """Say words of the letters of `SECONDS`, each with a random length, and pauses."""
    rng = np.random.default_rng(seed)
    pieces, place, words, begin = [np.zeros(int(lead_s * RATE))], lead_s, [], None
    for char in f"{text} ":
        if char in SECONDS:
            begin = place if begin is None else begin
            piece = _sound(char, SECONDS[char] * rng.uniform(0.7, 1.4), rng)
        else:
            if begin is not None:
                words.append((begin, place))
                begin = None
            piece = np.zeros(int(PAUSES[char] * RATE))
        pieces.append(piece)
        place += len(piece) / RATE
    pieces.append(np.zeros(int(tail_s * RATE)))
    return Spelled((8000 * np.concatenate(pieces)).astype(np.int16), words)


def _sound(letter: str, seconds: float, rng: np.random.Generator) -> np.ndarray:
    time = np.arange(int(seconds * RATE)) / RATE
    if letter in "aoi":
        return sum(np.sin(2 * np.pi * hertz * time) / hertz * 150 for hertz in (150, 450, 750))
    if letter in "nl":
        return 0.35 * np.sin(2 * np.pi * 150 * time)
    if letter in "sf":
        return (0.15 if letter == "s" else 0.05) * rng.standard_normal(len(time))
    burst, length = np.zeros(len(time)), len(time) // 4
    burst[-length:] = 0.2 * rng.standard_normal(length)
    return burst
