"""Trains a language model to speak: what a step of `BaseTrainer` reads, and its loss."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.functional import cross_entropy

from qwen_megakernel.sheen.training.sequences import IGNORED, Batch, TokenSequence, collate, pack
from qwen_megakernel.training.trainer import BaseTrainer, TrainOptions, fitting

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Rows = list[list[int]]  # the sequences of each row, as indices


class Trainer(BaseTrainer):
    """A model, its sequences and the state of its training.

    Args:
        model: a model in float32, on the device that trains it.
        pad_id: any token; it fills rows, where no sequence sees it.
    Raises:
        DatasetError: no sequence is short enough.
    """

    model: PreTrainedModel

    def __init__(
        self,
        model: PreTrainedModel,
        sequences: Sequence[TokenSequence],
        pad_id: int,
        options: TrainOptions,
    ):
        self._sequences = fitting(sequences, options.max_length, "tokens")
        self._pad_id, self._length = pad_id, options.max_length
        self._seed, self._size = options.seed, options.batch_size
        self._passes = options.gradient_accumulation
        super().__init__(model, options)

    def _groups(self, epoch: int) -> list[Rows]:
        lengths = [len(sequence) for sequence in self._sequences]
        seed = self._seed + epoch
        rows = pack(lengths, self._length, seed=seed)
        random.Random(seed).shuffle(rows)  # the last row made is the emptiest
        size = self._size * self._passes
        return [rows[first : first + size] for first in range(0, len(rows), size)]

    def _losses(self, group: Rows) -> Iterator[Tensor]:
        batches = [
            collate(
                [[self._sequences[i] for i in row] for row in group[first : first + self._size]],
                self._pad_id,
            )
            for first in range(0, len(group), self._size)
        ]
        # Every token has the same weight, however rows are divided into passes.
        num_tokens = sum(int((batch.labels != IGNORED).sum()) for batch in batches)
        for batch in batches:
            yield self.loss_sum(batch) / num_tokens

    def loss_sum(self, batch: Batch) -> Tensor:
        """Return the loss in nats, summed over the labelled tokens of a batch; float32."""
        labels = batch.labels.to(self.device)
        labelled = labels != IGNORED
        with self.autocast():
            hidden = self.model.model(
                input_ids=batch.input_ids.to(self.device),
                attention_mask=batch.attention_mask.to(self.device),
                position_ids=batch.position_ids.to(self.device),
                use_cache=False,
            ).last_hidden_state
            # Logits of 164,000 tokens are the largest tensor, so only labelled positions have them.
            logits = self.model.lm_head(hidden[labelled])
        return cross_entropy(logits.float(), labels[labelled], reduction="sum")
