"""Turns samples into token sequences, and packs them into rows that a model trains on.

    text <audio_start> audio tokens <audio_end>

The text is given, so it has no loss; the model learns to begin, to speak, and to end. Several
sequences share a row without seeing each other: each has its own positions, and the attention mask
separates them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qwen_megakernel.sheen.tokens import AudioTokens, text_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from qwen_megakernel.sheen.training.dataset import Sample

IGNORED = -100  # a label without loss, the default of torch's cross_entropy


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """The tokens of one sample."""

    ids: list[int]
    num_text: int  # number of text tokens at the beginning of `ids`

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of packed sequences; every tensor is on the CPU."""

    input_ids: Tensor  # [num_rows, length] int64
    labels: Tensor  # [num_rows, length] int64: at each position, the next token, or IGNORED
    position_ids: Tensor  # [num_rows, length] int64, from 0 in every sequence
    attention_mask: Tensor  # [num_rows, 1, length, length] bool: whether position i sees j


def encode(
    sample: Sample, tokenizer: PreTrainedTokenizerBase, tokens: AudioTokens
) -> TokenSequence:
    """Return the sequence of a sample."""
    text = text_ids(tokenizer, sample.text)
    audio = [tokens.start_id, *tokens.ids_of(sample.frames), tokens.end_id]
    return TokenSequence(text + audio, len(text))


def pack(lengths: Sequence[int], max_length: int, seed: int) -> list[list[int]]:
    """Put sequences into rows of at most `max_length` tokens, in an order drawn from `seed`.

    Each sequence goes into the first row that has room for it.

    Returns:
        The indices of each row's sequences; every sequence is in exactly one row.
    """
    order = list(range(len(lengths)))
    random.Random(seed).shuffle(order)
    rows: list[list[int]] = []
    room: list[int] = []
    for index in order:
        length = lengths[index]
        at = next((at for at, free in enumerate(room) if free >= length), None)
        if at is None:
            assert length <= max_length
            rows.append([])
            room.append(max_length)
            at = len(rows) - 1
        rows[at].append(index)
        room[at] -= length
    return rows


def collate(rows: Sequence[Sequence[TokenSequence]], pad_id: int) -> Batch:
    """Turn rows of sequences into tensors that are as long as the longest row."""
    length = max(sum(map(len, row)) for row in rows)
    shape = len(rows), length
    ids = torch.full(shape, pad_id)
    labels = torch.full(shape, IGNORED)
    positions = torch.zeros(shape, dtype=torch.int64)
    owners = torch.zeros(shape, dtype=torch.int64)  # 0: padding, which sees only padding
    for at, row in enumerate(rows):
        begin = 0
        for owner, sequence in enumerate(row, start=1):
            end = begin + len(sequence)
            own = torch.tensor(sequence.ids)
            ids[at, begin:end] = own
            positions[at, begin:end] = torch.arange(len(sequence))
            owners[at, begin:end] = owner
            # The last position has no next token. In the text, only the last position has a loss,
            # because its next token is <audio_start>.
            labels[at, begin + sequence.num_text - 1 : end - 1] = own[sequence.num_text :]
            begin = end
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    same = owners[:, :, None] == owners[:, None, :]
    return Batch(ids, labels, positions, (same & causal)[:, None])
