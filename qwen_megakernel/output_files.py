"""Whether a file can be written, before the work that fills it."""

from pathlib import Path

from qwen_megakernel.errors import OutputError


def check_writable(path: Path, what: str) -> None:
    """Raise an error for a path that cannot be written; no file is left there.

    Args:
        what: the name of the contents in the error: "codes".
    Raises:
        OutputError: the path is a folder, or its folder is missing or read-only.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        return  # the reader of a pipe would take this for its end
    was_there = path.exists()
    try:
        path.open("a").close()
        if not was_there:
            path.unlink()
    except OSError as error:
        raise OutputError(f"Cannot write {what} to {path}: {error.strerror}.") from error
