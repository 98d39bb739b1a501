"""The records that travel through the house, each validated once, when it is made."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from qwen_megakernel.errors import QwenTTSError, UsageError
from qwen_megakernel.voice import Voice

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["eos", "length", "silence", "repeat", "cancelled", "error"]

TEXT_FEEDS = ("auto", "stepwise", "full")
SPLITS = ("auto", "off")

# What logits are divided or multiplied by. Far beyond, float32 becomes infinite, and a launch whose
# logits are not finite fails for every stream in it.
MIN_FACTOR, MAX_FACTOR = 1e-6, 1e6
COLD = 0.5  # of the checkpoint's own temperature: speech degenerates somewhere below
MAX_TOP_K = 2**31 - 1  # an int32 on the device

_KINDS = {bool: "True or False", int: "a whole number", float: "a number"}


def check_text(**values: Any) -> None:
    """Refuse what is neither a text nor None, under the name that it was given."""
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name} is {reprlib.repr(value)}; it must be a text.")


def _make_plain(record: Any, kind: type, *names: str) -> None:
    """Turn fields of a record into plain bools, ints or floats, or refuse them.

    A decoder that stumbles over 1.5 in the middle of a step ends every stream of that step.
    """
    for name in names:
        object.__setattr__(record, name, plain_number(kind, name, getattr(record, name)))


def plain_number(kind: type, name: str, value: Any) -> Any:
    """`value` as a plain bool, int or float, or refuse it under the name that it was given."""
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
        """What to warn of where codes are drawn much colder than a checkpoint's `own` config does.

        A port of the model reports loops at 0.3, where its own is 0.9.
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
        """Argmax for the talker and for the code predictor."""
        return Sampling(do_sample=False, subtalker_do_sample=False)

    def override(self, **values: Any) -> Sampling:
        """A copy in which every value that is not None replaces ours."""
        if unknown := values.keys() - Sampling.__dataclass_fields__.keys():
            raise UsageError(
                f"There is no option {', '.join(sorted(unknown))}.",
                f"Of the sampling there are {', '.join(Sampling.__dataclass_fields__)}.",
            )
        return replace(self, **{k: v for k, v in values.items() if v is not None})

    @staticmethod
    def from_generation_config(values: dict[str, Any]) -> Sampling:
        """Read generation_config.json, whose spelling is `subtalker_dosample`."""
        names = {name: name for name in Sampling.__dataclass_fields__}
        names["subtalker_do_sample"] = "subtalker_dosample"
        return Sampling().override(**{ours: values.get(theirs) for ours, theirs in names.items()})


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """What to say and how. `text` is None for a request whose text arrives later, in pieces."""

    text: str | None
    voice: str | Voice | None = None
    language: str | None = "auto"
    instruct: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0  # 0 .. 2**64 - 1
    max_frames: int | None = None
    text_feed: str = "auto"  # stepwise: one text row a frame; full: the text in the prefill
    split: str = "auto"  # cut long text at sentences
    first_chunk_frames: int = 1
    chunk_frames: int = 10

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
            if getattr(self, name) not in known:
                raise UsageError(f"{name} is {getattr(self, name)!r}; known: {', '.join(known)}.")
        if not 1 <= self.first_chunk_frames <= self.chunk_frames:
            raise UsageError(
                f"first_chunk_frames is {self.first_chunk_frames} and chunk_frames "
                f"{self.chunk_frames}; need 1 <= first <= chunk."
            )


@dataclass(frozen=True, slots=True)
class TextIds:
    """Everything the tokenizer makes of one part of an utterance; every field is int64, on CPU."""

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
    """Frames drawn by one decoder step, one row per slot that was asked for."""

    codes: np.ndarray  # [num_rows, num_frames, num_code_groups] int32; rows past the count are 0
    num_frames: tuple[int, ...]  # frames drawn, per row
    ended: tuple[bool, ...]  # EOS was drawn after those frames, per row
    # Rows whose streams are lost, after the frames that they have, and why; the others go on.
    failures: dict[int, QwenTTSError] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """A piece of speech as it leaves the engine."""

    samples: np.ndarray  # [num_frames * samples_per_frame] int16
    sample_rate: int
    frame_index: int  # first frame of this chunk, counted over the whole utterance
    num_frames: int
    t_ms: float  # since the request was made
    is_last: bool = False  # a last chunk may be empty and carry only the reason
    finish_reason: FinishReason | None = None

    @property
    def pcm16(self) -> bytes:
        """The samples as little-endian 16-bit PCM."""
        return self.samples.astype("<i2", copy=False).tobytes()
