"""Types of options that measurements have and commands have not."""

import argparse
import json
import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qwen_megakernel.cli.parsing import number
from qwen_megakernel.errors import OutputError
from qwen_megakernel.installing import install_command
from qwen_megakernel.output_files import check_writable


def positive(text: str) -> float:
    """Parse a finite number above zero, as an argparse type."""
    if not 0 < (value := number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def numbers(kind: Callable[[str], float]) -> Callable[[str], list[float]]:
    """Return an argparse type: numbers of a kind, which is such a type, separated by commas."""
    return lambda text: [kind(part) for part in text.split(",")]


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object, as an argparse type."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("it is no JSON object")
    return found


def plot_file(text: str) -> str:
    """Return the path of a plot, as an argparse type, if matplotlib can write it after the work."""
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError(f"drawing needs matplotlib: {install_command('plots')}")
    from matplotlib.backend_bases import FigureCanvasBase

    endings = FigureCanvasBase.get_supported_filetypes()
    if Path(text).suffix[1:].lower() not in endings:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no picture; its ending must be one of {', '.join(endings)}"
        )
    try:
        check_writable(Path(text), "a plot")
    except OutputError as error:
        raise argparse.ArgumentTypeError(error.what) from error
    return text
