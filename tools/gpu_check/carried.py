"""Pack compiled libraries into a folder that is copied with the checkout, and unpack them.

Packed, a library is a third of its size. This module imports only Python's own library.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

CARRIED = Path(__file__).resolve().parents[2] / "build" / "carried"
KEPT = ("libqwen_tts.so", "sha256", "build.log")  # without the objects, which are never read again
SUFFIX = ".tar.xz"
VERSION = "nvcc.txt"  # the output of `nvcc --version` where the libraries were compiled
RELEASE = re.compile(r"release ([\d.]+)")


def pack(libraries: Iterable[Path], folder: Path, version: str) -> float:
    """Pack compiled libraries into a folder, remove all others from it, and return its size in MB.

    Args:
        libraries: as `compiling.compiled` returns them, each in a folder that is named by its key.
        version: the output of `nvcc --version`, which is a part of these keys.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {path.parent.name + SUFFIX: path.parent for path in libraries}
    for path in folder.glob(f"*{SUFFIX}"):
        if path.name not in wanted:
            path.unlink()
    for name, source in wanted.items():
        if not (folder / name).exists():
            draft = folder / f"{name}.draft"
            with tarfile.open(draft, "w:xz", preset=6) as archive:
                for kept in KEPT:
                    archive.add(source / kept, kept)
            draft.rename(folder / name)
    (folder / VERSION).write_text(version, encoding="utf-8")
    return sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}")) / 1e6


def unpack(folder: Path, cache: Path) -> int:
    """Unpack those of a folder's libraries that the build cache lacks; return their number."""
    found = 0
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        target = cache / path.name.removesuffix(SUFFIX)
        if not target.exists():
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            target.mkdir(mode=0o755)  # a folder that a group may write is refused
            with tarfile.open(path) as archive:
                archive.extractall(target, filter="data")
            found += 1
    return found


@contextlib.contextmanager
def compiler_of(folder: Path) -> Iterator[str | None]:
    """Within the block, let the build accept a folder's libraries, even if another build of the
    same release of nvcc compiled them.

    The key of a library contains the output of `nvcc --version`. A program that prints the folder's
    version, and otherwise runs the nvcc of this machine, is therefore put first on the PATH. Yields
    that version, or None if the libraries are found without it or are of another release.
    """
    program, file = shutil.which("nvcc"), folder / VERSION
    theirs = file.read_text(encoding="utf-8") if file.exists() else None
    if program is None or theirs is None:
        yield None
        return
    command = [program, "--version"]
    ours = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if ours == theirs or RELEASE.findall(ours) != RELEASE.findall(theirs):
        yield None
        return
    path = os.environ["PATH"]
    with tempfile.TemporaryDirectory() as work:
        stand_in = Path(work) / "nvcc"
        answer = f"[ \"$*\" = --version ] && exec cat '{file.resolve()}'"
        stand_in.write_text(f"#!/bin/sh\n{answer}\nexec '{program}' \"$@\"\n", encoding="utf-8")
        stand_in.chmod(0o755)
        os.environ["PATH"] = f"{work}{os.pathsep}{path}"
        try:
            yield theirs
        finally:
            os.environ["PATH"] = path
