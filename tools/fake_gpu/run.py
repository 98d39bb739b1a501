#!/usr/bin/env python3
"""Runs a command as if this machine had a GPU: run.py COMMAND [ARGUMENT ...]

Needs PyTorch's CUDA build (what `pip install torch` gives on most machines), its Python first on
the PATH, nm and a C++ compiler. The CUDA runtime that PyTorch finds is runtime.cpp; tensors on
"cuda" lie in host memory, operations on them are done by the CPU, and the frame kernel is its
emulation. So everything of ours that only a GPU executes is executed: uploads, downloads, graphs,
captures. It says nothing about speed, nor about kernels of PyTorch's.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def main() -> None:
    """Become the command."""
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    packages = site_packages()
    folder = build(packages)
    path = [str(ROOT), str(HERE), os.environ.get("PYTHONPATH")]
    os.environ |= {
        "LD_PRELOAD": str(folder / "libcudart.so"),
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PATH": f"{HERE / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "QWEN_MEGAKERNEL_FAKE_GPU": "1",
    }
    os.execvp(sys.argv[1], sys.argv[1:])


def site_packages() -> Path:
    """Where the CUDA build of PyTorch is."""
    python = shutil.which("python") or sys.executable
    script = "import torch; print(torch.version.cuda, *torch.__path__)"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    cuda, _, folder = done.stdout.strip().partition(" ")
    if done.returncode or cuda == "None":
        raise SystemExit(f"{python} has no CUDA build of torch. Put one that has first on PATH.")
    return Path(folder).parent


def build(packages: Path) -> Path:
    """runtime.cpp as libcudart and libcuda, with everything else that PyTorch would link to."""
    sources = (HERE / "runtime.cpp").read_bytes() + Path(__file__).read_bytes()
    key = hashlib.sha256(sources + str(packages).encode()).hexdigest()[:16]
    result = Path(tempfile.gettempdir()) / f"fake-gpu-{os.getuid()}-{key}"
    if result.exists():
        return result
    header = next(packages.glob("nvidia/*/include/cuda_runtime_api.h"))
    with tempfile.TemporaryDirectory(dir=result.parent) as name:
        folder = Path(name) / "lib"
        folder.mkdir()
        compile_ = ["c++", "-std=c++17", "-O1", "-fPIC", "-shared"]
        include = (header.parent, packages / "triton/backends/nvidia/include")  # which has crt/
        runtime = [*compile_, *(f"-I{path}" for path in include), str(HERE / "runtime.cpp")]
        first = folder / "first.so"
        run([*runtime, "-o", str(first)])
        libraries = [*packages.glob("torch/lib/*.so"), *packages.glob("nvidia/*/lib/*.so*")]
        wanted = symbols(libraries, "undefined", r"(?:__)?cuda[A-Z]\w+")
        wanted |= symbols([packages / "torch/lib/libcaffe2_nvrtc.so"], "undefined", r"cu[A-Z]\w+")
        missing = sorted(wanted - symbols([first], "defined", r"\w+"))
        first.unlink()
        # cudaErrorNotSupported, and who asked.
        body = '{ std::fprintf(stderr, "fake GPU: %s is not there\\n", __func__); return 801; }'
        stubs = "".join(f"int {name}() {body}\n" for name in missing)
        (folder / "stubs.cpp").write_text(f'#include <cstdio>\nextern "C" {{\n{stubs}}}\n')
        soname = next(packages.glob("nvidia/*/lib/libcudart.so.*")).name
        output = ["-o", str(folder / "libcudart.so"), f"-Wl,-soname,{soname}"]
        run([*runtime, str(folder / "stubs.cpp"), *output])
        (folder / "libcuda.so.1").symlink_to("libcudart.so")
        folder.rename(result)
    return result


def symbols(libraries: list[Path], kind: str, pattern: str) -> set[str]:
    """Names of dynamic symbols that are defined, or wanted, by libraries."""
    found = set()
    for library in libraries:
        listed = run(["nm", "-D", f"--{kind}-only", "--format=posix", str(library)])
        names = (line.split()[0].partition("@")[0] for line in listed.splitlines() if line)
        found |= {name for name in names if re.fullmatch(pattern, name)}
    return found


def run(command: list[str]) -> str:
    """What a command says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
