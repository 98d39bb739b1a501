"""The command `doctor`: prints the facts about this machine that a bug report needs."""

import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qwen_megakernel import output_files
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.errors import BuildError, ModelFilesError, SetupError
from qwen_megakernel.gpu import driver
from qwen_megakernel.installing import install_command
from qwen_megakernel.native import compiling

# What a user may want: the extra that brings it ("": the package itself), and the modules that it
# needs. `report` adds the kernel; the CPU decoder needs the C++ compiler among the programs.
FEATURES = {
    "wav flac ogg mp3": ("", ["soundfile"]),
    "captions": ("", ["numpy"]),
    "cloning": ("", ["soxr"]),
    "Pipecat": ("pipecat", ["pipecat"]),
    "HTTP server": ("server", ["fastapi", "uvicorn", "websockets"]),
    "Home Assistant": ("wyoming", ["wyoming", "fastapi"]),
    "Ray Serve": ("ray", ["ray", "fastapi"]),
    "AAC": ("aac", ["av"]),
    "loudspeaker": ("play", ["sounddevice"]),
    "signed files": ("c2pa", ["c2pa"]),
    "loudness": ("loudness", ["loudness"]),
    "load test": ("bench", ["aiohttp", "psutil", "matplotlib"]),
    "trained voices": ("sheen", ["snac"]),
    "fine-tuning": ("train", ["peft"]),
    "Core ML export": ("coreml", ["coremltools"]),
}
PACKAGES = (
    *("torch", "transformers", "safetensors", "numpy", "soundfile", "soxr", "huggingface_hub"),
    *("ninja", "num2words", "babel", "pipecat-ai", "qwen-tts", "snac", "peft", "fastapi"),
    *("wyoming", "ray", "av", "sounddevice"),
)


def report() -> dict[str, Any]:
    """Return versions, processor, GPU, driver, compilers, caches and the backend `auto` picks."""
    import torch
    from huggingface_hub import constants

    import qwen_megakernel
    from qwen_megakernel.decoders.backends import choose_backend
    from qwen_megakernel.native import cpu_library, cpu_threads

    chosen = choose_backend("auto")
    kernel = "ready" if chosen.name == "kernel" else f"{chosen.why}: docs/gpu-setup.md"
    return {
        "qwen_megakernel": qwen_megakernel.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": processor(),
        "instruction_sets": cpu_library.supported_sets(),
        "instruction_set": _chosen(cpu_library.choose_set),
        "cores": cpu_threads.available_cores(),
        "cpu_quota": cpu_threads.quota(),
        "cpu_quota_warning": cpu_threads.quota_warning(),
        "features": {
            name: "ready" if all(map(find_spec, modules)) else install_command(extra)
            for name, (extra, modules) in FEATURES.items()
        }
        | {"CUDA kernel": kernel},
        "programs": {
            "ffmpeg": _release(shutil.which("ffmpeg")) or "not found; recordings in m4a need it",
            "espeak-ng": _release(shutil.which("espeak-ng")) or "not found; trained voices need it",
            "PortAudio": find_library("portaudio") or "not found; the loudspeaker needs it",
            "C++": _release(_tool(cpu_library.find_compiler))
            or (os.environ.get("CXX") and _chosen(cpu_library.find_compiler))
            or install_command("compiler"),
            "nvcc": _release(_tool(build.find_nvcc)) or install_command("nvcc"),
        },
        "packages": {name: _version(name) for name in PACKAGES},
        "gpu": _gpu(torch),
        "driver": _driver(),
        "torch_cuda": torch.version.cuda,
        "nvcc": _tool(build.find_nvcc),
        "cxx": _tool(cpu_library.find_compiler),
        "ninja": _tool(compiling.find_ninja),
        "kernel_cache": _chosen(compiling.build_cache),
        "model_cache": (cache := _chosen(output_files.cache_folder)),
        "kept_packed": _kept_packed(Path(cache)),
        "hub_cache": constants.HF_HUB_CACHE,
        "hub_endpoint": os.environ.get("HF_ENDPOINT", "the default"),
        "backend": {"auto": chosen.name, "device": str(chosen.device), "why": chosen.why},
    }


def _kept_packed(cache: Path) -> list[str]:
    """Return the models, and the forms of their weights, that --keep-packed has kept."""
    from qwen_megakernel.checkpoint import loading, packed_form

    kept = []
    for folder in sorted(cache.glob("packed-*")):
        try:
            form = packed_form.read(folder / loading.WEIGHTS)
        except ModelFilesError as error:
            kept.append(f"{folder.name}, unusable: {error.what}")
        else:
            kept.append(f"{form.source}, {form.weights or 'as stored'}" if form else folder.name)
    return kept


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(command: str | None) -> str | None:
    """Return a program and the version that it reports; None: there is no such program."""
    if command is None:
        return None
    words = [*shlex.split(command), "--version"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=20)
        found = re.search(r"\d+\.\d+[\w.]*", done.stdout + done.stderr)
    except (OSError, subprocess.TimeoutExpired):
        found = None
    return f"{command} ({found[0] if found else 'unknown version'})"


def _tool(find: Callable[[], str]) -> str | None:
    """Return where the build finds a tool, NVIDIA's Python packages included; None: nowhere."""
    try:
        return find()
    except BuildError:
        return None


def _chosen(choose: Callable[[], str | Path]) -> str:
    """Return the instruction set that the CPU decoder is compiled for, or a cache's folder; or why
    there is none.
    """
    try:
        return str(choose())
    except SetupError as error:
        return f"none: {error.what}"


def processor(root: Path = Path("/")) -> str:
    """Return the CPU's name and model numbers: a virtual machine's name may hide the model.

    Args:
        root: folder that has `proc`.
    """
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    # The lines of the first core. On ARM they have no name, only the designer's numbers.
    found = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in reversed(lines))}
    name = found.get("model name") or platform.processor() or platform.machine()
    keys = ("cpu family", "model") if "model" in found else ("CPU implementer", "CPU part")
    numbers = ", ".join(f"{key.split()[-1]} {found[key]}" for key in keys if key in found)
    return f"{name} ({numbers})" if numbers else name


def _gpu(torch: Any) -> dict[str, Any] | None:
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "arch": f"sm_{properties.major}{properties.minor}",
        "sms": properties.multi_processor_count,
        "memory_gb": round(properties.total_memory / 1e9, 1),
        "cuda": torch.version.cuda,
    }


def _driver() -> str | None:
    """Return the version of NVIDIA's driver and the CUDA version it supports; None: no driver."""
    supported = driver.cuda_of_driver()
    if supported is None:
        return None
    return f"{driver.driver_version() or 'of unknown version'}, CUDA {supported[0]}.{supported[1]}"
