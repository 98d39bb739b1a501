"""Turn sentences into shards: a teacher speaks them; their frames are quantised and timed.

python -m tools.demo_voice.speech --texts DATA/train.tsv --output DATA/train --workers 4

With `--teacher flite` and its codebooks, a sentence becomes two utterances: one spoken at once, for
a prompt with the whole text, and one whose words wait for their letters.
"""

import argparse
import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

import numpy as np
import torch
from tqdm import tqdm

from tools.demo_voice import features, natural, shards, texts, tokenizer
from tools.demo_voice.codebooks import SHIPPED, Codebooks
from tools.demo_voice.espeak import Espeak
from tools.demo_voice.features import Frames
from tools.demo_voice.flite import Flite
from tools.demo_voice.shards import Utterance

LOOKAHEAD_CHARS = 7  # share of a word's letters that must be there before it is spoken
TAIL_FRAMES = 2  # frames of silence before the end
MAX_FRAMES = 400


def schedule(frames: Frames, text: str, token_at: Callable[[int], int]) -> list[int]:
    """Return when each frame is spoken if one token of the text comes with each frame.

    A word waits until enough of it is there to know how it sounds, and speech does not end before
    the text does.

    Args:
        token_at: index of the token with which the first so many characters have arrived; past the
            end of the text, that of the token after the last.
    Returns:
        Indices into `frames`, or SILENCE.
    """
    starts = [*frames.word_starts, len(text) + 1]
    order: list[int] = []
    current = None
    for index, word in enumerate(frames.words):
        if word != current:
            current = word
            known = min(starts[word + 1], starts[word] + LOOKAHEAD_CHARS)
            order += [shards.SILENCE] * (token_at(known) - len(order))
        order.append(index)
    order += [shards.SILENCE] * (token_at(len(text)) - len(order))
    return order + [shards.SILENCE] * TAIL_FRAMES


class Speaker:
    """A maker of utterances. espeak-ng keeps global state, so a process may have one."""

    def __init__(self, codebooks: Path):
        torch.set_num_threads(1)
        self._espeak = Espeak.shared()
        self._codebooks = Codebooks.load(codebooks)
        self._tokenizer = tokenizer.load()
        self._silence = self._codebooks.encode(features.silence())[0]

    def utterances(self, lines: Sequence[tuple[str, str]]) -> list[Utterance]:
        """Turn (kind, text) into utterances, leaving out texts without sound and too long ones."""
        spoken = [(kind, text, features.analyse(self._espeak(text))) for kind, text in lines]
        spoken = [item for item in spoken if item[2] and len(item[2].words) <= MAX_FRAMES]
        if not spoken:
            return []
        codes = self._codebooks.encode(np.concatenate([f.features for _, _, f in spoken]))
        ends = np.cumsum([len(frames.words) for _, _, frames in spoken])[:-1]
        return [
            self._utterance(kind, text, frames, part)
            for (kind, text, frames), part in zip(spoken, np.split(codes, ends), strict=True)
        ]

    def pair(self, text: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the codes of `text`, and its frames' unquantised sound; None without sound.

        Returns:
            [num_frames, NUM_CODEBOOKS] uint8, and as many frames' samples, float32.
        """
        frames = features.analyse(self._espeak(text))
        if not frames:
            return None
        _, order = self._order(text, frames)
        timed = np.where(order[:, None] < 0, features.silence(), frames.features[order])
        codes = np.where(
            order[:, None] < 0, self._silence, self._codebooks.encode(frames.features)[order]
        )
        return codes, features.synthesize(timed)

    def _utterance(self, kind: str, text: str, frames: Frames, codes: np.ndarray) -> Utterance:
        ids, order = self._order(text, frames)
        timed = np.where(order[:, None] < 0, self._silence, codes[order])
        words = np.where(order < 0, shards.SILENCE, frames.words[order])
        return Utterance(kind, text, np.array(ids, np.int16), timed, words.astype(np.int16))

    def _order(self, text: str, frames: Frames) -> tuple[list[int], np.ndarray]:
        """Return the text's ids, and when its frames are spoken (`schedule`)."""
        ids, token_at = _timing(self._tokenizer, text)
        return ids, np.array(schedule(frames, text, token_at))


class NaturalSpeaker:
    """A maker of utterances of flite's speech: envelope codes, then one of the pitch.

    Args:
        codebooks: file of the envelopes' codebooks.
    """

    def __init__(self, codebooks: Path):
        torch.set_num_threads(1)
        self._flite = Flite.shared()
        self._synthesis = natural.Synthesis(self._flite.filters)
        self._codebooks = Codebooks.load(codebooks)
        self._tokenizer = tokenizer.load()

    def utterances(self, lines: Sequence[tuple[str, str]]) -> list[Utterance]:
        """Turn (kind, text) into two utterances each, leaving out texts without sound, long ones,
        and those whose words flite counts otherwise."""
        found: list[tuple[str, str, list[int], str, natural.Frames]] = []
        for kind, text in lines:
            spoken = self._flite(text)
            if spoken is None:
                continue
            ids, token_at = _timing(self._tokenizer, text)
            rows = natural.analyse(spoken, text, self._synthesis)
            ends = [*spoken.word_starts[1:], len(text) + 1]
            earliest = [
                token_at(min(end, start + LOOKAHEAD_CHARS))
                for start, end in zip(spoken.word_starts, ends, strict=True)
            ]
            later = natural.delay(rows, [*earliest, token_at(len(text)) + TAIL_FRAMES])
            for feed, timed in ((shards.FULL, rows), (shards.STEPWISE, later)):
                if len(timed.words) <= MAX_FRAMES * natural.ROWS_PER_FRAME:
                    found.append((kind, text, ids, feed, natural.frames(timed)))
        if not found:
            return []
        codes = self._codes(
            np.concatenate([frames.features for *_, frames in found]),
            np.concatenate([frames.pitch for *_, frames in found]),
        )
        cuts = np.cumsum([len(frames.words) for *_, frames in found])[:-1]
        return [
            Utterance(kind, text, np.array(ids, np.int16), part, frames.words, feed)
            for (kind, text, ids, feed, frames), part in zip(
                found, np.split(codes, cuts), strict=True
            )
        ]

    def pair(self, text: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the codes of `text`, and its frames' unquantised sound; None without sound.

        Returns:
            [num_frames, num_codes] uint8, and as many frames' samples, float32.
        """
        spoken = self._flite(text)
        if spoken is None:
            return None
        frames = natural.frames(natural.analyse(spoken, text, self._synthesis))
        sound = self._synthesis.sound(frames.features, frames.pitch)
        return self._codes(frames.features, frames.pitch), sound

    def _codes(self, features: np.ndarray, pitch: np.ndarray) -> np.ndarray:
        return np.concatenate([self._codebooks.encode(features), pitch[:, None]], axis=1)


def _timing(encode: Any, text: str) -> tuple[list[int], Callable[[int], int]]:
    """Return the text's ids, and with which token its first so many characters have arrived."""
    encoded = encode(text, return_offsets_mapping=True)
    ends = np.array([end for _, end in encoded["offset_mapping"]])

    def token_at(num_chars: int) -> int:
        return len(ends) if num_chars > len(text) else int(np.searchsorted(ends, num_chars))

    return encoded["input_ids"], token_at


SPEAKERS = {"espeak": Speaker, "flite": NaturalSpeaker}


def _write_shard(job: dict[str, Any]) -> int:
    speaker = SPEAKERS[job["teacher"]](job["codebooks"])
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
            "teacher": args.teacher,
        }
        for start in range(0, len(lines), args.shard_size)
    ]
    missing = [job for job in jobs if not job["path"].exists()]
    context = multiprocessing.get_context("spawn")
    with (
        tqdm(total=sum(len(job["lines"]) for job in missing), unit=" utterances") as bar,
        # Each shard has a fresh process: how espeak-ng says a sentence depends a little on what it
        # said before, so only then is a shard the same on every run.
        context.Pool(args.workers, maxtasksperchild=1) as pool,
    ):
        for count in pool.imap_unordered(_write_shard, missing):
            bar.update(count)


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--texts", type=Path, required=True, help="text file that tools.demo_voice.texts wrote"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="folder for the shards; existing ones stay"
    )
    parser.add_argument(
        "--codebooks",
        type=Path,
        default=SHIPPED,
        help="codebooks file (default: the shipped voice's)",
    )
    parser.add_argument(
        "--teacher",
        choices=SPEAKERS,
        default="espeak",
        help="speech program to use; each one has codebooks of its own (default: %(default)s)",
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="number of processes that make shards (default: 1)"
    )
    parser.add_argument(
        "--shard-size", type=int, default=2500, help="number of texts in a shard (default: 2500)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())
