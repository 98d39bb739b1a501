"""Training material: utterances as text, token ids, codes and words, thousands to a file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qwen_megakernel.output_files import replacing

TRAINING = "train"
SILENCE = -1  # a value in `Utterance.words`
FEEDS = ("full", "stepwise")  # the ways of feeding text
WAITING_FRAMES = 16  # silent frames before speech whose text comes a token with each frame


@dataclass(frozen=True, slots=True)
class Utterance:
    """One sentence as it should be spoken."""

    kind: str  # TRAINING, or the name of a set of test sentences
    text: str
    ids: np.ndarray  # [num_tokens] int16, without the prompt's own tokens
    codes: np.ndarray  # [num_frames, num_codes] uint8
    words: np.ndarray  # [num_frames] int16: the index of the spoken word, or SILENCE

    @property
    def waiting_frames(self) -> int:
        """How many silent frames it has, stepwise: WAITING_FRAMES, or fewer for a short text."""
        return min(WAITING_FRAMES, len(self.ids))

    def delayed(self, silence: np.ndarray) -> "Utterance":
        """Return the utterance for text that comes a token with each frame.

        It is silent for `waiting_frames`. Text comes faster than it is spoken, so later words
        never wait for their letters.

        Args:
            silence: [num_codes] of a silent frame.
        """
        count = self.waiting_frames
        codes = np.concatenate([np.tile(silence, (count, 1)), self.codes])
        words = np.concatenate([np.full(count, SILENCE, self.words.dtype), self.words])
        return replace(self, codes=codes, words=words)


def write(path: Path, utterances: Sequence[Utterance]) -> None:
    with replacing(path) as draft, draft.open("wb") as file:
        np.savez_compressed(
            file,
            kinds=np.array([u.kind for u in utterances]),
            texts=np.array([u.text for u in utterances]),
            num_tokens=np.array([len(u.ids) for u in utterances], np.int32),
            num_frames=np.array([len(u.codes) for u in utterances], np.int32),
            ids=np.concatenate([u.ids for u in utterances]).astype(np.int16),
            codes=np.concatenate([u.codes for u in utterances]).astype(np.uint8),
            words=np.concatenate([u.words for u in utterances]).astype(np.int16),
        )


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
        )
    return [Utterance(*values) for values in zip(*columns, strict=True)]


def read_folder(folder: Path) -> Iterator[Utterance]:
    """Return every utterance of every shard, in the order of file names."""
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise SystemExit(f"{folder} has no shards; make them with tools.demo_voice.speech.")
    for path in paths:
        yield from read(path)
