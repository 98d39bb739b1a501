"""The protocols of decoder, prompts and vocoder that the step loop drives.

`FrameDecoder`, `PromptBuilder` and `Vocoder` implement them for Qwen3-TTS; `sheen` has its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from qwen_megakernel.records import SpeechRequest, StepResult, TextIds
from qwen_megakernel.speech_options import Sampling

MAX_FRAMES_PER_STEP = 4  # keeps a launch short for new streams and barge-in (docs/kernel.md)


class Decoder(Protocol):
    """Turns prompts into codec frames, on `num_slots` slots that do not influence each other."""

    num_slots: int
    max_frames: int  # for each part of an utterance

    def prefill(
        self,
        slot: int,
        prefill: Any,
        sampling: Sampling,
        *,
        seed: int,
        part: int,
        text_open: bool = False,
    ) -> None:
        """Start one part of an utterance in `slot`; `prefill` is from `Prompts.build`."""

    def add_text(self, slot: int, rows: Any) -> None:
        """Take text of an open part, from `Prompts.text_rows` or `end_rows`."""

    def close_text(self, slot: int) -> None:
        """Declare the text of the open part complete."""

    def frames_ready(self, slot: int) -> int:
        """Return how many frames can be drawn now."""

    def launch(self, slots: Sequence[int], num_frames: int) -> Callable[[], StepResult]:
        """Start to draw up to `num_frames` frames in `slots`; returns a function that waits."""

    def cancel(self) -> None:
        """End the running launch, or else the next one, before it begins another frame.

        Any thread may call this; it never waits.
        """


class Prompts(Protocol):
    """Turns token ids into the input of a decoder."""

    def build(self, ids: TextIds, request: SpeechRequest, *, text_open: bool = False) -> Any:
        """Return the prompt of one part of an utterance; `request` is that of `TextEncoding`."""

    def text_rows(self, ids: Tensor) -> Any:
        """Return further text of an open part."""

    def end_rows(self) -> Any:
        """Return the rows that follow the last text of an open part."""


class FrameVocoder(Protocol):
    """Turns codec frames into PCM, in chunks that, joined, equal the PCM of the whole utterance."""

    lookahead: int  # frames it needs after those that it turns into audio; 0: it is causal

    def new_state(self) -> Any:
        """Return the state of a stream before its first frame."""

    def warm(self, codes: Any, state: Any) -> None:
        """Advance a state over frames without computing their audio."""

    def step(self, codes: Tensor, states: Sequence[Any]) -> Tensor:
        """[n, num_frames, num_code_groups] codes -> [n, num_frames * samples_per_frame] float32.

        Where `lookahead` is not 0, a third argument [n, k, num_code_groups] has the frames after
        `codes`: `lookahead` of them, or fewer at the end of a part.
        """

    def decode(self, codes: Any) -> Any:
        """Decode a whole utterance at once."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of one model; made and used on the loop's thread."""

    decoder: Decoder
    prompts: Prompts
    vocoder: FrameVocoder
    is_asynchronous: bool = False  # decoder and vocoder return before the device is done


def add_time(spent_ms: dict[str, float], stage: str, started: float) -> float:
    """Add the milliseconds since `started` (`time.perf_counter()`) to a stage; return them."""
    spent = 1000 * (time.perf_counter() - started)
    spent_ms[stage] += spent
    return spent
