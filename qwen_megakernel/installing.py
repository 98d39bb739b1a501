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
    folder, address = _origins()
    if _is_clone(clone := PACKAGE_FOLDER.parent):
        words = ["-e", f"{clone}{suffix}"]
    elif folder and _is_clone(folder):
        words = [f"{folder}{suffix}"]
    elif address:
        words = [f"{NAME}{suffix} @ git+{address}"]
    else:
        words = [f"PATH/TO/{NAME}{suffix}"]
    return shlex.join(["pip", "install", *words, *also])


def _is_clone(folder: Path) -> bool:
    return (folder / "setup.py").is_file() and (folder / NAME).is_dir()


def _origins() -> tuple[Path | None, str]:
    """Return what pip recorded: the folder from which it installed this package (PEP 610), and
    `Source` of `project.urls` in pyproject.toml, "" if none is set."""
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        installed = distribution(NAME)
    except PackageNotFoundError:
        return None, ""
    record = installed.read_text("direct_url.json")
    url = urlsplit(json.loads(record)["url"] if record else "")
    folder = Path(url2pathname(url.path)) if url.scheme == "file" else None
    addresses = installed.metadata.get_all("Project-URL") or []
    return folder, next((each[8:] for each in addresses if each.startswith("Source, ")), "")
