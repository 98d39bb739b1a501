"""Every module, operation and method that tools/fake_gpu replaces exists.

The rehearsal itself needs PyTorch's CUDA build (test_fake_gpu.py).
"""

import importlib
import importlib.util
import sys
from unittest.mock import Mock, call

import pytest
import torch
from commands import ROOT

from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.decoders.kernel.library import KernelLibrary


def test_every_hook_finds_what_it_replaces(monkeypatch: pytest.MonkeyPatch):
    operations = Mock()
    monkeypatch.setitem(sys.modules, "operations", operations)
    monkeypatch.setattr(build, "build", lambda config, target: target.arch)
    path = ROOT / "tools" / "fake_gpu" / "sitecustomize.py"
    spec = importlib.util.spec_from_file_location("fake_gpu_hooks", path)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "meta_path", [*sys.meta_path])
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        functions = dict(sys.meta_path[0]._functions)
    for name, then in functions.items():
        then(importlib.import_module(name))
    assert operations.mock_calls == [
        call.install(),
        call.precede(KernelLibrary, "step"),
        call.precede(KernelLibrary, "forward"),
        call.install_own(torch.ops.qwen_megakernel.snake.default),
    ]
    assert KernelLibrary.step and KernelLibrary.forward
    assert build.build(None, build.Target("sm_90a", "float32")) is None  # the emulation's target
