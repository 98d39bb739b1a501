"""Checks whether driver, GPU and the installed torch fit together."""

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from qwen_megakernel.errors import DriverError, GPULost, NoGPUError, SetupError, UsageError

KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def find_device(name: str | torch.device | None) -> torch.device:
    """Return the device of a name, if this machine has it.

    Args:
        name: "cpu", "cuda", "cuda:1"; None: a GPU if there is one.
    Raises:
        UsageError: the kind of device is unknown, or there are fewer GPUs.
        NoGPUError, DriverError: a GPU was demanded and torch sees none.
    """
    has_gpu = torch.cuda.is_available()
    if name is None:
        return torch.device("cuda" if has_gpu else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device is {str(name)!r}; known: cpu, cuda, cuda:1 and so on.")
    if device.type == "cuda" and not has_gpu:
        raise no_gpu(f"device {device}")
    if device.type == "cuda" and device.index is not None:
        count = torch.cuda.device_count()
        if device.index >= count:
            raise UsageError(f"device is {device}; GPUs are counted from 0, torch sees {count}.")
    return device


def no_gpu(demanded_by: str) -> SetupError:
    """Return the error for a GPU that an option or a device demands while torch sees none."""
    return too_old() or NoGPUError(
        f"{demanded_by} needs an NVIDIA GPU; torch sees none (torch {torch.__version__}).",
        "Without it, the CPU computes.",
        "Omit it, or name the CPU: --device cpu, and --backend torch where there is a choice (in "
        'Python device="cpu", backend="torch").',
    )


def too_old() -> DriverError | None:
    """Return the error for a driver that is older than this torch needs; None if it is not.

    Within one major version of CUDA any driver runs what a newer toolkit built (NVIDIA, "CUDA
    Compatibility", minor version compatibility), so this compares major versions.
    """
    supported, needed = cuda_of_driver(), torch.version.cuda
    if supported is None or needed is None or supported[0] >= int(needed.split(".")[0]):
        return None
    version = driver_version()
    name = f"Driver {version}" if version else "The NVIDIA driver"
    return DriverError(
        f"{name} supports CUDA {supported[0]}.{supported[1]}; this torch was built for CUDA "
        f"{needed}, so it sees no GPU.",
        "PyTorch has builds for several CUDA versions, each with a package index of its own.",
        f"Install torch from PyTorch's index for cu{supported[0]}{supported[1]} or older, or "
        "update the driver.",
    )


def cuda_of_driver() -> tuple[int, int] | None:
    """Return the newest CUDA that the installed driver supports; None without a driver."""
    try:
        version = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def driver_version() -> str | None:
    """Return the driver's version ("550.163.01"), or None if Linux does not report it."""
    try:
        match = re.search(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)", KERNEL_MODULE.read_text())
    except OSError:
        return None
    return match[1] if match else None


def is_built_for(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Return whether a torch that was built for `built_for` ("sm_86", "compute_90") runs on a GPU.

    Machine code runs on later minor versions of its major: an RTX 4090 (8.9) runs the sm_86 code of
    PyTorch, which has no builds for sm_89. Code for one GPU ("sm_90a") runs on that GPU only. PTX
    ("compute_90") is translated for any later GPU (CUDA C++ Programming Guide, "Application
    Compatibility").
    """

    def runs(arch: str) -> bool:
        kind, _, number = arch.partition("_")
        match = re.fullmatch(r"(\d+)(\d)([af]?)", number)
        if not match:
            return False
        version = int(match[1]), int(match[2])
        if match[3] == "a":
            return version == capability
        if kind == "compute":
            return version <= capability
        return version[0] == capability[0] and version[1] <= capability[1]

    return any(map(runs, built_for))


def lost_gpu(error: BaseException) -> GPULost | None:
    """Return the error for a fault from which CUDA does not recover; None for any other `error`.

    After an illegal address, for example, every call of the process fails with the same error, so
    this function calls the GPU once more.
    """
    if "CUDA error" not in str(error) or _answers():
        return None
    return GPULost(
        f"The GPU failed and this process cannot use it any more: {str(error).splitlines()[0]}",
        hint="Look at nvidia-smi and the kernel log (dmesg | grep Xid), then restart.",
    )


def _answers() -> bool:
    try:
        for index in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(index):  # this process uses no other GPUs
                torch.cuda.synchronize(index)
    except RuntimeError:
        return False
    return True
