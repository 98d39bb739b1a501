"""Checks that a file can be written, before the work whose result it will hold."""

import errno
from pathlib import Path

from qwen_megakernel.errors import OutputError


def check_writable(path: Path, what: str) -> None:
    """Raise an error for a path that cannot be written; leave no file there.

    Args:
        what: the name of the contents in the error: "codes".
    Raises:
        OutputError: the path is a folder, or its folder is missing or read-only.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        return  # opening and closing a pipe would end it for its reader
    was_there = path.exists()
    try:
        path.open("a").close()
        if not was_there:
            path.unlink()
    except OSError as error:
        raise OutputError(
            f"Cannot write {what} to {path}: {why_unwritable(path, error)}."
        ) from error


def why_unwritable(path: Path, error: OSError) -> str:
    """Return why a file cannot be opened to be written; a folder that is missing is named."""
    if error.errno == errno.ENOENT and not path.parent.exists():
        return f"there is no folder {path.parent}"
    return error.strerror or str(error)
