"""The Qwen2.5 layers as the decoder uses them: tokens in, the last hidden state out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LanguageModel:
    """transformers' Qwen2 with a key/value cache for each slot.

    Args:
        model: on its device, in its dtype.
        num_slots: sequences that are decoded at the same time, one after another.
    """

    def __init__(self, model: PreTrainedModel, num_slots: int):
        self._model = model.eval()
        self._caches: list = [None] * num_slots
        self.device, self.dtype = model.device, model.dtype
        self.max_positions: int = model.config.max_position_embeddings

    def begin(self, slot: int) -> None:
        """Forget what `slot` has read."""
        from transformers import DynamicCache

        self._caches[slot] = DynamicCache()

    @torch.inference_mode()
    def read(self, slot: int, ids: Sequence[int]) -> Tensor:
        """Read the next tokens of a slot; [hidden_size], the state behind the last of them."""
        done = self._model.model(
            input_ids=torch.tensor([ids], device=self.device),
            past_key_values=self._caches[slot],
            use_cache=True,
        )
        return done.last_hidden_state[0, -1]

    @torch.inference_mode()
    def logits(self, hidden: Tensor, first: int = 0, count: int | None = None) -> Tensor:
        """Logits of the `count` tokens from `first` on, or of all: [count] float32.

        The head is the largest matrix there is; only the rows that are asked for are read.
        """
        head = self._model.lm_head.weight
        rows = head[first : None if count is None else first + count]
        return linear(hidden, rows).float()
