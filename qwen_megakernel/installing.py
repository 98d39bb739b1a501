"""What an optional package needs: an error that names it, and the pip command of its extra.

The package is published on no index. With the bare name, pip would look there and could install
another project's package of that name.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from qwen_megakernel import PACKAGE_FOLDER
from qwen_megakernel.errors import MissingPackageError

NAME = "qwen_megakernel"


@contextmanager
def require(*extras: str, by: str, package: str = "", also: Sequence[str] = ()) -> Iterator[None]:
    """Raise an error with a pip command and Python's reason if the block cannot import a package.

    Args:
        extras: this package's extras that bring the packages that the block imports.
        by: what needs them, as the subject of the error: "Sheen".
        package: what is needed, in the error; "": the module that the block could not import.
        also: requirements of other packages, for the same command.
    Raises:
        MissingPackageError: a package is not installed, or fails when it is imported.
    """
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(
            f"{by} needs {package or error.name or 'another package'} ({error}).",
            hint=install_command(*extras, also=also),
        ) from error


def install_command(*extras: str, also: Sequence[str] = ()) -> str:
    """Return the command that installs this package again, with extras.

    The command names the first of these that exists: the clone that the package runs from, the
    folder that pip installed it from, its repository. Otherwise the user fills in the path.

    Args:
        extras: keys of `project.optional-dependencies` in pyproject.toml.
        also: requirements of other packages, for the same command.
    """
    suffix = f"[{','.join(extras)}]"
    if _is_clone(clone := PACKAGE_FOLDER.parent):
        words = ["-e", f"{clone}{suffix}"]
    elif folder := _installed_from():
        words = [f"{folder}{suffix}"]
    elif address := _repository():
        words = [f"{NAME}{suffix} @ git+{address}"]
    else:
        words = [f"PATH/TO/{NAME}{suffix}"]
    return shlex.join(["pip", "install", *words, *also])


def _repository() -> str:
    """Return `Source` of `project.urls` in pyproject.toml, as pip recorded it; "": none is set."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        addresses = distribution(NAME).metadata.get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    return next((each[8:] for each in addresses if each.startswith("Source, ")), "")


def _is_clone(folder: Path) -> bool:
    return (folder / "setup.py").is_file() and (folder / NAME).is_dir()


def _installed_from() -> Path | None:
    """Return the clone from which pip installed this package, as pip records it (PEP 610)."""
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        record = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    url = urlsplit(json.loads(record)["url"] if record else "")
    folder = Path(url2pathname(url.path))
    return folder if url.scheme == "file" and _is_clone(folder) else None
