"""The official package: what it computes here, and errors if it is missing or does not fit."""

import contextlib
import importlib.util

import pytest
import torch

from qwen_megakernel.errors import MissingPackageError
from qwen_megakernel.speech_options import Sampling
from tools.validation import official


@pytest.mark.parametrize("is_full", [True, False])
def test_quick_masks_are_the_masks_of_the_official_package(official_model, monkeypatch, is_full):
    model = official_model("tiny-random")
    prompt = {
        "input_ids": model._tokenize_texts([model._build_assistant_text("It is cold today.")]),
        **{"languages": ["english"], "speakers": [None], "non_streaming_mode": is_full},
    }
    quick = official.generate(model, Sampling.greedy(), 3, **prompt)
    monkeypatch.setattr(official, "_quick_masks", contextlib.nullcontext)
    slow = official.generate(model, Sampling.greedy(), 3, **prompt)
    assert (quick.codes == slow.codes).all() and len(quick.codes)
    for kind in ("talker_logits", "predictor_logits"):
        for ours, theirs in zip(getattr(quick, kind), getattr(slow, kind), strict=True):
            assert torch.equal(ours, theirs)


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
