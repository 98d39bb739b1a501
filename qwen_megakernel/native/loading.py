"""A compiled library becomes callable."""

import ctypes
from pathlib import Path

from qwen_megakernel.errors import BuildError


def load(path: Path) -> ctypes.CDLL:
    """Load a library that `compiling.compiled` made.

    Raises:
        BuildError: the system's loader refuses it.
    """
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(
            f"{path} does not load: {error}.", cure=f"Remove {path.parent}; it is built anew."
        ) from error
