"""Codec frames as text: a row for each frame, with the codes of its groups separated by tabs."""

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qwen_megakernel.errors import OutputError, UsageError
from qwen_megakernel.output_files import writing
from qwen_megakernel.printable import get_logger

logger = get_logger(__name__)

# The variable that names a file for the codes of every utterance, one row for each frame.
DUMP_CODES_VARIABLE = "TTS_DUMP_CODES"
MIN_JUDGED_FRAMES = 20  # in shorter speech, pauses at the ends weigh too much
MIN_JUDGED_CODES = 64  # the same for figures over all groups together
# Share of a group's frames that have one value; the pauses of a healthy voice make it 0.35.
MOST_OF_A_GROUP = 0.75


def write(path: Path, codes: np.ndarray, *, append: bool = False) -> None:
    """Write [num_frames, num_code_groups] codes to a new file, or append them to an old one.

    Raises:
        OutputError: the file cannot be written.
    """
    mode = "a" if append else "w"
    with writing(f"codes to {path}"), path.open(mode, encoding="ascii") as file:
        np.savetxt(file, codes, fmt="%d", delimiter="\t")


def read(path: Path) -> np.ndarray:
    """Read [num_frames, num_code_groups] int64 codes.

    Raises:
        UsageError: the file is missing, empty, or not a table of integers.
    """
    try:
        rows = path.read_text(encoding="utf-8").split("\n")  # numpy's error would lack the reason
        if not any(map(str.strip, rows)):
            raise UsageError(f"{path} holds no frames.")
        return np.loadtxt(rows, dtype=np.int64, delimiter="\t", ndmin=2)
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from error
    except UsageError:
        raise
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise UsageError(f"{path} is not a table of codes: {reason}.") from error


class CodesDump:
    """The dump of an engine: its first utterance replaces the file, later ones go to its end."""

    def __init__(self) -> None:
        self._begun: str | None = None  # the file that this engine has written to
        self._is_paused = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Write nothing during the block, such as a warm-up, which no caller requested."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def add(self, codes: Sequence[np.ndarray]) -> None:
        path = os.environ.get(DUMP_CODES_VARIABLE)
        if not path or not codes or self._is_paused:
            return
        try:
            write(Path(path), np.array(codes), append=path == self._begun)
            self._begun = path
        except OutputError as error:  # a debugging aid must not end the speech
            logger.error("%s", error)


def describe(codes: np.ndarray) -> dict[str, float | int | list[int]]:
    """Compute figures that distinguish a healthy dump from a stuck one.

    Returns:
        `frames` and `groups`; `entropy_bits`, the entropy of each group's histogram (mean over
        groups, lowest and highest); mean and standard deviation of code 0 and of all other codes;
        `stuck_groups`, in which all frames have one value, and `single_value_groups`, in which more
        than `MOST_OF_A_GROUP` of them do; over all groups together, `top_code`, the commonest
        value, and `max_code`, the largest, each with its share of all codes; `repeat_rate`, the
        share of frames whose code 0 equals the previous frame's; `entropy_drop_bits`, entropy of
        code 0 in the first half minus that in the second; `unique_code_0`, its different values.
    """
    code_0, others, half = codes[:, 0], codes[:, 1:], len(codes) // 2
    entropies = [_entropy_bits(group) for group in codes.T]
    most = [max(_shares(group).values()) for group in codes.T]
    shares = _shares(codes.ravel())
    top_code, max_code = max(shares, key=shares.__getitem__), max(shares)
    return {
        "frames": len(codes),
        "groups": codes.shape[1],
        "top_code": top_code,
        "top_code_share": shares[top_code],
        "max_code": max_code,
        "max_code_share": shares[max_code],
        "entropy_bits": float(np.mean(entropies)),
        "entropy_min_bits": min(entropies),
        "entropy_max_bits": max(entropies),
        "code_0_mean": float(code_0.mean()),
        "code_0_std": float(code_0.std()),
        "others_mean": float(others.mean()) if others.size else 0.0,
        "others_std": float(others.std()) if others.size else 0.0,
        "stuck_groups": [
            index for index, group in enumerate(codes.T) if len(codes) > 1 and np.ptp(group) == 0
        ],
        "single_value_groups": [
            index for index, share in enumerate(most) if len(codes) > 1 and share > MOST_OF_A_GROUP
        ],
        "repeat_rate": float(np.mean(code_0[1:] == code_0[:-1])) if len(codes) > 1 else 0.0,
        "entropy_drop_bits": _entropy_bits(code_0[:half]) - _entropy_bits(code_0[half:]),
        "unique_code_0": len(np.unique(code_0)),
    }


@dataclass(frozen=True, slots=True)
class Expectation:
    """The usual values of a figure, in words, and whether its actual value is suspicious."""

    description: str
    is_suspicious: bool = False


OVERLAP = Expectation(
    "usual: 0.2 to 0.5 for two texts, 1 for equal codes; suspicious: above 0.8 for two texts"
)


def expectations(figures: Mapping[str, Any]) -> dict[str, Expectation]:
    """Return what to expect of each figure of `describe`.

    The limits come from speech of `demo-voice` (`docs/samples`) and of random weights, which is
    healthy in this sense, and from dumps that are stuck.
    """
    frames = figures["frames"]
    limits: dict[str, tuple[str, float, float]] = {}  # usual values; the lowest and highest good
    if frames * figures["groups"] >= MIN_JUDGED_CODES:
        limits["top_code_share"] = ("below 0.1", -math.inf, 0.25)
        limits["max_code_share"] = ("below 0.1", -math.inf, 0.15)
    if frames < MIN_JUDGED_FRAMES:
        found = dict.fromkeys(figures, Expectation(""))
        few = f"too few to judge the figures of each group: {MIN_JUDGED_FRAMES} are needed"
        found["frames"] = Expectation(few)
    else:
        found = dict.fromkeys(figures, Expectation("depends on the codec and the voice"))
        found |= {"frames": Expectation(""), "groups": Expectation("")}
        most = math.log2(frames)  # bits, if no code came twice
        limits |= {
            "entropy_bits": (f"{0.75 * most:.1f} to {most:.1f}", 0.5 * most, math.inf),
            "entropy_min_bits": (f"above {0.6 * most:.1f}", 0.3 * most, math.inf),
            "repeat_rate": ("below 0.2, more in pauses", -math.inf, 0.5),
            "entropy_drop_bits": ("-1 to 1", -math.inf, 2.0),
            "unique_code_0": (f"above {frames // 2}", frames / 4, math.inf),
        }
        for name in ("stuck_groups", "single_value_groups"):
            found[name] = Expectation("usual: none; suspicious: any", bool(figures[name]))
    for name, (usual, low, high) in limits.items():
        bound = f"above {high:.2g}" if low == -math.inf else f"below {low:.2g}"
        is_outside = not low <= figures[name] <= high
        found[name] = Expectation(f"usual: {usual}; suspicious: {bound}", is_outside)
    return found


def difference(name_a: str, a: np.ndarray, name_b: str, b: np.ndarray) -> str:
    """Return in words whether two dumps are equal, or the first frame in which they differ."""
    if np.array_equal(a, b):
        return f"{name_a} and {name_b} are equal: {len(a)} frames"
    both = min(len(a), len(b))
    unequal = np.flatnonzero((a[:both] != b[:both]).any(axis=1))
    first = unequal[0] if len(unequal) else both
    lengths = f"{len(a)} and {len(b)} frames"
    return f"{name_a} and {name_b} ({lengths}) differ from frame {first} on"


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Return the overlap of two dumps' histograms, mean over groups: 0 (disjoint) to 1 (equal)."""
    common = []
    for group_a, group_b in zip(a.T, b.T, strict=True):
        shares_a, shares_b = _shares(group_a), _shares(group_b)
        common.append(sum(min(share, shares_b.get(code, 0)) for code, share in shares_a.items()))
    return float(np.mean(common))


def _shares(group: np.ndarray) -> dict[int, float]:
    """Return the share of each code in [num_frames] codes."""
    codes, counts = np.unique(group, return_counts=True)
    return dict(zip(codes.tolist(), (counts / len(group)).tolist(), strict=True))


def _entropy_bits(group: np.ndarray) -> float:
    return sum(share * math.log2(1 / share) for share in _shares(group).values())
