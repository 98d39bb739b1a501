"""Training material: utterances as text, token ids, codes and words, thousands to a file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TRAINING = "train"
SILENCE = -1  # a value in `Utterance.words`
FULL, STEPWISE = "full", "stepwise"  # the ways of feeding text


@dataclass(frozen=True, slots=True)
class Utterance:
    """One sentence as it should be spoken."""

    kind: str  # TRAINING, or the name of a set of test sentences
    text: str
    ids: np.ndarray  # [num_tokens] int16, without the prompt's own tokens
    codes: np.ndarray  # [num_frames, num_codes] uint8
    words: np.ndarray  # [num_frames] int16: the index of the spoken word, or SILENCE
    feed: str  # the way of feeding text to which its timing belongs: FULL or STEPWISE


def write(path: Path, utterances: Sequence[Utterance]) -> None:
    """Write a shard; it appears whole."""
    draft = path.with_suffix(".partial")
    with draft.open("wb") as file:
        np.savez_compressed(
            file,
            kinds=np.array([u.kind for u in utterances]),
            texts=np.array([u.text for u in utterances]),
            feeds=np.array([u.feed for u in utterances]),
            num_tokens=np.array([len(u.ids) for u in utterances], np.int32),
            num_frames=np.array([len(u.codes) for u in utterances], np.int32),
            ids=np.concatenate([u.ids for u in utterances]).astype(np.int16),
            codes=np.concatenate([u.codes for u in utterances]).astype(np.uint8),
            words=np.concatenate([u.words for u in utterances]).astype(np.int16),
        )
    draft.replace(path)


def read(path: Path) -> list[Utterance]:
    """Return the utterances of one shard."""
    with np.load(path) as shard:
        token_ends = np.cumsum(shard["num_tokens"])[:-1]
        frame_ends = np.cumsum(shard["num_frames"])[:-1]
        columns = (
            shard["kinds"].tolist(),
            shard["texts"].tolist(),
            np.split(shard["ids"], token_ends),
            np.split(shard["codes"], frame_ends),
            np.split(shard["words"], frame_ends),
            shard["feeds"].tolist(),
        )
    return [Utterance(*values) for values in zip(*columns, strict=True)]


def read_folder(folder: Path) -> Iterator[Utterance]:
    """Return every utterance of every shard, in the order of file names."""
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise SystemExit(f"{folder} has no shards; make them with tools.demo_voice.speech.")
    for path in paths:
        yield from read(path)
