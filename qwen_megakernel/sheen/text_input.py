"""Turns the text of a request into token ids, through phonemes if the voice was trained on them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qwen_megakernel.errors import EmptyText
from qwen_megakernel.records import SpeechRequest, TextIds
from qwen_megakernel.sheen.decoder import NO_IDS
from qwen_megakernel.sheen.phonemes import phonemise
from qwen_megakernel.sheen.tokens import text_ids
from qwen_megakernel.text.parts import TextEncoding

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Limits for the parts of a long text. A training sequence has 10 to 12 s (1024 tokens, 82 per
# second of audio), and speech has 12 to 17 characters per second.
MIN_PART_CHARS, MAX_PART_CHARS = 60, 120


class TextInput:
    """Encodes the texts of one voice.

    Args:
        tokenizer: a tokenizer with the audio tokens.
        espeak: the espeak-ng voice that phonemises the texts; None: the texts are phonemes.
    Raises:
        SetupError, UsageError: espeak-ng, or its voice, is not installed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, espeak: str | None):
        self._tokenizer, self._espeak = tokenizer, espeak
        self._lock = threading.Lock()  # transformers' tokenizers change while they are used
        if espeak:
            phonemise("one", espeak)

    def encoding(self, request: SpeechRequest) -> TextEncoding:
        """Return how the parts of a request's text become ids.

        The model reads all of a part before it speaks, so the parts of an open text wait until they
        are complete.
        """
        return TextEncoding(
            request,
            TextIds(NO_IDS, NO_IDS),
            self.encode,
            None,
            (MIN_PART_CHARS, MAX_PART_CHARS),
            (MAX_PART_CHARS, 2 * MAX_PART_CHARS),
        )

    def encode(self, text: str) -> Tensor:
        """Return the ids of one part, [num_tokens] int64."""
        phonemes = phonemise(text, self._espeak) if self._espeak else text
        if not any(map(str.isalnum, phonemes)):
            raise EmptyText(f"Nothing in {text[:20]!r} can be spoken.")
        with self._lock:
            return torch.tensor(text_ids(self._tokenizer, phonemes))
