"""Represents SNAC codes, and the two marks around them, as tokens of a Qwen2 tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qwen_megakernel.checkpoint.hub import without_advice
from qwen_megakernel.errors import ModelFilesError, TokenOrderError
from qwen_megakernel.sheen.codes import CODES_PER_FRAME, LAYER_OF_PLACE, NUM_LAYERS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

AUDIO_START = "<audio_start>"
AUDIO_END = "<audio_end>"


def code_token(layer: int, code: int) -> str:
    """Return the token of a code: "<snac_l1_1234>" for layer 0 and code 1234."""
    return f"<snac_l{layer + 1}_{code}>"


def audio_token_names(codebook_size: int) -> list[str]:
    """Return all added tokens, in the order of their ids: layers 1, 2, 3, then the two marks."""
    codes = [
        code_token(layer, code) for layer in range(NUM_LAYERS) for code in range(codebook_size)
    ]
    return [*codes, AUDIO_START, AUDIO_END]


@dataclass(frozen=True, slots=True)
class AudioTokens:
    """The ids of the audio tokens in a vocabulary: consecutive, from `first_id` on."""

    first_id: int
    codebook_size: int

    @property
    def start_id(self) -> int:
        return self.first_id + NUM_LAYERS * self.codebook_size

    @property
    def end_id(self) -> int:
        return self.start_id + 1

    @property
    def num_tokens(self) -> int:
        return NUM_LAYERS * self.codebook_size + 2

    def first_of_place(self, place: int) -> int:
        """Return the id of code 0 at a place 0 .. 6 of a frame."""
        return self.first_id + LAYER_OF_PLACE[place] * self.codebook_size

    def ids_of(self, frames: np.ndarray) -> list[int]:
        """[num_frames, 7] codes -> 7 * num_frames token ids."""
        firsts = [self.first_of_place(place) for place in range(CODES_PER_FRAME)]
        return (np.asarray(frames, dtype=np.int64) + firsts).reshape(-1).tolist()

    def code_at(self, place: int, token_id: int) -> int:
        """Return the code of a token at a place of a frame, or raise TokenOrderError."""
        code = token_id - self.first_of_place(place)
        if not 0 <= code < self.codebook_size:
            raise TokenOrderError(
                f"{self.describe(token_id)} is at place {place + 1} of a frame, where layer "
                f"{LAYER_OF_PLACE[place] + 1} belongs.",
                "The model has not learned the order of the codes; train it longer.",
            )
        return code

    def frames_of(self, ids: list[int]) -> np.ndarray:
        """Undo `ids_of`, or raise TokenOrderError, as for an incomplete last frame."""
        codes = [self.code_at(at % CODES_PER_FRAME, token_id) for at, token_id in enumerate(ids)]
        if len(codes) % CODES_PER_FRAME:
            raise TokenOrderError(
                f"{len(codes)} audio tokens are no whole number of frames of {CODES_PER_FRAME}."
            )
        return np.array(codes, dtype=np.int32).reshape(-1, CODES_PER_FRAME)

    def describe(self, token_id: int) -> str:
        if token_id == self.start_id:
            return AUDIO_START
        if token_id == self.end_id:
            return AUDIO_END
        layer, code = divmod(token_id - self.first_id, self.codebook_size)
        if 0 <= layer < NUM_LAYERS:
            return code_token(layer, code)
        return f"text token {token_id}"


def add_audio_tokens(tokenizer: PreTrainedTokenizerBase, codebook_size: int) -> AudioTokens:
    """Add the audio tokens to the end of a vocabulary, or find them if they were added before."""
    from tokenizers import AddedToken

    names = audio_token_names(codebook_size)
    if names[0] not in tokenizer.get_vocab():
        # Special, so that `text_ids` can distinguish them from the same characters in a text.
        tokenizer.add_tokens(
            [AddedToken(name, normalized=False, special=True) for name in names],
            special_tokens=True,
        )
    return find_audio_tokens(tokenizer, codebook_size)


def find_audio_tokens(tokenizer: PreTrainedTokenizerBase, codebook_size: int) -> AudioTokens:
    """Find the audio tokens of a tokenizer.

    Raises:
        ModelFilesError: some are missing, or their ids are not consecutive and in order.
    """
    vocab = tokenizer.get_vocab()
    names = audio_token_names(codebook_size)
    missing = [name for name in names if name not in vocab]
    if missing:
        raise ModelFilesError(
            f"The tokenizer lacks {len(missing)} of {len(names)} audio tokens: "
            f"{', '.join(missing[:3])}.",
            hint="Make it with: python -m qwen_megakernel sheen train",
        )
    first = vocab[names[0]]
    misplaced = [name for at, name in enumerate(names) if vocab[name] != first + at]
    if misplaced:
        raise ModelFilesError(
            f"Audio token {misplaced[0]} has id {vocab[misplaced[0]]}; "
            f"after the previous one, it must have {first + names.index(misplaced[0])}.",
            "The tokenizer was changed after training, or belongs to another model.",
        )
    return AudioTokens(first, codebook_size)


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of plain text; characters that spell a token, like "<audio_end>", are text."""
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def resize_embeddings(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give every token of the tokenizer a row; existing rows are kept, even unused ones."""
    num_rows = len(model.get_input_embeddings().get_parameter("weight"))
    if len(tokenizer) > num_rows:
        with without_advice():  # hides advice on how the new rows are drawn
            model.resize_token_embeddings(len(tokenizer))
