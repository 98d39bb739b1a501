"""The values that attributes of SSML may have, and their limits."""

import re
import reprlib

from qwen_megakernel.errors import UsageError
from qwen_megakernel.speech_options import MAX_SPEED, MAX_VOLUME, MIN_SPEED, MIN_VOLUME

MAX_PAUSE_S, MAX_PAUSES_S = 10.0, 60.0  # for one pause, and for all pauses of a request

# The values of <break strength>, in seconds.
STRENGTHS = {"none": 0, "x-weak": 0.25, "weak": 0.5, "medium": 0.75, "strong": 1, "x-strong": 1.25}
RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1, "default": 1, "fast": 1.25, "x-fast": 1.5}
# The values of <prosody volume>, in dB.
VOLUMES = {
    "silent": MIN_VOLUME,
    "x-soft": -12,
    "soft": -6,
    "medium": 0,
    "default": 0,
    "loud": 6,
    "x-loud": 12,
}
# The values of <say-as interpret-as>, and the kind of text that each of them means.
_KINDS = ("characters", "digits", "cardinal", "ordinal", "date", "time", "telephone")
SAY_AS = {kind: kind for kind in _KINDS}
SAY_AS |= {"spell-out": "characters", "verbatim": "characters", "number": "cardinal"}
DATE_FORMS = ("mdy", "dmy", "ymd", "md", "dm", "ym", "my", "y", "m", "d")

_NUMBER = r"(?:\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})"
_TIME = re.compile(rf"\+?({_NUMBER})(ms|s)", re.ASCII)
_RATE = re.compile(rf"([+-]?)({_NUMBER})(%?)", re.ASCII)
_DECIBELS = re.compile(rf"([+-]?{_NUMBER})dB", re.ASCII | re.IGNORECASE)


def seconds_of(value: str, name: str = "break time") -> float:
    """Return the length in seconds of a pause that is written "1.5s" or "500ms"."""
    match = _TIME.fullmatch(value.strip())
    if not match:
        raise UsageError(
            f"{name} is {reprlib.repr(value)}; it must be a time such as 1.5s or 500ms."
        )
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1)
    if seconds > MAX_PAUSE_S:
        raise UsageError(f"{name} is {value.strip()}; the maximum is {MAX_PAUSE_S:g} s.")
    return seconds


def strength_of(value: str) -> float:
    return STRENGTHS[_known(value, "break strength", STRENGTHS)]


def rate_of(value: str) -> float:
    """Return the speed that a <prosody rate> stands for.

    The value is a word, a factor ("1.2"), a percentage ("120%") or a change ("+20%", "-20%").
    """
    value = value.strip()
    if value in RATES:
        return RATES[value]
    match = _RATE.fullmatch(value)
    if not match or (match[1] and not match[3]):
        raise UsageError(
            f"prosody rate is {reprlib.repr(value)}; it must be one of {', '.join(RATES)}, a "
            "percentage such as 80% or +20%, or a factor such as 1.2."
        )
    sign, amount, percent = match.groups()
    rate = float(amount) / (100 if percent else 1)
    if sign:
        rate = 1 + rate if sign == "+" else 1 - rate
    if not MIN_SPEED <= rate <= MAX_SPEED:
        raise UsageError(
            f"prosody rate is {reprlib.repr(value)}; it must be in {MIN_SPEED:.0%} .. "
            f"{MAX_SPEED:.0%}."
        )
    return rate


def volume_of(value: str) -> float:
    """Return the change in dB of a <prosody volume>, which is a word or a change such as "+6dB"."""
    value = value.strip()
    if value in VOLUMES:
        return VOLUMES[value]
    match = _DECIBELS.fullmatch(value)
    if not match:
        raise UsageError(
            f"prosody volume is {reprlib.repr(value)}; it must be one of {', '.join(VOLUMES)}, or "
            "a change such as +6dB."
        )
    volume = float(match[1])
    if not MIN_VOLUME <= volume <= MAX_VOLUME:
        raise UsageError(
            f"prosody volume is {value}; it must be in {MIN_VOLUME:g}dB .. {MAX_VOLUME:g}dB."
        )
    return volume


def date_form_of(value: str) -> str:
    return _known(value, "say-as format", DATE_FORMS)


def _known(value: str, name: str, values: dict[str, float] | tuple[str, ...]) -> str:
    if value.strip() not in values:
        raise UsageError(f"{name} is {reprlib.repr(value)}; known: {', '.join(values)}.")
    return value.strip()
