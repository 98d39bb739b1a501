"""Codec frames as text: one row a frame, the codes of its groups separated by tabs."""

from pathlib import Path

import numpy as np

from qwen_megakernel.errors import OutputError, UsageError


def write(path: Path, codes: np.ndarray, *, append: bool = False) -> None:
    """Write [num_frames, num_code_groups] codes, or append them to what is there.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        with path.open("a" if append else "w", encoding="ascii") as file:
            np.savetxt(file, codes, fmt="%d", delimiter="\t")
    except OSError as error:
        raise OutputError(f"Cannot write codes to {path}: {error.strerror}.") from error


def read(path: Path) -> np.ndarray:
    """Read [num_frames, num_code_groups] int64 codes.

    Raises:
        UsageError: the file is missing, empty, or not a table of integers.
    """
    try:
        with path.open(encoding="utf-8") as file:  # numpy's own error would not say why
            codes = np.loadtxt(file, dtype=np.int64, delimiter="\t", ndmin=2)
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"{path} is not a table of codes: {error}.") from error
    if not codes.size:
        raise UsageError(f"{path} holds no frames.")
    return codes


def describe(codes: np.ndarray) -> dict[str, float | int | list[int]]:
    """Figures that tell a healthy dump from a stuck one.

    Returns:
        `frames`; `entropy_bits`, the mean over groups of the entropy of each group's histogram;
        `stuck_groups`, groups that hold one value throughout; `repeat_rate`, the share of frames
        whose code 0 equals the previous frame's; `entropy_drop_bits`, entropy of code 0 in the
        first half less that in the second; `unique_code_0`.
    """
    code_0, half = codes[:, 0], len(codes) // 2
    return {
        "frames": len(codes),
        "entropy_bits": float(np.mean([_entropy_bits(group) for group in codes.T])),
        "stuck_groups": [
            index for index, group in enumerate(codes.T) if len(codes) > 1 and np.ptp(group) == 0
        ],
        "repeat_rate": float(np.mean(code_0[1:] == code_0[:-1])) if len(codes) > 1 else 0.0,
        "entropy_drop_bits": _entropy_bits(code_0[:half]) - _entropy_bits(code_0[half:]),
        "unique_code_0": len(np.unique(code_0)),
    }


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Mean over groups of the overlap of two dumps' histograms, 0 (disjoint) to 1 (equal)."""
    shares = []
    for group_a, group_b in zip(a.T, b.T, strict=True):
        size = 1 + max(group_a.max(), group_b.max())
        histogram_a = np.bincount(group_a, minlength=size) / len(group_a)
        histogram_b = np.bincount(group_b, minlength=size) / len(group_b)
        shares.append(np.minimum(histogram_a, histogram_b).sum())
    return float(np.mean(shares))


def _entropy_bits(values: np.ndarray) -> float:
    if not len(values):
        return 0.0
    shares = np.unique(values, return_counts=True)[1] / len(values)
    return float(-(shares * np.log2(shares)).sum())
