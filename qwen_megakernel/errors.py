"""Every error a user can meet, with its exit code and HTTP status.

The text of an error has up to three lines: what is wrong (with the value seen), why, and the hint.
"""

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from numbers import Real
from reprlib import repr as short_repr
from typing import Any

from qwen_megakernel.printable import printable_lines

_MOST_LISTED = 10  # names in one message
_MOST_COMPARED = 16  # characters; a long name would take a server long to compare with a thousand
PLAIN_KINDS = {bool: "True or False", int: "a whole number", float: "a number"}


class QwenTTSError(Exception):
    """Base of all errors this package raises on purpose.

    Args:
        what: one line, what is wrong, with the value seen; `printable_lines` shows it.
        why: one line, the cause or the consequence; may be empty.
        hint: one line, the command or change that helps; may be empty.
    """

    exit_code = 6  # 2 usage, 3 environment, 4 model files, 5 resources, 6 generation
    http_status = 500

    def __init__(self, what: str, why: str = "", hint: str = ""):
        self.what, self.why, self.hint = map(printable_lines, (what, why, hint))
        super().__init__("\n".join(filter(None, (self.what, self.why, self.hint))))


class UsageError(QwenTTSError, ValueError):
    """An argument has a value that can never work."""

    exit_code = 2
    http_status = 400


class TaskError(UsageError):
    """The loaded checkpoint cannot do what was asked (a CustomVoice cannot clone, for example)."""


class UnknownVoice(UsageError):
    """The checkpoint has no such speaker, and there is no such voice file."""


class UnknownLanguage(UsageError):
    """The checkpoint has no id for this language."""


class EmptyText(UsageError):
    """The text has nothing to speak: it has no letter that the model reads, and no digit."""


class MarkupError(UsageError):
    """The markup of a text is broken; the message names the line and the column."""


class TextTooLong(UsageError):
    """The text is longer than the engine accepts in one request."""

    http_status = 413


class RecordingError(UsageError):
    """Reference audio, its transcript or its codes cannot serve as a voice."""


class VoiceMismatch(UsageError):
    """The voice was made for a checkpoint of another width or codec."""


class DatasetError(UsageError):
    """No model can be trained on these recordings, or on a dataset made from them."""


class SetupError(QwenTTSError):
    """The machine lacks something: a GPU, a driver, a compiler."""

    exit_code = 3
    http_status = 503


class NoGPUError(SetupError):
    """A GPU was demanded and none is visible."""


class DriverError(SetupError):
    """The NVIDIA driver is older than this torch needs."""


class ArchError(SetupError):
    """The GPU's architecture is not supported by the kernel or by this torch."""


class BuildError(SetupError):
    """The kernel could not be compiled."""


class LaunchError(SetupError):
    """The GPU refused the kernel's cooperative grid."""


class GPULost(SetupError):
    """The GPU had a fault after which CUDA fails every call of this process."""


class MissingPackageError(SetupError):
    """The call needs an optional package that is not installed."""

    http_status = 501  # not 503: retrying does not help


class ModelFilesError(QwenTTSError):
    """Model files are missing, unreachable, damaged or of another model."""

    exit_code = 4
    http_status = 503


class UnsupportedModel(ModelFilesError):
    """This package does not run this Qwen3-TTS model."""

    http_status = 400


class ResourceError(QwenTTSError):
    """The machine or the engine is out of memory, disk space or slots."""

    exit_code = 5
    http_status = 503


class OutOfMemory(ResourceError):
    """There is not enough memory for the request or the model."""


class EngineBusy(ResourceError):
    """The waiting queue is full."""

    http_status = 429
    retry_after_s = 1  # until there may be room again; the server replaces it by an estimate


class Draining(ResourceError):
    """The server finishes the requests it has begun and accepts no new ones."""


class NotReady(ResourceError):
    """The model is not loaded yet."""


class DeadlineExceeded(ResourceError):
    """A request took longer than the server allows."""

    http_status = 504


class OutputError(ResourceError):
    """An output file or folder cannot be written."""


class GenerationError(QwenTTSError):
    """A stream failed while it was being generated; the engine stays usable."""


class KernelTimeout(GenerationError):
    """A grid barrier of the kernel expired."""

    http_status = 503


class TokenOrderError(GenerationError):
    """The model drew audio tokens in an order that makes no sound."""


class EngineClosed(GenerationError):
    """The engine was closed before or while this stream ran."""

    http_status = 503


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name that a misspelt one resembles most; "": there is none."""
    close = _closest(name, known, 1)
    return f'Did you mean "{close[0]}"?' if close else ""


def listed(known: Iterable[str], name: str) -> str:
    """Return known names for a message; of many, those that a misspelt one resembles and others."""
    names = list(known)
    if len(names) <= _MOST_LISTED:
        return ", ".join(names) or "(none)"
    close = _closest(name[:_MOST_COMPARED], names, 3)
    some = [*dict.fromkeys([*close, *names])][:_MOST_LISTED]
    return f"{', '.join(some)} and {len(names) - len(some)} more"


def check_names(given: Iterable[str], known: Collection[str]) -> None:
    """Raise a UsageError that names the options in `given` that are none of `known`."""
    if unknown := sorted(set(given) - set(known)):
        hints = dict.fromkeys(did_you_mean(name, known) for name in unknown)
        raise UsageError(
            f"There is no option {', '.join(unknown)}.",
            f"The options are {', '.join(known)}.",
            " ".join(filter(None, hints)),
        )


def check_type(name: str, value: object, kind: Any, wanted: str, hint: str = "") -> None:
    """Raise a UsageError that names the value if it is none of `kind`, a type or a union."""
    if not isinstance(value, kind):
        raise UsageError(f"{name} is {short_repr(value)}; it must be {wanted}.", hint=hint)


def check_choice(name: str, value: object, known: Collection[str], hint: str = "") -> None:
    """Raise a UsageError that names the value if it is none of `known`."""
    if value not in known:
        hint = hint or did_you_mean(str(value), known)
        raise UsageError(f"{name} is {value!r}; known: {', '.join(known)}.", hint=hint)


def plain_number(kind: type, name: str, value: Any) -> Any:
    """Return `value` as a plain bool, int or float, or raise a UsageError with its name.

    A value such as 1.5 that failed inside a step of the decoder would end all streams of the step.
    """
    try:
        plain = kind(value)
        fits = _is_number(value) and (plain == value or value != value)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise UsageError(f"{name} is {short_repr(value)}; it must be {PLAIN_KINDS[kind]}.")
    return plain


def check_seconds(**values: Any) -> None:
    """Raise a UsageError that names the first value that is no time, above 0 and finite."""
    for name, value in values.items():
        if not 0 < plain_number(float, name, value) < float("inf"):
            raise UsageError(f"{name} is {value}; it must be above 0 and finite.")


def check_counts(**values: Any) -> None:
    """Raise a UsageError that names the first value that is neither 1 or more nor None."""
    for name, value in values.items():
        if isinstance(value, bool):
            raise UsageError(f"{name} is {value}; it must be {PLAIN_KINDS[int]}.")
        if value is not None and plain_number(int, name, value) < 1:
            raise UsageError(f"{name} is {value}; it must be 1 or more.")


def _closest(name: str, known: Iterable[str], num: int) -> list[str]:
    by_lower = {each.lower(): each for each in known}
    return [by_lower[each] for each in get_close_matches(name.lower(), by_lower, n=num)]


def _is_number(value: Any) -> bool:
    if isinstance(value, Real):
        return True
    import numpy as np  # imported late, since --help of the commands does not need it

    return isinstance(value, np.bool_)
