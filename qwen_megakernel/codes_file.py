"""Codec frames as text: one row a frame, the codes of its groups separated by tabs."""

from pathlib import Path

import numpy as np

from qwen_megakernel.errors import OutputError, UsageError


def append(path: Path, codes: np.ndarray) -> None:
    """Append [num_frames, num_code_groups] codes.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        with path.open("a", encoding="ascii") as file:
            np.savetxt(file, codes, fmt="%d", delimiter="\t")
    except OSError as error:
        raise OutputError(f"Cannot write codes to {path}: {error.strerror}.") from error


def read(path: Path) -> np.ndarray:
    """Read [num_frames, num_code_groups] int64 codes.

    Raises:
        UsageError: the file is missing, empty, or not a table of integers.
    """
    try:
        codes = np.loadtxt(path, dtype=np.int64, delimiter="\t", ndmin=2)
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(f"{path} is not a table of codes: {error}.") from error
    if not codes.size:
        raise UsageError(f"{path} holds no frames.")
    return codes
