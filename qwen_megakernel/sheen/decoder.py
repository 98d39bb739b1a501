"""Draws frames from the language model, seven codes each, on the slots of the engine's step loop.

`Prompts` and `SheenDecoder` are stages (`stages.Prompts`, `stages.Decoder`). Codes are drawn with
addressed random numbers: the first code of a frame with the talker's settings, the other six with
the subtalker's. The repetition penalty applies only to first codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.decoders.sampling import draw, penalize
from qwen_megakernel.errors import (
    GenerationError,
    QwenTTSError,
    TextTooLong,
    TokenOrderError,
    UsageError,
    check_choice,
)
from qwen_megakernel.records import SpeechRequest, StepResult, TextIds
from qwen_megakernel.sheen.codes import CODES_PER_FRAME
from qwen_megakernel.sheen.language_model import LanguageModel
from qwen_megakernel.sheen.tokens import AudioTokens
from qwen_megakernel.speech_options import Sampling

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

    def build(self, ids: TextIds, request: SpeechRequest, *, text_open: bool = False) -> Tensor:
        """Return the prompt, [num_text_tokens + 1] int64."""
        return torch.cat([ids.body, self._start])

    def text_rows(self, ids: Tensor) -> Tensor:
        return ids

    def end_rows(self) -> Tensor:
        return NO_IDS


@dataclass(slots=True)
class _Part:
    """One part of an utterance."""

    sampling: Sampling
    seed: int
    part: int
    seen: Tensor  # [codebook_size] bool: which first codes were drawn
    unread: list[int] = field(default_factory=list)  # tokens the model has not read yet
    num_frames: int = 0
    is_open: bool = False


class SheenDecoder:
    """Draws the frames of several streams.

    Args:
        tokens: the ids of the audio tokens in the model's vocabulary.
        num_slots: number of streams at the same time; each step decodes one after another.
        order: one of `ORDERS`.
    """

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
        if num_slots < 1 or max_frames < 1:
            raise UsageError(f"num_slots is {num_slots}, max_frames {max_frames}; need 1 or more.")
        self.num_slots, self.max_frames = num_slots, max_frames
        self._model, self._tokens, self._order = model, tokens, order
        self._max_prompt = max_prompt
        self._slots: dict[int, _Part] = {}
        self._cancelled = False

    def prefill(
        self,
        slot: int,
        prefill: Tensor,
        sampling: Sampling,
        *,
        seed: int,
        part: int,
        text_open: bool = False,
    ) -> None:
        """Start one part of an utterance in `slot`, which forgets any earlier part.

        Args:
            prefill: [num_tokens] int64, from `Prompts.build`.
            text_open: `close_text` will follow; until then no frame is drawn.
        """
        if len(prefill) > self._max_prompt:
            raise TextTooLong(
                f"The text has {len(prefill)} tokens; this voice was trained with at most "
                f"{self._max_prompt}, audio included.",
                hint='Leave split at "auto", or send the text in sentences.',
            )
        self._model.begin(slot)
        self._slots[slot] = _Part(
            sampling,
            seed,
            part,
            seen=torch.zeros(self._tokens.codebook_size, dtype=torch.bool),
            unread=prefill.tolist(),
            is_open=text_open,
        )

    def add_text(self, slot: int, rows: Tensor) -> None:
        assert not len(rows)

    def close_text(self, slot: int) -> None:
        self._slots[slot].is_open = False

    def frames_ready(self, slot: int) -> int:
        state = self._slots[slot]
        return 0 if state.is_open else self.max_frames - state.num_frames

    @torch.inference_mode()
    def step(self, slots: Sequence[int], num_frames: int) -> StepResult:
        """Draw up to `num_frames` frames in every slot of `slots`; fewer after `cancel`.

        Raises:
            TokenOrderError, GenerationError: the order is "refuse", and a token is out of its
                place, or logits are not finite, and no stream of `slots` is left. If some are left,
                `StepResult.failures` lists the others.
        """
        codes = np.zeros((len(slots), num_frames, CODES_PER_FRAME), dtype=np.int32)
        counts, ended = [0] * len(slots), [False] * len(slots)
        failures: dict[int, QwenTTSError] = {}
        for index in range(num_frames):
            if self._cancelled:
                break
            for row, slot in enumerate(slots):
                if ended[row] or row in failures:
                    continue
                try:
                    frame = self._draw_frame(slot)
                except GenerationError as error:
                    failures[row] = error
                    continue
                if frame is None:
                    ended[row] = True
                else:
                    codes[row, index] = frame
                    counts[row] += 1
        self._cancelled = False
        if len(failures) == len(slots):
            raise failures[0]
        return StepResult(codes, tuple(counts), tuple(ended), failures)

    def launch(self, slots: Sequence[int], num_frames: int) -> Callable[[], StepResult]:
        result = self.step(slots, num_frames)
        return lambda: result

    def cancel(self) -> None:
        self._cancelled = True

    def _draw_frame(self, slot: int) -> list[int] | None:
        """Draw the seven codes of the next frame; None at the end."""
        state = self._slots[slot]
        codes: list[int] = []
        for place in range(CODES_PER_FRAME):
            hidden = self._model.read(slot, state.unread)
            code = self._draw(state, place, hidden)
            if code is None:
                return None
            codes.append(code)
            state.unread = [self._tokens.first_of_place(place) + code]
        state.seen[codes[0]] = True
        state.num_frames += 1
        return codes

    def _draw(self, state: _Part, place: int, hidden: Tensor) -> int | None:
        """Draw one code; None for <audio_end>, which only the first place may hold."""
        tokens, size = self._tokens, self._tokens.codebook_size
        how = state.sampling.predictor if place else state.sampling.talker
        first = tokens.first_of_place(place)
        may_end = place == 0 and state.num_frames > 0
        if self._order == "refuse":
            offset, logits = 0, self._model.logits(hidden).cpu()
        else:
            offset, logits = first, self._model.logits(hidden, first, size).cpu()
            if may_end:  # appended as the token after the codes
                end = self._model.logits(hidden, tokens.end_id, 1).cpu()
                logits = torch.cat([logits, end])
        if place == 0:
            own = logits[first - offset : first - offset + size]
            own.copy_(penalize(own, state.seen, how))
        drawn = draw(
            logits, how, seed=state.seed, part=state.part, frame=state.num_frames, codebook=place
        )
        if self._order == "repair":
            return None if drawn == size else drawn
        if drawn == tokens.end_id and may_end:
            return None
        try:
            return tokens.code_at(place, drawn)
        except TokenOrderError as error:
            raise TokenOrderError(
                f"Frame {state.num_frames + 1}: {error.what}",
                error.why,
                'With order "repair" the model is offered only the right tokens.',
            ) from error
