"""Fixtures for the tests of one file: what an expression makes, or a context manager yields."""

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


def module_value(make: Callable[..., Any]) -> Any:
    """Return a fixture: what a function of other fixtures returns, once for the file."""
    return pytest.fixture(scope="module")(make)


def or_skip(make: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function makes; skip the test if a library that it needs is not installed."""
    try:
        return make(*arguments)
    except OSError as error:
        pytest.skip(str(error))
