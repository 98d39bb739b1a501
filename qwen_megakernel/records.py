"""The records that the rooms hand to each other; each validates itself when it is made."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from qwen_megakernel.errors import QwenTTSError, UsageError, check_choice
from qwen_megakernel.voice import Voice

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["eos", "length", "silence", "repeat", "cancelled", "error"]

TEXT_FEEDS = ("auto", "stepwise", "full")
SPLITS = ("auto", "off")

# Limits of temperatures and penalties. Far beyond them logits become infinite in float32, and a
# launch with infinite logits fails for every stream in it.
MIN_FACTOR, MAX_FACTOR = 1e-6, 1e6
COLD = 0.5  # below this fraction of the checkpoint's own temperature, a warning is given
MAX_TOP_K = 2**31 - 1  # an int32 on the device

MIN_SPEED, MAX_SPEED = 0.25, 4.0
MIN_VOLUME, MAX_VOLUME = -60.0, 20.0  # dB
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 8000, 48000  # Hz
MIN_LOUDNESS, MAX_LOUDNESS = -40.0, -5.0  # LUFS
MAX_SILENCE = 60_000  # ms; no silence is longer, so this limit cuts nothing

_KINDS = {bool: "True or False", int: "a whole number", float: "a number"}


def check_text(**values: Any) -> None:
    """Raise a UsageError that names the first value that is neither a string nor None."""
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name} is {reprlib.repr(value)}; it must be a string.")


def _make_plain(record: Any, kind: type, *names: str) -> None:
    """Turn fields of a record into plain bools, ints or floats, or raise UsageError.

    A value such as 1.5 that failed inside a step of the decoder would end all streams of the step.
    """
    for name in names:
        object.__setattr__(record, name, plain_number(kind, name, getattr(record, name)))


def plain_number(kind: type, name: str, value: Any) -> Any:
    """Return `value` as a plain bool, int or float, or raise a UsageError with its name."""
    try:
        plain = kind(value)
        fits = isinstance(value, Real | np.bool_) and (plain == value or value != value)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise UsageError(f"{name} is {reprlib.repr(value)}; it must be {_KINDS[kind]}.")
    return plain


@dataclass(frozen=True, slots=True)
class Sampling:
    """How codes are drawn. Defaults are the official ones (qwen-tts 0.1.1, `generate`)."""

    do_sample: bool = True
    temperature: float = 0.9
    top_k: int = 50  # 0: no limit
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    subtalker_do_sample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0

    def __post_init__(self) -> None:
        _make_plain(self, float, "repetition_penalty")
        for prefix in ("", "subtalker_"):
            _make_plain(self, bool, f"{prefix}do_sample")
            _make_plain(self, int, f"{prefix}top_k")
            _make_plain(self, float, f"{prefix}temperature", f"{prefix}top_p")
            temperature, top_k, top_p = (
                getattr(self, prefix + name) for name in ("temperature", "top_k", "top_p")
            )
            if not MIN_FACTOR <= temperature <= MAX_FACTOR:
                raise UsageError(
                    f"{prefix}temperature is {temperature}; it must be in "
                    f"{MIN_FACTOR:g} .. {MAX_FACTOR:g}.",
                    hint=f"For greedy decoding set {prefix}do_sample=False.",
                )
            if not 0 <= top_k <= MAX_TOP_K:
                raise UsageError(
                    f"{prefix}top_k is {top_k}; it must be a whole number, 0 (off) .. {MAX_TOP_K}."
                )
            if not 0 < top_p <= 1:
                raise UsageError(f"{prefix}top_p is {top_p}; it must be in (0, 1].")
        if not MIN_FACTOR <= self.repetition_penalty <= MAX_FACTOR:
            raise UsageError(
                f"repetition_penalty is {self.repetition_penalty}; it must be in "
                f"{MIN_FACTOR:g} .. {MAX_FACTOR:g}."
            )

    def cold_warnings(self, own: Sampling) -> list[str]:
        """Return a warning for each temperature far below that of the checkpoint's `own` config.

        A port of the model reports loops at 0.3, where the checkpoint's own is 0.9.
        """
        return [
            f"{name} is {getattr(self, name):g}, less than half of the checkpoint's own "
            f"{getattr(own, name):g}: speech may turn into loops or noise"
            for prefix in ("", "subtalker_")
            if getattr(self, f"{prefix}do_sample")
            and getattr(self, name := f"{prefix}temperature") < COLD * getattr(own, name)
        ]

    @staticmethod
    def greedy() -> Sampling:
        """Return greedy sampling: argmax for the talker and for the code predictor."""
        return Sampling(do_sample=False, subtalker_do_sample=False)

    def override(self, **values: Any) -> Sampling:
        """Return a copy with every value of `values` that is not None."""
        if unknown := values.keys() - Sampling.__dataclass_fields__.keys():
            raise UsageError(
                f"There is no option {', '.join(sorted(unknown))}.",
                f"The options of sampling are {', '.join(Sampling.__dataclass_fields__)}.",
            )
        return replace(self, **{k: v for k, v in values.items() if v is not None})

    @staticmethod
    def from_generation_config(values: dict[str, Any]) -> Sampling:
        """Read generation_config.json, whose spelling is `subtalker_dosample`."""
        names = {name: name for name in Sampling.__dataclass_fields__}
        names["subtalker_do_sample"] = "subtalker_dosample"
        return Sampling().override(**{ours: values.get(theirs) for ours, theirs in names.items()})


@dataclass(frozen=True, slots=True)
class SoundOptions:
    """How the engine changes the samples of a speech; with the defaults it changes nothing."""

    speed: float = 1.0  # duration of the model's speech, divided by the duration that is heard
    volume: float = 0.0  # change of volume in dB
    sample_rate: int | None = None  # Hz; None: the codec's
    leading_silence: float | None = None  # longest silence before the first sound, ms; None: any
    trailing_silence: float | None = None  # longest silence after the last sound, ms; None: any

    def __post_init__(self) -> None:
        _make_plain(self, float, "speed", "volume")
        limits: dict[str, tuple[float, float]] = {
            "speed": (MIN_SPEED, MAX_SPEED),
            "volume": (MIN_VOLUME, MAX_VOLUME),
        }
        if self.sample_rate is not None:
            _make_plain(self, int, "sample_rate")
            limits["sample_rate"] = MIN_SAMPLE_RATE, MAX_SAMPLE_RATE
        for name in ("leading_silence", "trailing_silence"):
            if getattr(self, name) is not None:
                _make_plain(self, float, name)
                limits[name] = 0, MAX_SILENCE
        for name, (least, most) in limits.items():
            if not least <= getattr(self, name) <= most:
                raise UsageError(
                    f"{name} is {getattr(self, name):g}; it must be in {least:g} .. {most:g}."
                )

    def override(self, **values: Any) -> SoundOptions:
        """Return a copy with every value of `values` that is not None."""
        return replace(self, **{k: v for k, v in values.items() if v is not None})


@dataclass(frozen=True, slots=True)
class Manner:
    """The language, speed and volume of one part of a text, relative to those of its request."""

    language: str | None = None  # None: the request's language
    speed: float = 1.0  # factor that multiplies the request's speed
    volume: float = 0.0  # dB that are added to the request's volume

    def sound(self, options: SoundOptions) -> SoundOptions:
        """Return a request's options with this part's speed and volume, clipped to the limits."""
        speed = min(max(options.speed * self.speed, MIN_SPEED), MAX_SPEED)
        volume = min(max(options.volume + self.volume, MIN_VOLUME), MAX_VOLUME)
        return replace(options, speed=speed, volume=volume)


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """What to say and how. `text` is None if the text arrives later, in pieces."""

    text: str | None
    voice: str | Voice | None = None
    language: str | None = "auto"
    instruct: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0  # 0 .. 2**64 - 1
    max_frames: int | None = None
    text_feed: str = "auto"  # stepwise: one text row per frame; full: all text in the prefill
    split: str = "auto"  # cut long text at sentences
    first_chunk_frames: int = 1
    chunk_frames: int = 10
    sound: SoundOptions = field(default_factory=SoundOptions)

    def __post_init__(self) -> None:
        check_text(text=self.text, language=self.language, instruct=self.instruct)
        _make_plain(self, int, "seed", "first_chunk_frames", "chunk_frames")
        if self.max_frames is not None:
            _make_plain(self, int, "max_frames")
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"seed is {self.seed}; it must be in 0 .. 2**64 - 1.")
        if self.max_frames is not None and self.max_frames < 1:
            raise UsageError(f"max_frames is {self.max_frames}; it must be 1 or more.")
        for name, known in (("text_feed", TEXT_FEEDS), ("split", SPLITS)):
            check_choice(name, getattr(self, name), known)
        if not 1 <= self.first_chunk_frames <= self.chunk_frames:
            raise UsageError(
                f"first_chunk_frames is {self.first_chunk_frames} and chunk_frames "
                f"{self.chunk_frames}; need 1 <= first <= chunk."
            )


@dataclass(frozen=True, slots=True)
class Files:
    """The place of a model's files, which exist but are not checked yet."""

    folder: Path
    name: str  # the name that the user gave
    is_synthetic: bool = False  # random weights
    banner: str | None = None  # a notice that the user should read before listening


@dataclass(frozen=True, slots=True)
class TextIds:
    """The token ids of one part of an utterance; every field is int64, on the CPU."""

    role: Tensor  # [3]: <|im_start|>, "assistant", newline
    body: Tensor  # [num_text_tokens]: what is spoken
    instruct: Tensor | None = None  # [num_instruct_tokens], chat markup included
    reference: Tensor | None = None  # [num_reference_tokens]: transcript of a voice's codes (ICL)


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
class AudioChunk:
    """A piece of speech.

    If the request changes the sound, `samples` are the changed ones, whose number may differ from
    that of the frames' own samples.
    """

    samples: np.ndarray  # [num_frames * samples_per_frame] int16; for a pause, its silence
    sample_rate: int
    frame_index: int  # first frame of this chunk, counted over the whole utterance
    num_frames: int
    t_ms: float  # milliseconds since the request was made
    is_last: bool = False  # a last chunk may be empty and carry only the reason
    finish_reason: FinishReason | None = None
    start_s: float = 0.0  # seconds of audio before this chunk
    manner: Manner = field(default_factory=Manner)  # the manner of the chunk's part
    pause_s: float = 0.0  # length of a pause in the text, which is a chunk of its own

    @property
    def end_s(self) -> float:
        """Seconds of audio up to the end of this chunk."""
        return self.start_s + len(self.samples) / self.sample_rate

    @property
    def pcm16(self) -> bytes:
        """The samples as little-endian 16-bit PCM."""
        return self.samples.astype("<i2", copy=False).tobytes()
