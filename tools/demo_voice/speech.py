"""Turn sentences into shards: flite speaks them; their frames are quantised and timed.

python -m tools.demo_voice.speech --texts DATA/train.tsv --output DATA/train --workers 4
"""

import argparse
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import numpy as np
import torch
from tqdm import tqdm

from qwen_megakernel.cli import parsing
from tools.demo_voice import features, shards, texts, tokenizer
from tools.demo_voice.codebooks import SHIPPED, Codebooks
from tools.demo_voice.flite import Flite
from tools.demo_voice.shards import Utterance

MAX_FRAMES = 400


class Speaker:
    """A maker of utterances of flite's speech: envelope codes, then one of the pitch.

    Args:
        codebooks: file of the envelopes' codebooks.
        height: its pitch over flite's own.
        slowness: the length of its speech over that of flite's own.
    """

    def __init__(self, codebooks: Path = SHIPPED, height: float = 1.0, slowness: float = 1.0):
        torch.set_num_threads(1)
        self._height, self._slowness = height, slowness
        self._flite = Flite.shared()
        self._synthesis = features.Synthesis(self._flite.filters)
        self._codebooks = Codebooks.load(codebooks)
        self._tokenizer = tokenizer.load()

    def utterances(self, lines: Sequence[tuple[str, str]]) -> list[Utterance]:
        """Turn (kind, text) into utterances, leaving out texts without sound, long ones, and
        those whose words flite counts otherwise."""
        found: list[tuple[str, str, features.Frames]] = []
        for kind, text in lines:
            frames = self._frames(text)
            if frames and len(frames.words) <= MAX_FRAMES:
                found.append((kind, text, frames))
        if not found:
            return []
        codes = self._codes(
            np.concatenate([frames.features for *_, frames in found]),
            np.concatenate([frames.pitch for *_, frames in found]),
        )
        cuts = np.cumsum([len(frames.words) for *_, frames in found])[:-1]
        return [
            Utterance(kind, text, self._ids(text), part, frames.words)
            for (kind, text, frames), part in zip(found, np.split(codes, cuts), strict=True)
        ]

    def pair(self, text: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the codes of `text`, and its frames' unquantised sound; None without sound.

        Returns:
            [num_frames, num_codes] uint8, and as many frames' samples, float32.
        """
        frames = self._frames(text)
        if frames is None:
            return None
        sound = self._synthesis.sound(frames.features, frames.pitch)
        return self._codes(frames.features, frames.pitch), sound

    def _frames(self, text: str) -> features.Frames | None:
        spoken = self._flite(text)
        if spoken is None:
            return None
        spoken = replace(spoken, f0=spoken.f0 * self._height)
        rows = features.analyse(spoken, text, self._synthesis, self._slowness)
        return features.frames(rows)

    def _ids(self, text: str) -> np.ndarray:
        return np.array(self._tokenizer(text)["input_ids"], np.int16)

    def _codes(self, features: np.ndarray, pitch: np.ndarray) -> np.ndarray:
        return np.concatenate([self._codebooks.encode(features), pitch[:, None]], axis=1)


def _write_shard(job: dict[str, Any]) -> int:
    speaker = Speaker(job["codebooks"])
    shards.write(job["path"], speaker.utterances(job["lines"]))
    return len(job["lines"])


def main(args: argparse.Namespace) -> None:
    """Write the shards that do not exist yet."""
    args.output.mkdir(parents=True, exist_ok=True)
    lines = list(texts.read(args.texts))
    jobs = [
        {
            "path": args.output / f"{args.texts.stem}-{start // args.shard_size:04d}.npz",
            "lines": lines[start : start + args.shard_size],
            "codebooks": args.codebooks,
        }
        for start in range(0, len(lines), args.shard_size)
    ]
    missing = [job for job in jobs if not job["path"].exists()]
    context = multiprocessing.get_context("spawn")
    with (
        tqdm(total=sum(len(job["lines"]) for job in missing), unit=" utterances") as bar,
        context.Pool(args.workers) as pool,
    ):
        for count in pool.imap_unordered(_write_shard, missing):
            bar.update(count)


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add("--texts", "text file that tools.demo_voice.texts wrote", Path, required=True)
    add("--output", "folder for the shards; existing ones stay", Path, required=True)
    add("--codebooks", "codebooks file (default: the shipped voice's)", Path, SHIPPED)
    add("--workers", "number of processes that make shards", int, 1)
    add("--shard-size", "number of texts in a shard", int, 2500)
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())
