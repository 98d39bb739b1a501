"""The official package where it is missing or does not fit: our error, and nothing else loaded."""

import importlib.util

import pytest

from qwen_megakernel.errors import MissingPackageError
from qwen_megakernel.validation import official


def test_where_it_is_missing_nothing_is_imported_for_it(monkeypatch):
    imported = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib, "import_module", imported.append)
    with pytest.raises(MissingPackageError, match="No module named 'qwen_tts'"):
        official.package()
    assert not imported


def test_what_it_raises_when_imported_is_our_error(monkeypatch):
    def import_module(name):
        raise RuntimeError(f"{name} is of another version")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(MissingPackageError, match="is of another version"):
        official.package()
