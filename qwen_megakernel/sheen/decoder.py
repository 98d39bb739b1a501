"""Frames from the language model: seven draws each, on slots, as the engine's step loop wants them.

`Prompts` and `SheenDecoder` are stages (`stages.Prompts`, `stages.Decoder`). A draw is the
engine's: addressed random numbers, the first code of a frame with the talker's settings and the
other six with the subtalker's, the repetition penalty on first codes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.decoders.sampling import draw, penalize
from qwen_megakernel.errors import TextTooLong, TokenOrderError, UsageError
from qwen_megakernel.records import Sampling, SpeechRequest, StepResult, TextIds
from qwen_megakernel.sheen.codes import CODES_PER_FRAME
from qwen_megakernel.sheen.language_model import LanguageModel
from qwen_megakernel.sheen.tokens import AudioTokens

# What a model may say: "repair" offers it at each place only the tokens that belong there, "refuse"
# offers the whole vocabulary and ends the stream with an error at the first token out of place.
ORDERS = ("repair", "refuse")

NO_IDS = torch.empty(0, dtype=torch.int64)


def num_positions(max_prompt: int, max_frames: int, limit: int) -> int:
    """Positions that a prompt and its frames take.

    Args:
        max_prompt: tokens of a prompt.
        max_frames: of one part of a text.
        limit: of the model.
    Raises:
        UsageError: they are more than the model has.
    """
    needed = max_prompt + CODES_PER_FRAME * max_frames
    if needed > limit:
        raise UsageError(
            f"max_frames is {max_frames}, which with the prompt takes {needed} positions; the "
            f"model has {limit}.",
            hint=f"Set max_frames to {(limit - max_prompt) // CODES_PER_FRAME} or less.",
        )
    return needed


class Prompts:
    """Text ids to the prompt: the text, then <audio_start>."""

    def __init__(self, tokens: AudioTokens):
        self._start = torch.tensor([tokens.start_id])

    def build(self, ids: TextIds, request: SpeechRequest, *, text_open: bool = False) -> Tensor:
        """[num_text_tokens + 1] int64."""
        return torch.cat([ids.body, self._start])

    def text_rows(self, ids: Tensor) -> Tensor:
        """Text that comes after its prompt: there is none, see `text_input.WholeText`."""
        return ids

    def end_rows(self) -> Tensor:
        """Nothing follows the text."""
        return NO_IDS


@dataclass(slots=True)
class _Part:
    """One part of an utterance."""

    sampling: Sampling
    seed: int
    part: int
    seen: Tensor  # [codebook_size] bool: first codes that were drawn
    unread: list[int] = field(default_factory=list)  # tokens the model has not read yet
    num_frames: int = 0
    is_open: bool = False


class SheenDecoder:
    """Draws frames.

    Args:
        model: the layers.
        tokens: where the audio tokens are in its vocabulary.
        num_slots: streams at the same time; they take turns.
        max_prompt: tokens of a prompt.
        max_frames: of one part of a text.
        order: one of `ORDERS`.
    Raises:
        UsageError: a value is out of range.
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
        if order not in ORDERS:
            raise UsageError(f"order is {order!r}; known: {', '.join(ORDERS)}.")
        if num_slots < 1 or max_frames < 1:
            raise UsageError(f"num_slots is {num_slots}, max_frames {max_frames}; need 1 or more.")
        self.num_slots, self.max_frames = num_slots, max_frames
        self._model, self._tokens, self._order = model, tokens, order
        self._max_prompt = max_prompt
        self._slots: list[_Part | None] = [None] * num_slots
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
        """Start one part of an utterance in `slot`, whatever was there before.

        Args:
            prefill: [num_tokens] int64, from `Prompts.build`.
            text_open: `close_text` will follow; until then nothing is drawn.
        Raises:
            TextTooLong: more tokens than the model was trained with.
        """
        if len(prefill) > self._max_prompt:
            raise TextTooLong(
                f"The text takes {len(prefill)} tokens; this voice was trained with at most "
                f"{self._max_prompt}, audio included.",
                hint="Leave split on, or speak it in sentences.",
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
        """Take nothing: a text is whole when its prompt is built."""
        assert not len(rows)

    def close_text(self, slot: int) -> None:
        """The text is whole."""
        self._slots[slot].is_open = False

    def frames_ready(self, slot: int) -> int:
        """Frames that can be drawn now."""
        state = self._slots[slot]
        return 0 if state.is_open else self.max_frames - state.num_frames

    @torch.inference_mode()
    def step(self, slots: Sequence[int], num_frames: int) -> StepResult:
        """Draw up to `num_frames` frames in every slot of `slots`; fewer after `cancel`.

        Raises:
            TokenOrderError: with order "refuse", a token out of its place.
        """
        codes = np.zeros((len(slots), num_frames, CODES_PER_FRAME), dtype=np.int32)
        counts, ended = [0] * len(slots), [False] * len(slots)
        for index in range(num_frames):
            if self._cancelled:
                break
            for row, slot in enumerate(slots):
                frame = None if ended[row] else self._draw_frame(slot)
                if frame is None:
                    ended[row] = True
                else:
                    codes[row, index] = frame
                    counts[row] += 1
        self._cancelled = False
        return StepResult(codes, tuple(counts), tuple(ended))

    def launch(self, slots: Sequence[int], num_frames: int) -> Callable[[], StepResult]:
        """`step`, as the engine calls it; the frames are there when this returns."""
        result = self.step(slots, num_frames)
        return lambda: result

    def cancel(self) -> None:
        """End the running `step`, else the next one, before it begins another frame.

        From any thread; never waits.
        """
        self._cancelled = True

    def _draw_frame(self, slot: int) -> list[int] | None:
        """The seven codes of the next frame, or None at the end."""
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
        """One code; None for <audio_end>, which only the first place may hold."""
        tokens, sampling, size = self._tokens, state.sampling, self._tokens.codebook_size
        first = tokens.first_of_place(place)
        may_end = place == 0 and state.num_frames > 0
        if self._order == "refuse":
            offset, logits = 0, self._model.logits(hidden).cpu()
        else:
            offset, logits = first, self._model.logits(hidden, first, size).cpu()
            if may_end:  # as the token behind the codes
                end = self._model.logits(hidden, tokens.end_id, 1).cpu()
                logits = torch.cat([logits, end])
        if place == 0:
            own = logits[first - offset : first - offset + size]
            own.copy_(penalize(own, state.seen, sampling.repetition_penalty))
        prefix = "" if place == 0 else "subtalker_"
        names = ("do_sample", "temperature", "top_k", "top_p")
        drawn = draw(
            logits,
            **{name: getattr(sampling, prefix + name) for name in names},
            seed=state.seed,
            part=state.part,
            frame=state.num_frames,
            codebook=place,
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
                'With order "repair" only the right tokens are offered.',
            ) from error
