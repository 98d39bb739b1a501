"""Samples as token sequences, packed into rows that a model trains on.

    text <audio_start> audio tokens <audio_end>

The text is given, so no loss is taken on it; what the model learns is to begin, to speak, and to
end. Several sequences share a row, and none sees the others: each has its own positions, and the
attention mask keeps them apart.
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

IGNORED = -100  # a label that takes no loss, as torch's cross_entropy has it


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One sample."""

    ids: list[int]
    num_text: int  # of `ids`, at the beginning

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of packed sequences; every tensor is on the CPU."""

    input_ids: Tensor  # [num_rows, length] int64
    labels: Tensor  # [num_rows, length] int64: of each position, the token behind it, or IGNORED
    position_ids: Tensor  # [num_rows, length] int64, from 0 in every sequence
    attention_mask: Tensor  # [num_rows, 1, length, length] bool: may i see j


def encode(
    sample: Sample, tokenizer: PreTrainedTokenizerBase, tokens: AudioTokens
) -> TokenSequence:
    """The sequence of a sample."""
    text = text_ids(tokenizer, sample.text)
    audio = [tokens.start_id, *tokens.ids_of(sample.frames), tokens.end_id]
    return TokenSequence(text + audio, len(text))


def pack(lengths: Sequence[int], max_length: int, seed: int) -> list[list[int]]:
    """Put sequences into rows of at most `max_length` tokens, in an order drawn from `seed`.

    Each goes into the first row with room for it.

    Returns:
        Which sequences each row holds; every one is in exactly one row.
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
    """Rows of sequences as tensors as long as the longest row."""
    length = max(sum(map(len, row)) for row in rows)
    shape = len(rows), length
    ids = torch.full(shape, pad_id)
    labels = torch.full(shape, IGNORED)
    positions = torch.zeros(shape, dtype=torch.int64)
    owners = torch.zeros(shape, dtype=torch.int64)  # 0: padding, which sees padding alone
    for at, row in enumerate(rows):
        begin = 0
        for owner, sequence in enumerate(row, start=1):
            end = begin + len(sequence)
            own = torch.tensor(sequence.ids)
            ids[at, begin:end] = own
            positions[at, begin:end] = torch.arange(len(sequence))
            owners[at, begin:end] = owner
            # The last position has no token behind it, and what is behind text is no loss, but
            # for <audio_start>.
            labels[at, begin + sequence.num_text - 1 : end - 1] = own[sequence.num_text :]
            begin = end
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    same = owners[:, :, None] == owners[:, None, :]
    return Batch(ids, labels, positions, (same & causal)[:, None])
