"""The records that the rooms hand to each other; each validates itself when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from qwen_megakernel.errors import QwenTTSError
from qwen_megakernel.speech_options import (
    MAX_SPEED,
    MAX_VOLUME,
    MIN_SPEED,
    MIN_VOLUME,
    SoundOptions,
)

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["eos", "length", "silence", "repeat", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class Manner:
    """How one part of a text is spoken, relative to its request."""

    language: str | None = None  # None: the request's language
    speed: float = 1.0  # factor that multiplies the request's speed
    volume: float = 0.0  # dB that are added to the request's volume
    voice: str | None = None  # name of the voice; None: the request's voice
    style: str | None = None  # style of the voice; None: the request's style, or its default one

    def sound(self, options: SoundOptions) -> SoundOptions:
        """Return a request's options with this part's speed and volume, clipped to the limits."""
        speed = min(max(options.speed * self.speed, MIN_SPEED), MAX_SPEED)
        volume = min(max(options.volume + self.volume, MIN_VOLUME), MAX_VOLUME)
        return replace(options, speed=speed, volume=volume)


AS_REQUESTED = Manner()  # the manner of a text without markup


@dataclass(frozen=True, slots=True)
class Files:
    """The place of a model's files, which exist but are not checked yet."""

    folder: Path
    name: str  # the name that the user gave
    is_synthetic: bool = False  # random weights
    banner: str | None = None  # a notice that the user should read before listening


@dataclass(frozen=True, slots=True)
class TextIds:
    """What the prompt of one part of an utterance has; ids are int64, on the CPU."""

    role: Tensor  # [3]: <|im_start|>, "assistant", newline
    body: Tensor  # [num_text_tokens]: what is spoken
    instruct: Tensor | None = None  # [num_instruct_tokens], chat markup included
    reference: Tensor | None = None  # [num_reference_tokens]: words of the frames in context (ICL)
    # [num_frames, num_code_groups] int: the frames in context; None: those of the request's voice
    frames: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Prefill:
    """The talker's input for one part of an utterance (docs/model.md, prompt rows)."""

    embeds: Tensor  # [num_positions, hidden_size]
    trailing_text: Tensor  # [num_trailing, hidden_size]: row k is added to frame k's embedding
    pad_embed: Tensor  # [hidden_size]: added once the trailing text is used up


@dataclass(frozen=True, slots=True)
class StepResult:
    """Frames drawn by one decoder step, one row for each requested slot."""

    codes: np.ndarray  # [num_rows, num_frames, num_code_groups] int32; rows past the count are 0
    num_frames: tuple[int, ...]  # frames drawn, per row
    ended: tuple[bool, ...]  # EOS was drawn after those frames, per row
    # Row -> the error that ended its stream, after the frames that the row has; other rows go on.
    failures: Mapping[int, QwenTTSError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drift:
    """A part of a speech that differs too much from the first one of its voice."""

    part: int  # its number in the speech, from 0
    changes: dict[str, float]  # those beyond the limits of `engine.drift_guard.BAND`
    is_redrawn: bool  # it was drawn again before anything of it was delivered


@dataclass(frozen=True, slots=True, eq=False)
class AudioChunk:
    """A piece of speech; compared by identity.

    If the request changes the sound, `samples` are the changed ones, whose number may differ from
    that of the frames' own samples.
    """

    samples: np.ndarray  # [num_frames * samples_per_frame] int16; for a pause, its silence
    sample_rate: int
    frame_index: int  # first frame of this chunk, counted over the whole utterance
    num_frames: int
    t_ms: float  # milliseconds since the request was made
    start_s: float = 0.0  # seconds of audio before this chunk
    manner: Manner = AS_REQUESTED  # the manner of the chunk's part
    pause_s: float = 0.0  # length of a pause in the text, which is a chunk of its own
    drifts: tuple[Drift, ...] = ()  # found since the chunk before

    @property
    def end_s(self) -> float:
        """Seconds of audio up to the end of this chunk."""
        return self.start_s + len(self.samples) / self.sample_rate

    @property
    def pcm16(self) -> bytes:
        """The samples as little-endian 16-bit PCM."""
        return self.samples.astype("<i2", copy=False).tobytes()
