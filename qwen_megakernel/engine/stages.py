"""What the step loop drives: any decoder, prompts and vocoder with these faces.

`FrameDecoder`, `PromptBuilder` and `Vocoder` are those of Qwen3-TTS; `sheen` has its own three.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from qwen_megakernel.records import Sampling, SpeechRequest, StepResult, TextIds

MAX_FRAMES_PER_STEP = 4  # a launch stays short enough for newcomers and barge-in (docs/kernel.md)


class Decoder(Protocol):
    """Prompts in, codec frames out, on `num_slots` slots that do not influence each other."""

    num_slots: int
    max_frames: int  # of one part of an utterance

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
        """Start one part of an utterance in `slot`; `prefill` is what `Prompts.build` made."""

    def add_text(self, slot: int, rows: Any) -> None:
        """Take text of an open part, from `Prompts.text_rows` or `end_rows`."""

    def close_text(self, slot: int) -> None:
        """No more text comes."""

    def frames_ready(self, slot: int) -> int:
        """Frames that can be drawn now."""

    def launch(self, slots: Sequence[int], num_frames: int) -> Callable[[], StepResult]:
        """Start drawing up to `num_frames` frames in every slot of `slots`; fewer after `cancel`.

        Returns:
            A function that waits for the frames.
        """

    def cancel(self) -> None:
        """End the running launch, else the next one, before it begins another frame.

        From any thread; never waits.
        """


class Prompts(Protocol):
    """Token ids in, what a decoder takes out."""

    def build(self, ids: TextIds, request: SpeechRequest, *, text_open: bool = False) -> Any:
        """The prompt of one part of an utterance."""

    def text_rows(self, ids: Tensor) -> Any:
        """Further text of an open part."""

    def end_rows(self) -> Any:
        """What follows the last text of an open part."""


class FrameVocoder(Protocol):
    """Codec frames in, PCM out, in chunks that together equal the whole."""

    lookahead: int  # frames it must see behind those that it turns into audio; 0: it is causal

    def new_state(self) -> Any:
        """The state of a stream that has decoded nothing yet."""

    def warm(self, codes: Any, state: Any) -> None:
        """Let a state hear frames whose audio nobody wants."""

    def step(self, codes: Tensor, states: Sequence[Any], *ahead: Tensor) -> Tensor:
        """[n, num_frames, num_code_groups] -> [n, num_frames * samples_per_frame] float32.

        Where `lookahead` is not 0, `ahead` is [n, k, num_code_groups]: the frames behind `codes`,
        `lookahead` of them, or at the end of a part what is left.
        """

    def decode(self, codes: Any) -> Any:
        """A whole utterance at once."""


@dataclass(frozen=True, slots=True)
class Stages:
    """The three of one model; made and used on the loop's thread."""

    decoder: Decoder
    prompts: Prompts
    vocoder: FrameVocoder
    is_asynchronous: bool = False  # decoder and vocoder return before the device is done


class StageTimes:
    """Milliseconds of device work by stage, of all streams together."""

    def __init__(self) -> None:
        self.ms = {"prefill": 0.0, "decode": 0.0, "vocoder": 0.0}

    def add(self, stage: str, started: float) -> float:
        """Milliseconds since `started`, a `time.perf_counter()`, added to the stage's total."""
        spent = 1000 * (time.perf_counter() - started)
        self.ms[stage] += spent
        return spent
