"""Text of a request to token ids, through phonemes where the voice was trained on them."""

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

# Parts of a long text. A voice is trained on 10 to 12 s at once (1024 tokens, 82 a second of
# audio), and reading takes 12 to 17 characters a second.
MIN_PART_CHARS, MAX_PART_CHARS = 60, 120


class TextInput:
    """The way of one voice from text to ids.

    Args:
        tokenizer: with the audio tokens.
        espeak: the espeak-ng voice that phonemises, or None: what comes is phonemes.
    Raises:
        SetupError, UsageError: espeak-ng, or the voice, is not installed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, espeak: str | None):
        self._tokenizer, self._espeak = tokenizer, espeak
        self._lock = threading.Lock()  # transformers' tokenizers change while they are used
        if espeak:
            phonemise("one", espeak)

    def encode_parts(self, request: SpeechRequest) -> EncodedText:
        """Clean the text of a request, cut it into parts and encode them; as `TextTokenizer` does.

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
        return EncodedText(TextIds(NO_IDS, NO_IDS), ids, self.stream, MAX_PART_CHARS)

    def encode(self, text: str) -> Tensor:
        """Ids of one part, [num_tokens] int64.

        Raises:
            EmptyText: nothing in it can be spoken.
        """
        phonemes = phonemise(text, self._espeak) if self._espeak else text
        if not any(map(str.isalnum, phonemes)):
            raise EmptyText(f"Nothing in {text[:20]!r} can be spoken.")
        with self._lock:
            return torch.tensor(text_ids(self._tokenizer, phonemes))

    def stream(self) -> WholeText:
        """Begin a part whose text arrives in pieces."""
        return WholeText(self)


class WholeText:
    """A part whose text arrives in pieces (as `text.TextStream`) and is encoded when it is whole.

    The model reads all of a text before it speaks, so the pieces wait for each other.
    """

    def __init__(self, text_input: TextInput):
        self._input = text_input
        self._text = ""

    def feed(self, piece: str) -> Tensor:
        """Take a piece; no id is certain yet.

        Raises:
            TextTooLong: the pieces together exceed the limit.
        """
        if len(self._text) + len(piece) > MAX_CHARS:
            raise TextTooLong(f"More than {MAX_CHARS} characters without an end.")
        self._text += piece
        return NO_IDS

    def end(self) -> Tensor:
        """All ids, [num_tokens] int64.

        Raises:
            EmptyText: nothing in the text can be spoken.
        """
        return self._input.encode(clean(self._text))
