"""Every Python process that run.py starts imports this module. It loads operations.py after torch,
and the kernel's emulation in place of its library for a GPU.
"""

import dataclasses
import importlib.abc
import importlib.util
import sys
from types import ModuleType
from typing import Any


def _with_torch(_: ModuleType) -> None:
    import operations

    operations.install()


def _with_kernel_library(module: ModuleType) -> None:
    import operations

    from qwen_megakernel.decoders.kernel import build as kernel_build

    build = kernel_build.build
    kernel_build.build = lambda config, target: build(
        config, dataclasses.replace(target, arch=None)
    )
    for name in ("step", "forward"):
        operations.precede(module.KernelLibrary, name)


def _with_snake(_: ModuleType) -> None:
    import operations
    import torch

    # NVRTC would compile its kernel, but finds no GPU.
    operations.install_own(torch.ops.qwen_megakernel.snake.default)


class _Behind(importlib.abc.MetaPathFinder):
    """An import hook that calls a function when a module has been imported."""

    def __init__(self, functions: dict[str, Any]):
        self._functions = functions

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        then = self._functions.pop(name, None)
        if then is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:  # another Python than that of run.py
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            then(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(
    0,
    _Behind(
        {
            "torch": _with_torch,
            "qwen_megakernel.decoders.kernel.library": _with_kernel_library,
            "qwen_megakernel.vocoder.snake": _with_snake,
        }
    ),
)
