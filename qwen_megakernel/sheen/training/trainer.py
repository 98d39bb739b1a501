"""Trains a language model to speak: what a step of `BaseTrainer` reads, and its loss."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn.functional import cross_entropy

from qwen_megakernel.sheen.training.sequences import IGNORED, Batch, TokenSequence, collate, pack
from qwen_megakernel.training.trainer import BaseTrainer, TrainOptions, chunks, fitting

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Row = list[int]  # the sequences of a row, as indices


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
        self._pad_id = pad_id
        super().__init__(model, options)

    def _order(self, epoch: int) -> list[Row]:
        lengths = [len(sequence) for sequence in self._sequences]
        seed = self.options.seed + epoch
        rows = pack(lengths, self.options.max_length, seed=seed)
        random.Random(seed).shuffle(rows)  # the last row made is the emptiest
        return rows

    def _losses(self, group: list[Row]) -> Iterator[Tensor]:
        batches = [
            collate([[self._sequences[i] for i in row] for row in rows], self._pad_id)
            for rows in chunks(group, self.options.batch_size)
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
