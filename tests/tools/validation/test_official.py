"""The errors of an official package that is missing or does not fit."""

import importlib.util

import pytest

from qwen_megakernel.errors import MissingPackageError
from tools.validation import official


def test_a_missing_official_package_imports_no_other(monkeypatch):
    imported = []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib, "import_module", imported.append)
    with pytest.raises(MissingPackageError, match="No module named 'qwen_tts'"):
        official.package()
    assert not imported


def test_an_error_of_its_import_becomes_ours(monkeypatch):
    def import_module(name):
        raise RuntimeError(f"{name} is of another version")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(MissingPackageError, match="is of another version"):
        official.package()
