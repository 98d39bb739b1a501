"""Checks that a file can be written, before the work for its contents; replaces whole files, and
names the folder of the package's own files."""

import errno
import fcntl
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qwen_megakernel.errors import OutputError, SetupError


def cache_folder() -> Path:
    """Return the folder of built-in models and of compiled code: $QWEN_MEGAKERNEL_CACHE, or by
    default ~/.cache/qwen_megakernel.

    Raises:
        SetupError: the variable is not set, and the user has no home.
    """
    if folder := os.environ.get("QWEN_MEGAKERNEL_CACHE"):
        return Path(folder)
    home = os.path.expanduser("~")
    if home == "~":
        raise SetupError(
            f"User {os.geteuid()} has no home, and HOME is not set.",
            "Built-in models and compiled code are kept in ~/.cache/qwen_megakernel.",
            "Set QWEN_MEGAKERNEL_CACHE to a folder that can be written.",
        )
    return Path(home) / ".cache" / "qwen_megakernel"


def check_writable(path: Path, what: str) -> None:
    """Raise an error for a path that cannot be written; leave no file there.

    Args:
        what: the name of the contents in the error: "codes".
    Raises:
        OutputError: the path is a folder, or its folder is missing or read-only.
    """
    with writing(f"{what} to {path}", ValueError, new=path):  # a null byte is a ValueError
        was_there = path.exists()
        if was_there and not (path.is_file() or path.is_dir()):
            return  # opening and closing a pipe would end it for its reader
        path.open("a").close()
        if not was_there:
            path.resolve().unlink()  # a link to a file that did not exist stays


def check_folder(folder: Path) -> None:
    """Raise an OutputError for a folder that cannot be made or written; make none."""
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise OutputError(f"Cannot write {folder}: {nearest} is no folder that can be written.")


@contextmanager
def held(
    path: Path, flags: int = os.O_RDONLY, before_wait: Callable[[], object] | None = None
) -> Iterator[None]:
    """Hold a file or a folder, so that one process at a time writes it.

    Args:
        flags: of `os.open`.
        before_wait: called if another process holds it, which is then waited for.
    Raises:
        OutputError: another process holds it, and there is no `before_wait`.
    """
    handle = os.open(path, flags, 0o600)
    try:
        with suppress(OSError):  # of a file system without locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if before_wait is None:
                    raise OutputError(
                        f"Another process is writing {path}.",
                        hint="Wait for it, or write elsewhere.",
                    ) from error
                before_wait()
                fcntl.flock(handle, fcntl.LOCK_EX)  # Ctrl-C ends the wait
        yield
    finally:
        os.close(handle)


@contextmanager
def writing(place: object, *others: type[Exception], new: Path | None = None) -> Iterator[None]:
    """Turn an OSError of the block into an OutputError that names the place and the reason.

    Args:
        others: errors that a library raises instead, for a full disk for example.
        new: a file that the block creates; if its folder is missing, that is the reason.
    """
    caught: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except caught as error:
        reason = getattr(error, "strerror", None) or error
        if new and isinstance(error, FileNotFoundError) and not new.parent.exists():
            reason = f"there is no folder {new.parent}"
        raise OutputError(f"Cannot write {place}: {reason}.") from error


def new_partial(path: Path, mode: int = 0o666) -> Path:
    """Create an empty hidden file beside `path`, to be filled and then renamed to `path`.

    Args:
        mode: its permissions, less those of the umask.
    Raises:
        OSError: the folder is missing or read-only.
    """
    # A file system that has names of 255 bytes has one for the hidden file of any name.
    name = os.fsencode(path.name)[:240].decode(sys.getfilesystemencoding(), "ignore")
    partial = path.with_name(f".{name}.{secrets.token_hex(4)}.part")
    try:
        partial.touch(mode, exist_ok=False)
    except ValueError as error:  # a null byte
        raise OSError(errno.EINVAL, str(error)) from error
    return partial


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a `new_partial` to fill; at the end of the block it becomes `path`, in one step.

    After an exception the hidden file is removed, and `path` is what it was.

    Raises:
        OSError: the file cannot be created, or `path` is a folder.
    """
    partial = new_partial(path, mode)
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
