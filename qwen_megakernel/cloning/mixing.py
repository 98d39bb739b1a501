"""Voices between others: their x-vectors, interpolated on the sphere."""

import math
import re
from collections.abc import Callable, Iterable

import numpy as np

from qwen_megakernel.errors import UsageError, VoiceMismatch
from qwen_megakernel.voice import Voice, check_same_encoders, is_name

MAX_MIXED = 10  # voices
# The name's last character is no space, so that each space is tried in one place alone.
_PART_OF_A_MIX = re.compile(r"([^()]*[^()\s])\s*(?:\((\d+(?:\.\d*)?|\.\d+)\))?")


def mix(name: str, parts: Iterable[tuple[Voice, float]]) -> Voice:
    """Return a voice between others: their x-vectors, interpolated on the sphere.

    The first two are interpolated by their weights, then the result and the third, and so on, so
    the order of three and more matters. The length of the x-vector is the weighted mean of the
    lengths. A voice of weight 0 changes nothing, and one voice alone stays as it is.

    Args:
        parts: voices, each with its weight: 0 or more, not all 0.
    Raises:
        UsageError: a weight is none, a voice is in context (recordings cannot be mixed), or two
            x-vectors are opposite, between which there is no way.
        VoiceMismatch: the x-vectors are those of different checkpoints.
    """
    parts = list(parts)
    weights = [weight for _, weight in parts]
    if not all(0 <= weight < math.inf for weight in weights) or not sum(weights) > 0:
        raise UsageError(
            f"The weights are {', '.join(f'{weight:g}' for weight in weights) or '(none)'}; "
            "they must be 0 or more, and not all of them 0."
        )
    for voice, _ in parts:
        if voice.x_vector is None:
            raise UsageError(
                f"Voice {voice.name!r} cannot be mixed: it is a speaker of the checkpoint, "
                "which has no x-vector."
            )
        if voice.in_context:
            raise UsageError(
                f"Voice {voice.name!r} cannot be mixed: it speaks in context, and only "
                "x-vectors can be mixed.",
                hint="Make it by its x-vector alone: qwen-megakernel voices create RECORDING "
                "--xvector -o FILE",
            )
    voices = [voice for voice, weight in parts if weight]
    check_same_encoders(voices)
    vectors = [np.asarray(voice.x_vector, np.float32) for voice in voices]
    if len({len(vector) for vector in vectors}) > 1:
        widths = (f"{v.name!r} {len(x)}" for v, x in zip(voices, vectors, strict=True))
        raise VoiceMismatch(f"The voices' x-vectors differ in width: {', '.join(widths)}.")
    mixed, total = vectors[0], 0.0
    for vector, weight in zip(vectors, filter(None, weights), strict=True):
        total += weight
        mixed = _between(mixed, vector, weight / total)
    consents = {voice.consent for voice in voices if voice.consent is not None}
    return Voice(
        name,
        mixed,
        fingerprint=next((v.fingerprint for v in voices if v.fingerprint), None),
        consent="; ".join(sorted(consents)) or None,
    )


def _between(a: np.ndarray, b: np.ndarray, share: float) -> np.ndarray:
    """Return the vector at a share of the way from `a` to `b`, [enc_dim] float32 each."""
    if share == 1 or np.array_equal(a, b):
        return b
    of_a, of_b = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    cosine = float(a.astype(np.float64) @ b) / (of_a * of_b) if of_a and of_b else 1.0
    angle = math.acos(min(max(cosine, -1.0), 1.0))
    if math.sin(angle) < 1e-6:  # along one line there is no sphere to follow
        if cosine < 0:
            raise UsageError("Two of the x-vectors are opposite; nothing lies between them.")
        return ((1 - share) * a + share * b).astype(np.float32)
    at = math.sin((1 - share) * angle) / of_a * a + math.sin(share * angle) / of_b * b
    length = (1 - share) * of_a + share * of_b
    return (length / math.sin(angle) * at).astype(np.float32)


def parts_of_mix(text: str) -> list[re.Match[str]]:
    """Return the names that a text such as "anna(2)+ben" mixes, group 1, and their weights, group
    2; []: it is no mix."""
    named = [_PART_OF_A_MIX.fullmatch(part.strip()) for part in text.split("+")]
    found = [each for each in named if each]
    return found if len(found) == len(named) > 1 else []


def mix_of(text: str, find: Callable[[str], str | Voice | None]) -> Voice | None:
    """Return the mix that a text such as "anna(2)+ben" names; None: the text names none.

    The mix has the text as its name, or "mix" if it cannot be a name.

    Args:
        text: names, joined by "+", each with its weight in parentheses; without one it is 1.
        find: returns the voice of a name, or raises an error. Speakers of a checkpoint are refused,
            and so is None, a name that the caller would ignore.
    Raises:
        UsageError, VoiceMismatch: see `mix`.
    """
    if not (named := parts_of_mix(text)):
        return None
    if len(named) > MAX_MIXED:
        raise UsageError(f"The voice is a mix of {len(named)}; the limit is {MAX_MIXED}.")
    parts = []
    for each in named:
        if (found := find(each[1])) is None:
            raise UsageError(f"Voice {each[1]!r} cannot be mixed: the model has no such voice.")
        parts.append((found if isinstance(found, Voice) else Voice(found), float(each[2] or 1)))
    return mix(text if is_name(text) else "mix", parts)
