"""Turns text into token ids, whole or as it arrives.

The tokenizer is the official one: byte-level BPE over NFC text, cut into words by the plain Qwen2
expression. Three things differ from the official wrapper, on purpose:

* Chat markup typed by a user ("<|im_end|>") is ordinary text. The official wrapper obeys it, so
  the author of a text can end the turn or open another role.
* White space at both ends is dropped. It has no sound, and a leading newline would fuse with the
  newline of the role, which the model knows as one token.
* Characters without a meaning in text are dropped, see `cleaning.clean`.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.checkpoint.config_fields import read_json
from qwen_megakernel.errors import ModelFilesError, RecordingError, UsageError
from qwen_megakernel.records import TextIds
from qwen_megakernel.speech_options import SpeechOptions
from qwen_megakernel.text.cleaning import (
    MAX_CHARS,
    check_length,
    clean,
    drop_controls,
    empty_text,
    excerpt,
)
from qwen_megakernel.text.parts import WAITING_PART_CHARS, TextEncoding
from qwen_megakernel.text.sentences import unspeakable
from qwen_megakernel.voice import Voice

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Where a word ends for BPE. Source: transformers 4.57.3, tokenization_qwen2.PRETOKENIZE_REGEX. The
# official wrapper can end up with Mistral's expression instead (docs/model.md, section 2).
_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_MAX_WORD_CHARS = 256


class TextTokenizer:
    """The tokenizer of one checkpoint.

    Args:
        folder: holds `vocab.json` and `merges.txt`.
        config: supplies the ids of the chat markup and the size of the text vocabulary.
    Raises:
        ModelFilesError: a file is missing or damaged, or does not fit `config`.
    """

    def __init__(self, folder: Path, config: ModelConfig):
        self._tokenizer = _load_bpe(folder, config.talker.text_vocab_size)
        self._im_start, self._im_end = config.im_start_id, config.im_end_id
        role = self.token_ids("assistant\n")
        if len(role) != 2:
            raise ModelFilesError(
                f"{folder / 'vocab.json'}: the role has {len(role)} tokens; it must have 2.",
                'The prompt begins with <|im_start|>, "assistant" and a newline, one token each.',
            )
        self._role = _tensor([self._im_start, *role])

    def encoding(self, request: SpeechOptions) -> TextEncoding:
        """Return how the parts of a request's text become ids.

        A prompt that has all of its part's text, because the voice is used in context or
        `text_feed` is "full", waits until the part is complete.

        Raises:
            RecordingError: nothing in the transcript of the request's voice can be spoken.
        """
        voice = request.voice if isinstance(request.voice, Voice) else None
        ids = TextIds(
            self._role,
            _tensor([]),
            instruct=self._encode_instruct(request.instruct),
            reference=self._encode_transcript(voice.transcript if voice else None),
        )
        if request.text_feed == "full" or (voice and voice.in_context):
            return TextEncoding(request, ids, self.ids, None, open_part_chars=WAITING_PART_CHARS)
        return TextEncoding(request, ids, self.ids, self.stream)

    def encode(
        self, text: str, *, instruct: str | None = None, transcript: str | None = None
    ) -> TextIds:
        """Tokenise one part of an utterance, with the texts before it in the prompt.

        Args:
            text: the text to speak; it is cleaned first.
            instruct: how to say it; None and "" mean no instruct rows.
            transcript: the transcript of an in-context voice's recording.
        Returns:
            The ids, equal to those of the official templates for the clean texts.
        Raises:
            EmptyText: nothing in `text` can be spoken.
            RecordingError: nothing in `transcript` can be spoken.
        Source: QwenLM/Qwen3-TTS, qwen3_tts_model.py, `_build_*_text` and the slices in `generate`.
        """
        body = clean(text)
        if unspeakable(body):
            raise empty_text(body)
        return TextIds(
            role=self._role,
            body=self.ids(body),
            instruct=self._encode_instruct(instruct),
            reference=self._encode_transcript(transcript),
        )

    def stream(self, max_chars: int = MAX_CHARS) -> TextStream:
        return TextStream(self, max_chars)

    def ids(self, text: str) -> Tensor:
        return _tensor(self.token_ids(text))

    def token_ids(self, text: str) -> list[int]:
        """Return the ids of plain text, without cleaning it or obeying markup."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def normalize(self, text: str) -> str:
        """Return the text in NFC, as the tokenizer sees it."""
        return self._tokenizer.normalizer.normalize_str(text)

    def leading_words(self, text: str, limit: int) -> tuple[list[int], int]:
        """Return the ids of the words of an NFC text that end within `limit`, and the end of the
        last one.

        The end of a word depends on the text after it, so this is not `token_ids(text[:limit])`:
        before a digit, two spaces are two words; at the end of a text they are one.
        """
        ids: list[int] = []
        length = 0
        for word, (_, end) in self._tokenizer.pre_tokenizer.pre_tokenize_str(text):
            if end > limit:
                break
            ids += [token.id for token in self._tokenizer.model.tokenize(word)]
            length = end
        return ids, length

    def _encode_instruct(self, instruct: str | None) -> Tensor | None:
        instruct = clean(instruct or "")
        if not instruct:
            return None
        turn = [self._im_start, *self.token_ids("user\n"), *self.token_ids(instruct), self._im_end]
        return _tensor(turn + self.token_ids("\n"))

    def _encode_transcript(self, transcript: str | None) -> Tensor | None:
        if transcript is None:
            return None
        transcript = clean(transcript)
        if unspeakable(transcript):
            raise RecordingError(
                f'The transcript of the reference is "{excerpt(transcript)}".',
                "In-context cloning needs what the recording says, word for word.",
                "Give the full transcript, or clone by x-vector alone.",
            )
        return self.ids(transcript)


class TextStream:
    """Tokenises a text that arrives in pieces. Not thread-safe.

    However a text is cut, the ids of all `feed` calls and of `end` together are
    `encode(text).body`. The stream therefore holds back what a later piece could still change: the
    last word (in scripts without spaces, all text since the last punctuation), white space after
    it, and everything before the first letter or digit.
    """

    def __init__(self, tokenizer: TextTokenizer, max_chars: int = MAX_CHARS):
        self._tokenizer = tokenizer
        self._max_chars = max_chars
        self._num_chars = 0
        self._held = ""  # without control characters, in NFC up to the last words
        self._least = 0  # characters to hold before they are looked at
        self._is_speakable = False
        self._is_ended = False

    def feed(self, piece: str) -> Tensor:
        """Take the next piece of text; returns the ids that later pieces cannot change, often none.

        Raises:
            TextTooLong: the pieces together exceed the limit; this piece is not taken.
        """
        if self._is_ended:
            raise UsageError("The text of this stream has been ended; no more can be fed.")
        check_length(self._num_chars + len(piece), self._max_chars)
        self._num_chars += len(piece)
        piece = drop_controls(piece)
        ends_word = _kind(piece) is None or _kind(piece) != _kind(self._held[-1:])
        self._held += piece
        if not self._is_speakable:
            self._held = self._held.lstrip()
            self._is_speakable = not unspeakable(piece)
        if not (self._is_speakable and ends_word) or len(self._held) < self._least:
            return _tensor([])
        # NFC(NFC(a) + b) == NFC(a + b), so the held text may be kept in NFC.
        self._held = self._tokenizer.normalize(self._held)
        ids, length = self._tokenizer.leading_words(self._held, self._num_certain())
        self._held = self._held[length:]
        # What no word is as long as may go on and on; it is looked at again when it has doubled.
        self._least = 2 * len(self._held) if len(self._held) > _MAX_WORD_CHARS else 0
        return _tensor(ids)

    def end(self) -> Tensor:
        """Close the text; returns the ids that were held back, [num_tokens] int64.

        Raises:
            EmptyText: nothing in the whole text can be spoken, and no id was ever returned.
        """
        if self._is_ended:
            raise UsageError("The text of this stream has already been ended.")
        self._is_ended = True
        if not self._is_speakable:
            raise empty_text(self._held)
        return self._tokenizer.ids(self._held.rstrip())

    def _num_certain(self) -> int:
        """Return how many characters of the held text later pieces cannot change.

        The last word can grow. So can a run of white space (its line ends make one word), which is
        dropped at the end of the text. A combining mark can change the last character of class 0,
        and reach it across other marks.
        """
        last_base = len(self._held) - 1
        while last_base > 0 and unicodedata.combining(self._held[last_base]):
            last_base -= 1
        return min(len(self._held.rstrip()), last_base)


def _kind(text: str) -> str | None:
    """Return the kind of a text's characters, of which any number is one word; None: several."""
    if text.isalpha():
        return "letters"
    if text.isspace():
        return "space"
    return (
        None if not text or any(map(str.isalnum, text)) or any(map(str.isspace, text)) else "marks"
    )


def _tensor(ids: list[int]) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64)


def _load_bpe(folder: Path, text_vocab_size: int) -> Tokenizer:
    """Build the tokenizer from `vocab.json` and `merges.txt`; none of its tokens is special."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    vocab_path, merges_path = folder / "vocab.json", folder / "merges.txt"
    vocab = read_json(vocab_path)
    largest = max(vocab.values(), default=-1)
    if largest >= text_vocab_size:
        raise ModelFilesError(
            f"{vocab_path} has id {largest}; text_vocab_size is {text_vocab_size}.",
            "The vocabulary belongs to another checkpoint.",
        )
    missing = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - vocab.keys())
    if missing:
        raise ModelFilesError(
            f"{vocab_path} lacks {len(missing)} of the 256 byte tokens: {''.join(missing[:5])}",
            "Text with these bytes would lose characters.",
        )
    try:
        lines = merges_path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ModelFilesError(f"Cannot read {merges_path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ModelFilesError(f"{merges_path} is not UTF-8: {error.reason}.") from error
    if lines[0].startswith("#version"):
        del lines[0]
    merges = [tuple(line.split()) for line in lines if line.strip()]
    try:
        bpe = models.BPE(vocab=vocab, merges=merges)
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelFilesError(f"{merges_path} does not fit {vocab_path}: {error}.") from error
    tokenizer = Tokenizer(bpe)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORD), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer
