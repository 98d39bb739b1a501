"""The options of speech: the one place where an option has a name, type, range, default and help.

The keywords of `SpeechEngine.stream`, the fields of HTTP and WebSocket, the settings of Pipecat and
the options of the commands are made from `SpeechOptions`. Records are nested, names are flat: the
temperature of `SpeechOptions().sampling.predictor` is the option `subtalker_temperature`.
"""

import operator
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, reduce
from textwrap import fill
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, TypedDict, get_args

from qwen_megakernel.choices import NORMALIZE, TEXT_FORMATS
from qwen_megakernel.errors import (
    PLAIN_KINDS,
    UsageError,
    check_choice,
    check_names,
    check_type,
    plain_number,
)

if TYPE_CHECKING:
    from qwen_megakernel.voice import Voice

# Limits of temperatures and penalties. Far beyond them logits become infinite in float32, and a
# launch with infinite logits fails for every stream in it.
MIN_FACTOR, MAX_FACTOR = 1e-6, 1e6
COLD = 0.5  # below this fraction of the checkpoint's own temperature, a warning is given
MAX_TOP_K = 2**31 - 1  # an int32 on the device

MIN_SPEED, MAX_SPEED = 0.25, 4.0
MIN_VOLUME, MAX_VOLUME = -60.0, 20.0  # dB
MAX_SILENCE = 60_000  # ms; no silence is longer, so this limit cuts nothing

_HOLDS = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}


def check_text(**values: Any) -> None:
    """Raise a UsageError that names the first value that is neither a string nor None."""
    for name, value in values.items():
        check_type(name, value, str | None, "a string")


@dataclass(frozen=True, slots=True)
class Option:
    """What an option is, apart from its value."""

    name: str  # flat
    path: tuple[str, ...]  # the fields that lead to it: ("sampling", "predictor", "temperature")
    kind: type  # bool, int, float or str; object: the engine checks the value
    may_be_none: bool
    default: Any
    help: str  # what it is or does, beginning in lower case, without a full stop
    limits: dict[str, float]  # by the names of pydantic's `Field`: ge, gt, le, lt
    range: str = ""  # the limits in words, where the numbers do not say enough
    choices: tuple[str, ...] = ()
    default_means: str = ""  # what happens by default, where the value does not say enough
    unit: str = ""
    hint: str = ""  # for the error

    @property
    def group(self) -> str:
        """The name of the record that has the option: "sampling", "sound"; "": none."""
        return self.path[0] if len(self.path) > 1 else ""

    @property
    def is_subtalker(self) -> bool:
        """Whether the option is for the code predictor's draws."""
        return "predictor" in self.path

    @property
    def default_words(self) -> str:
        """The default in words, for help texts; "": there is nothing to say."""
        if self.group == "sampling":
            return "the checkpoint's own"
        if self.default_means or self.default is None:
            return self.default_means
        return f"{self.default:g}" if self.kind is float else str(self.default)

    def check(self, value: Any) -> Any:
        """Return a value, a number as a plain one.

        Raises:
            UsageError: the value is of another type, or outside the limits.
        """
        if value is None and self.may_be_none:
            return None
        if self.choices:
            check_choice(self.name, value, self.choices, self.hint)
        elif self.kind is str:
            check_text(**{self.name: value})
        elif self.kind in PLAIN_KINDS:
            value = plain_number(self.kind, self.name, value)
            if not all(_HOLDS[name](value, limit) for name, limit in self.limits.items()):
                shown = f"{value:g}" if self.kind is float else value
                raise UsageError(
                    f"{self.name} is {shown}; it must be {self.range}.", hint=self.hint
                )
        return value


def option(default: Any, help: str, ge: Any = None, le: Any = None, **facts: Any) -> Any:
    """Return the field of an option: its default, its help text, and other fields of `Option`.

    The help text may name the limits, as in "{ge:g} to {le:g}".
    """
    given = {"ge": ge, "le": le, "gt": facts.pop("gt", None), "lt": facts.pop("lt", None)}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    within = f"in {ge:g} .. {le:g}" if le is not None and ge is not None else f"{ge} or more"
    own = {"limits": limits, "help": help.format(**limits), "range": within}
    return field(default=default, metadata=own | facts)


def nested(make: Callable[[], Any], prefix: str = "", without: Collection[str] = ()) -> Any:
    """Return a field that holds another record of options, made by `make`.

    Args:
        prefix: what the flat names of its options begin with.
        without: fields of the record that are no options here.
    """
    place = {"make": make, "prefix": prefix, "without": without}
    return field(default_factory=make, metadata=place)


def _walk(
    record: Any, path: tuple[str, ...] = (), prefix: str = "", without: Collection[str] = ()
) -> Iterator[Option]:
    for each in fields(record):
        facts, here = dict(each.metadata), (*path, each.name)
        if "make" in facts:
            yield from _walk(facts["make"](), here, prefix + facts["prefix"], facts["without"])
        elif facts and each.name not in without:
            kinds = get_args(each.type) or (each.type,)
            yield Option(
                prefix + each.name,
                here,
                kind=kinds[0] if kinds[0] in (*PLAIN_KINDS, str) else object,
                may_be_none=NoneType in kinds,
                default=getattr(record, each.name) if path else each.default,
                **facts | {"hint": facts.get("hint", "").format(prefix=prefix)},
            )


class Options:
    """A record of options, which checks itself when it is made."""

    __slots__ = ()

    @classmethod
    @cache
    def options(cls) -> Mapping[str, Option]:
        """Return the options of the record and of the records in it, by their flat names."""
        return {each.name: each for each in _walk(cls)}

    def __post_init__(self) -> None:
        for each in self.options().values():
            holder, name = reduce(getattr, each.path[:-1], self), each.path[-1]
            object.__setattr__(holder, name, each.check(getattr(holder, name)))

    def values(self) -> dict[str, Any]:
        """Return the value of every option, by its flat name."""
        return {name: reduce(getattr, each.path, self) for name, each in self.options().items()}

    def override(self, **values: Any) -> Self:
        """Return a copy with other values, by flat names; None changes nothing.

        Raises:
            UsageError: there is no such option, or a value is refused.
        """
        known = self.options()
        check_names(values, known)
        return _replaced(self, {known[k].path: v for k, v in values.items() if v is not None})


def _replaced(record: Any, values: Mapping[tuple[str, ...], Any]) -> Any:
    """Return a copy of a record with other values at the ends of paths."""
    changes = {path[0]: value for path, value in values.items() if len(path) == 1}
    for name in {path[0] for path in values} - changes.keys():
        inner = {path[1:]: value for path, value in values.items() if path[0] == name}
        changes[name] = _replaced(getattr(record, name), inner)
    return replace(record, **changes)


@dataclass(frozen=True, slots=True)
class Draw:
    """How the codes of one model are drawn; `Sampling` checks the values."""

    do_sample: bool = option(True, "whether to draw codes at random, else the likeliest are taken")
    temperature: float = option(
        *(0.9, "how varied the codes are: it divides the logits", MIN_FACTOR, MAX_FACTOR),
        hint="For greedy decoding set {prefix}do_sample=False.",
    )
    top_k: int = option(
        *(50, "how many of the likeliest codes to draw from; 0: all", 0, MAX_TOP_K),
        range=f"a whole number, 0 (off) .. {MAX_TOP_K}",
    )
    top_p: float = option(
        1.0,
        "draw only from the likeliest codes, of this total probability; 1: all",
        gt=0,
        le=1,
        range="in (0, 1]",
    )
    repetition_penalty: float = option(
        1.0, "factor that makes codes drawn before less likely; 1: none", MIN_FACTOR, MAX_FACTOR
    )


@dataclass(frozen=True, slots=True)
class Sampling(Options):
    """How codes are drawn. Defaults are the official ones (qwen-tts 0.1.1, `generate`)."""

    talker: Draw = nested(lambda: Draw(repetition_penalty=1.05))
    # The official `generate` has no penalty for the code predictor's codes.
    predictor: Draw = nested(Draw, prefix="subtalker_", without=["repetition_penalty"])

    @staticmethod
    def greedy() -> "Sampling":
        """Return greedy sampling: argmax for the talker and for the code predictor."""
        return Sampling().override(do_sample=False, subtalker_do_sample=False)

    def cold_warnings(self, own: "Sampling") -> list[str]:
        """Return a warning for each temperature far below that of the checkpoint's `own` config.

        A port of the model reports loops at 0.3, where the checkpoint's own is 0.9.
        """
        return [
            f"{name} is {mine.temperature:g}, less than half of the checkpoint's own "
            f"{theirs.temperature:g}: speech may turn into loops or noise"
            for name, mine, theirs in (
                ("temperature", self.talker, own.talker),
                ("subtalker_temperature", self.predictor, own.predictor),
            )
            if mine.do_sample and mine.temperature < COLD * theirs.temperature
        ]

    @staticmethod
    def from_generation_config(values: Mapping[str, Any]) -> "Sampling":
        """Read generation_config.json."""
        named = {ours: values.get(theirs) for ours, theirs in OFFICIAL_NAMES.items()}
        return Sampling().override(**named)


# Option of `Sampling` -> its name in qwen-tts and in generation_config.json.
OFFICIAL_NAMES = {name: name for name in Sampling.options()}
OFFICIAL_NAMES["subtalker_do_sample"] = "subtalker_dosample"


def _silence(place: str) -> Any:
    return option(
        *(None, f"longest silence {place}, in ms; more is cut off", 0, MAX_SILENCE),
        unit="ms",
        default_means="the model's own",
    )


@dataclass(frozen=True, slots=True)
class SoundOptions(Options):
    """How the engine changes the samples of a speech; with the defaults it changes nothing."""

    # The duration of the model's speech, divided by the duration that is heard.
    speed: float = option(
        *(1.0, "how fast to speak, {ge:g} to {le:g}, at the same pitch: 2 takes half the time"),
        *(MIN_SPEED, MAX_SPEED),
    )
    volume: float = option(
        *(0.0, "change of volume in dB, {ge:g} to {le:g}; a limiter prevents clipping"),
        *(MIN_VOLUME, MAX_VOLUME),
        unit="dB",
    )
    sample_rate: int | None = option(
        *(None, "samples per second of the audio, {ge} to {le}", 8000, 48000),
        unit="Hz",
        default_means="the model's, 24000",
    )
    leading_silence: float | None = _silence("before the first sound")
    trailing_silence: float | None = _silence("after the last sound")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOptions(Options):
    """Everything that a request sets besides its text."""

    voice: "str | Voice | None" = option(
        None, "name of a voice, path of a voice file, or a `Voice`", default_means="the model's own"
    )
    style: str | None = option(
        None, "style of the voice, one of those in its file", default_means="the voice's default"
    )
    language: str | None = option("auto", 'language to speak: a name, a code like "en", or auto')
    instruct: str | None = option(None, "how to speak, in words, for models that follow it")
    text_feed: str = option(
        "auto",
        'how the model reads the text: "stepwise" a token for each frame (speech can start before '
        'the text is complete), "full" all of it before speaking',
        choices=("auto", "stepwise", "full"),
        default_means="auto, as the official package does for this model",
    )
    text_format: str = option(
        "plain",
        "format of the text: plain, ssml (markup), pauses (plain text with [pause 1.5s] in it), or "
        "script (lines like 'anna: Hello.' for several voices)",
        choices=TEXT_FORMATS,
        hint='"ssml" is markup; "pauses" is plain text with [pause 1.5s] in it; "script" has lines '
        "like anna: Hello.",
    )
    normalize: str = option(
        "auto",
        "whether to read numbers, dates, abbreviations and Markdown as words",
        choices=NORMALIZE,
        default_means="auto, which is on for demo-voice and off for Qwen's models",
    )
    # A file, words with respellings, or a `Lexicon`, whose `of` checks it.
    lexicon: Any = option(
        None, "words, and respellings that the model pronounces right, before the engine's own"
    )
    split: str = option("auto", "whether to cut long text at sentences", choices=("auto", "off"))
    continuity: str = option(
        "off",
        'what each part of a text continues: "context" the last four seconds of speech before it, '
        '"off" nothing',
        choices=("off", "context"),
    )
    seed: int = option(
        0,
        "number that makes speech repeatable",
        ge=0,
        lt=2**64,
        range="in 0 .. 2**64 - 1",
        default_means="random, reported with the speech",
    )
    max_frames: int | None = option(
        None,
        "number of frames after which to stop; a frame is 80 ms of audio (85 ms with a voice of "
        "`sheen train`), so 125 are 10 s",
        ge=1,
        default_means="no limit but that of each part of the text",
    )
    first_chunk_frames: int = option(1, "codec frames in the first chunk of audio", ge=1)
    chunk_frames: int = option(
        10, "most codec frames in a chunk of audio, each of which doubles the one before", ge=1
    )
    sampling: Sampling = nested(Sampling)
    sound: SoundOptions = nested(SoundOptions)

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        if self.first_chunk_frames > self.chunk_frames:
            raise UsageError(
                f"first_chunk_frames is {self.first_chunk_frames} and chunk_frames "
                f"{self.chunk_frames}; need 1 <= first <= chunk."
            )


class SpeechKeywords(TypedDict, total=False):
    """The options of `SpeechOptions` for type checkers, as keywords; a test compares the two."""

    voice: "str | os.PathLike[str] | Voice | None"
    style: str | None
    language: str | None
    instruct: str | None
    text_feed: str | None
    text_format: str | None
    normalize: str | None
    lexicon: Any  # a file, words with respellings, or a `Lexicon`
    split: str | None
    continuity: str | None
    seed: int | None
    max_frames: int | None
    first_chunk_frames: int | None
    chunk_frames: int | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    repetition_penalty: float | None
    subtalker_do_sample: bool | None
    subtalker_temperature: float | None
    subtalker_top_k: int | None
    subtalker_top_p: float | None
    speed: float | None
    volume: float | None
    sample_rate: int | None
    leading_silence: float | None
    trailing_silence: float | None


OPTIONS = SpeechOptions.options()


def table(names: Iterable[str]) -> str:
    """Return a docstring's list of options: the name, help text and default of each."""
    rows = []
    for each in map(OPTIONS.__getitem__, names):
        help = f"`{each.path[-1]}` for a frame's other codes" if each.is_subtalker else each.help
        default = f" (default: {each.default_words})" if each.default_words else ""
        row = f"{each.name}: {help}{default}."
        rows.append(fill(row, 100, initial_indent=" " * 8, subsequent_indent=" " * 12))
    return "\n".join(rows)


SpeechOptions.__doc__ = f"{SpeechOptions.__doc__}\n\n    Options:\n{table(OPTIONS)}"


# What only a whole speech can have: the loudness of a stream is known at its end.
LOUDNESS = Option(
    "loudness",
    ("loudness",),
    kind=float,
    may_be_none=False,
    default=None,
    help="loudness of the whole speech, -40 to -5 LUFS; podcasts have about -16",
    limits={"ge": -40, "le": -5},
    range="in -40 .. -5 (LUFS)",
    default_means="as the model speaks",
    unit="LUFS",
)
