"""The Qwen2.5 language model of the decoder: reads tokens, and returns the last hidden state.

There are two implementations: transformers, and the kernel that decodes Qwen3-TTS, or its
emulation. The kernel takes one launch through all layers for each token; embedding and head are
PyTorch in both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LanguageModel(ABC):
    """A model with slots, each with a key/value cache of its own."""

    def __init__(self, model: PreTrainedModel):
        self._head = model.lm_head.weight  # [vocab_size, hidden_size]
        self.device = self._head.device

    @abstractmethod
    def begin(self, slot: int) -> None:
        """Forget what `slot` has read."""

    @abstractmethod
    def read(self, slot: int, ids: Sequence[int]) -> Tensor:
        """Read the next tokens of a slot; returns the hidden state of the last, [hidden_size]."""

    @torch.inference_mode()
    def logits(self, hidden: Tensor, first: int = 0, count: int | None = None) -> Tensor:
        """Return the logits of `count` tokens from `first` on, or of all: [count] float32.

        The head is the largest matrix of the model, so only its requested rows are read.
        """
        rows = self._head[first : None if count is None else first + count]
        return linear(hidden.to(rows.dtype), rows).float()


class TorchLanguageModel(LanguageModel):
    """The language model, run by transformers; each step decodes one sequence after another."""

    def __init__(self, model: PreTrainedModel, num_slots: int):
        super().__init__(model)
        self._layers = model.model.eval()
        self._caches: list = [None] * num_slots

    def begin(self, slot: int) -> None:
        from transformers import DynamicCache

        self._caches[slot] = DynamicCache()

    @torch.inference_mode()
    def read(self, slot: int, ids: Sequence[int]) -> Tensor:
        done = self._layers(
            input_ids=torch.tensor([ids], device=self.device),
            past_key_values=self._caches[slot],
            use_cache=True,
        )
        return done.last_hidden_state[0, -1]


class KernelLanguageModel(LanguageModel):
    """The language model, run by the kernel, which is compiled for its dimensions at first use."""

    def __init__(self, model: PreTrainedModel, num_slots: int, max_positions: int):
        from qwen_megakernel.decoders.kernel.text_model import (
            KernelTextModel,  # imports the kernel's build
        )

        super().__init__(model)
        self._embedding = model.get_input_embeddings().get_parameter("weight")
        self._layers = KernelTextModel(
            model.config.to_dict(),
            model.state_dict(),
            num_slots=num_slots,
            max_positions=max_positions,
            device=self.device,
            dtype=self._head.dtype,
        )
        self._positions = [0] * num_slots

    def begin(self, slot: int) -> None:
        self._positions[slot] = 0

    @torch.inference_mode()
    def read(self, slot: int, ids: Sequence[int]) -> Tensor:
        rows = self._embedding[torch.tensor(ids, device=self.device)]
        hidden = self._layers.forward(slot, rows, self._positions[slot])
        self._positions[slot] += len(ids)
        return hidden[-1]
