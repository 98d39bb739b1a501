"""Imports PyTorch, which takes most of the time until a new process has its first sound.

A third of the import loads libraries; a second core does that while this one imports Python's
modules. A fifth of those are for PyTorch's compiler, and a short command leaves them out.
"""

import atexit
import ctypes
import gc
import os
import sys
import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

COMMANDS = ("speak", "serve")  # those that always need it
# The libraries of a build for CPUs; one for GPUs chooses further ones when it is imported.
_OF_CPU_BUILDS = ("libtorch_global_deps", "libtorch_cpu")
_LOADED_LATER = "libtorch_python"
_FOR_COMPILER = "torch._meta_registrations"  # what operations do to tensors without values


def begin() -> None:
    """Load PyTorch's libraries in a thread.

    A library that is missing or broken is left to the import, whose error says more.
    """
    # These are libraries, or import some: while one thread loads a library, others cannot.
    import decimal, fcntl, json, numpy, pyexpat  # noqa: E401, F401, I001
    import queue, secrets, shutil, unicodedata, zoneinfo  # noqa: E401, F401

    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return
    found = {path.stem: path for path in Path(spec.origin).with_name("lib").glob("libtorch_*")}
    if found.keys() == {*_OF_CPU_BUILDS, _LOADED_LATER}:
        # The process waits for this thread before it ends.
        threading.Thread(target=_load, args=[found[name] for name in _OF_CPU_BUILDS]).start()


def import_torch(*, is_command: bool = False, with_compiler: bool = True) -> None:
    """Import PyTorch without collections of garbage, which would find none.

    Args:
        is_command: no later collection looks at what there is now, those at exit included.
        with_compiler: also import what `torch.compile` and its tensors without values need.
    """
    if not with_compiler:
        sys.modules[_FOR_COMPILER] = ModuleType(_FOR_COMPILER)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        torch = import_module("torch")
    finally:
        if was_enabled:
            gc.enable()
        if not with_compiler:
            del sys.modules[_FOR_COMPILER]
    if not with_compiler:  # a later import of this name must find the module itself
        vars(torch).pop(_FOR_COMPILER.rpartition(".")[2], None)
    if is_command:
        gc.freeze()
        atexit.register(gc.freeze)


def wait_passively() -> None:
    """Let PyTorch's threads sleep while they wait for each other, unless the user set a policy.

    By default they wait in a loop that keeps their cores busy: if another program has the core of
    the thread that they wait for, all of them wait until that program releases the core. OpenMP
    reads the variable when it is loaded, so a command must call this before it imports torch.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _load(global_deps: Path, cpu: Path) -> None:
    dlopen = ctypes.CDLL(None).dlopen  # unlike `ctypes.CDLL`, its call lets other threads run
    dlopen.restype = ctypes.c_void_p
    dlopen(os.fsencode(global_deps), os.RTLD_NOW | os.RTLD_GLOBAL)  # as PyTorch does it
    dlopen(os.fsencode(cpu), os.RTLD_NOW)
