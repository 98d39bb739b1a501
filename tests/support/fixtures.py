"""Fixtures that enter a context, for the tests of one file."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest


def module_fixture(manage: Callable[..., AbstractContextManager[Any]]) -> Any:
    """Return a fixture: what a context manager yields until the tests of the file are over.

    Args:
        manage: returns the manager; its arguments are the fixtures that it needs.
    """

    def entered(**needed: Any) -> Iterator[Any]:
        with manage(**needed) as value:
            yield value

    entered.__signature__ = inspect.signature(manage)
    return pytest.fixture(scope="module")(entered)
