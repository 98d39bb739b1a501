"""Pack compiled libraries into a folder that travels with the checkout, and unpack them elsewhere.

Packed, a library is a third of its size. This module imports only Python's own library.
"""

import tarfile
from collections.abc import Iterable
from pathlib import Path

CARRIED = Path(__file__).resolve().parents[2] / "build" / "carried"
KEPT = ("libqwen_tts.so", "sha256", "build.log")  # without the objects, which are never read again
SUFFIX = ".tar.xz"


def pack(libraries: Iterable[Path], folder: Path) -> float:
    """Pack compiled libraries into a folder that then holds no others; returns its megabytes.

    Args:
        libraries: as `compiling.compiled` returns them: a folder each, named by its key.
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
    return sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}")) / 1e6


def unpack(folder: Path, cache: Path) -> int:
    """Unpack a folder's libraries into the build cache where it lacks them; return how many were
    missing.
    """
    found = 0
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        target = cache / path.name.removesuffix(SUFFIX)
        if not target.exists():
            target.mkdir(parents=True)
            with tarfile.open(path) as archive:
                archive.extractall(target, filter="data")
            found += 1
    return found
