"""The decoder, the prompts and the vocoder that the step loop drives.

`PromptBuilder` and `Vocoder` implement the protocols for Qwen3-TTS; `sheen` has its own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from qwen_megakernel.decoders.frame_decoder import FrameDecoder
from qwen_megakernel.records import Prefill, TextIds
from qwen_megakernel.speech_options import SpeechOptions

MAX_FRAMES_PER_STEP = 4  # keeps a launch short for new streams and barge-in (docs/kernel.md)


class Prompts(Protocol):
    """Turns token ids into the input of a decoder."""

    def build(self, ids: TextIds, request: SpeechOptions, *, text_open: bool = False) -> Prefill:
        """Return the prompt of one part of an utterance; `request` is that of `TextEncoding`."""

    def text_rows(self, ids: Tensor) -> Tensor:
        """Return further text of an open part."""

    def end_rows(self) -> Tensor:
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

    decoder: FrameDecoder
    prompts: Prompts
    vocoder: FrameVocoder
    is_asynchronous: bool = False  # decoder and vocoder return before the device is done


def add_time(spent_ms: dict[str, float], stage: str, started: float) -> float:
    """Add the milliseconds since `started` (`time.perf_counter()`) to a stage; return them."""
    spent = 1000 * (time.perf_counter() - started)
    spent_ms[stage] += spent
    return spent
