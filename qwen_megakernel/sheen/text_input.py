"""Turns the text of a request into token ids, through phonemes if the voice was trained on them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qwen_megakernel.errors import EmptyText, TextTooLong
from qwen_megakernel.records import SpeechRequest, TextIds
from qwen_megakernel.sheen.decoder import NO_IDS
from qwen_megakernel.sheen.phonemes import phonemise
from qwen_megakernel.sheen.tokens import text_ids
from qwen_megakernel.text.cleaning import MAX_CHARS, clean, validate
from qwen_megakernel.text.parts import EncodedText, split

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

    def encode_parts(self, request: SpeechRequest) -> EncodedText:
        """Clean the text of a request, cut it into parts and encode them, like `TextTokenizer`.

        Raises:
            EmptyText, TextTooLong: see `cleaning.validate`.
            SetupError: espeak-ng is needed and not installed.
        """
        parts: list[str] = []
        if request.text is not None:
            parts = [validate(request.text)]
            if request.split != "off":
                parts = split(parts[0], MIN_PART_CHARS, MAX_PART_CHARS)
        ids = [self.encode(part) for part in parts]
        return EncodedText(TextIds(NO_IDS, NO_IDS), ids, self.stream, MAX_PART_CHARS, parts)

    def encode(self, text: str) -> Tensor:
        """Return the ids of one part, [num_tokens] int64.

        Raises:
            EmptyText: nothing in the text can be spoken.
        """
        phonemes = phonemise(text, self._espeak) if self._espeak else text
        if not any(map(str.isalnum, phonemes)):
            raise EmptyText(f"Nothing in {text[:20]!r} can be spoken.")
        with self._lock:
            return torch.tensor(text_ids(self._tokenizer, phonemes))

    def stream(self) -> WholeText:
        """Begin a part with text that arrives in pieces."""
        return WholeText(self)


class WholeText:
    """A part with text that arrives in pieces, which is encoded when it is complete.

    The model reads all of a text before it speaks, so the pieces wait for the last one.
    """

    def __init__(self, text_input: TextInput):
        self._input = text_input
        self._text = ""

    def feed(self, piece: str) -> Tensor:
        """Take a piece; returns no ids.

        Raises:
            TextTooLong: the pieces together exceed the limit.
        """
        if len(self._text) + len(piece) > MAX_CHARS:
            raise TextTooLong(
                f"The text has {len(self._text) + len(piece)} characters and no end yet; "
                f"the limit is {MAX_CHARS}.",
                hint="End the text, and speak the rest as another one.",
            )
        self._text += piece
        return NO_IDS

    def end(self) -> Tensor:
        """Return all ids, [num_tokens] int64.

        Raises:
            EmptyText: nothing in the text can be spoken.
        """
        return self._input.encode(clean(self._text))
