"""Draws frames from the language model, seven codes each, on the slots of the engine's step loop.

Codes are drawn with addressed random numbers: the first code of a frame with the talker's settings,
the other six with the subtalker's. The repetition penalty applies only to first codes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from qwen_megakernel.decoders.frame_decoder import OneByOneDecoder, Taps
from qwen_megakernel.decoders.sampling import draw, penalized
from qwen_megakernel.decoders.slots import DecoderSizes, SlotState
from qwen_megakernel.errors import (
    TextTooLong,
    TokenOrderError,
    UsageError,
    check_choice,
    check_counts,
)
from qwen_megakernel.records import Prefill, TextIds
from qwen_megakernel.sheen.codes import CODES_PER_FRAME
from qwen_megakernel.sheen.language_model import LanguageModel
from qwen_megakernel.sheen.tokens import AudioTokens
from qwen_megakernel.speech_options import Sampling, SpeechOptions

# "repair" offers the model at each place only the tokens that belong there. "refuse" offers the
# whole vocabulary, and ends the stream with an error at the first token out of place.
ORDERS = ("repair", "refuse")

NO_IDS = torch.empty(0, dtype=torch.int64)


def num_positions(max_prompt: int, max_frames: int, limit: int) -> int:
    """Return the number of positions of a prompt and its frames, if the model has as many."""
    needed = max_prompt + CODES_PER_FRAME * max_frames
    if needed > limit:
        raise UsageError(
            f"max_frames is {max_frames}, which with the prompt needs {needed} positions; the "
            f"model has {limit}.",
            hint=f"Set max_frames to {(limit - max_prompt) // CODES_PER_FRAME} or less.",
        )
    return needed


class Prompts:
    """Builds the prompt from text ids: the text, then <audio_start>."""

    def __init__(self, tokens: AudioTokens):
        self._start = torch.tensor([tokens.start_id])

    def build(self, ids: TextIds, request: SpeechOptions, *, text_open: bool = False) -> Prefill:
        """Return a prompt whose rows are ids, [num_text_tokens + 1] int64; no text trails."""
        assert not text_open, "this text must be complete"
        return Prefill(torch.cat([ids.body, self._start]), NO_IDS, NO_IDS)

    def text_rows(self, ids: Tensor) -> Tensor:
        return ids

    def end_rows(self) -> Tensor:
        return NO_IDS


@dataclass(slots=True, kw_only=True)
class _Part(SlotState):
    """The counts of one part of an utterance, with its tokens."""

    seen: Tensor  # [codebook_size] bool: which first codes were drawn
    unread: list[int] = field(default_factory=list)  # tokens the model has not read yet


class SheenDecoder(OneByOneDecoder[_Part]):
    """Draws the frames of several streams.

    Args:
        tokens: the ids of the audio tokens in the model's vocabulary.
        num_slots: number of streams at the same time.
        order: one of `ORDERS`. With "refuse", a token out of its place is a TokenOrderError.
    """

    num_code_groups = CODES_PER_FRAME

    def __init__(
        self,
        model: LanguageModel,
        tokens: AudioTokens,
        *,
        num_slots: int,
        max_prompt: int,
        max_frames: int,
        order: str = "repair",
    ):
        check_choice("order", order, ORDERS)
        check_counts(num_slots=num_slots, max_frames=max_frames)
        # Device and dtype are those of the draws; the model has its own.
        sizes = max_prompt + max_frames, torch.device("cpu"), torch.float32, max_frames
        super().__init__(DecoderSizes(num_slots, *sizes))
        self._model, self._tokens, self._order = model, tokens, order

    def _check_prompt(self, num_positions: int) -> None:
        most = self.max_positions - self.max_frames
        if num_positions > most:
            raise TextTooLong(
                f"The text has {num_positions} tokens; this voice was trained with at most "
                f"{most}, audio included.",
                hint='Leave split at "auto", or send the text in sentences.',
            )

    def _new_state(self, slot: int, sampling: Sampling, seed: int, part: int) -> _Part:
        self._model.begin(slot)
        seen = torch.zeros(self._tokens.codebook_size, dtype=torch.bool)
        return _Part(sampling, seed, part, seen=seen)

    def _run_prompt(self, slot: int, embeds: Tensor, pad_embed: Tensor) -> None:
        self._state(slot).unread = embeds.tolist()  # the model reads them with the first frame

    def _write_text(self, slot: int, rows: Tensor) -> None:
        raise AssertionError("a prompt has all of the text")

    def _frame(self, slot: int, forced: Tensor | None, taps: Taps | None) -> list[int] | None:
        state = self._state(slot)
        codes: list[int] = []
        for place in range(CODES_PER_FRAME):
            hidden = self._model.read(slot, state.unread)
            code = self._draw(state, place, hidden)
            if code is None:
                return None
            codes.append(code)
            state.unread = [self._tokens.first_of_place(place) + code]
        state.seen[codes[0]] = True
        return codes

    def _draw(self, state: _Part, place: int, hidden: Tensor) -> int | None:
        """Draw one code; None for <audio_end>, which only the first place may hold."""
        tokens, size = self._tokens, self._tokens.codebook_size
        how = state.sampling.predictor if place else state.sampling.talker
        first = tokens.first_of_place(place)
        may_end = place == 0 and state.frame > 0
        if self._order == "refuse":
            offset, logits = 0, self._model.logits(hidden).cpu()
        else:
            offset, logits = first, self._model.logits(hidden, first, size).cpu()
            if may_end:  # appended as the token after the codes
                end = self._model.logits(hidden, tokens.end_id, 1).cpu()
                logits = torch.cat([logits, end])
        if place == 0:
            own = logits[first - offset : first - offset + size]
            own.copy_(penalized(own, state.seen, how.repetition_penalty))
        address = {"seed": state.seed, "part": state.part, "frame": state.frame}
        drawn = draw(logits, how, **address, codebook=place)
        if self._order == "repair":
            return None if drawn == size else drawn
        if drawn == tokens.end_id and may_end:
            return None
        try:
            return tokens.code_at(place, drawn)
        except TokenOrderError as error:
            raise TokenOrderError(
                f"Frame {state.frame + 1}: {error.what}",
                error.why,
                'With order "repair" the model is offered only the right tokens.',
            ) from error
