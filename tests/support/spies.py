"""Watches functions of the package while a test runs; each does its own work, too."""

from collections.abc import Callable
from typing import Any

import pytest


def watch(patch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., object]) -> None:
    """Let each call of a function of `owner` call `note` first, with the same arguments.

    Args:
        owner: an object, a class or a module.
    """
    function = getattr(owner, name)

    def watched(*args: Any, **options: Any) -> Any:
        note(*args, **options)
        return function(*args, **options)

    patch.setattr(owner, name, watched)


def results_of(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Return a list to which each later call of a function of `owner` appends what it returns."""
    function, found = getattr(owner, name), []

    def watched(*args: Any, **options: Any) -> Any:
        found.append(function(*args, **options))
        return found[-1]

    patch.setattr(owner, name, watched)
    return found
