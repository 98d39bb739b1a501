#!/usr/bin/env python3
"""Run a command as if this machine had a GPU: run.py COMMAND [ARGUMENT ...]

This needs PyTorch's CUDA build (which `pip install torch` installs on most machines), its Python
first on the PATH, nm and a C++ compiler. runtime.cpp and the files beside it take the place of the
CUDA runtime; tensors on "cuda" lie in host memory, the CPU does the operations on them, and the
frame kernel is its emulation. This executes the project's code that otherwise only a GPU executes:
transfers, graphs, captures. It proves nothing about speed, nor about PyTorch's own kernels.
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
    """Replace this process with the command."""
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
    """Return the folder of PyTorch's CUDA build."""
    python = shutil.which("python") or sys.executable
    script = "import torch; print(torch.version.cuda, *torch.__path__)"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    cuda, _, folder = done.stdout.strip().partition(" ")
    if done.returncode or cuda == "None":
        raise SystemExit(f"{python} has no CUDA build of torch. Put one that has first on PATH.")
    return Path(folder).parent


def build(packages: Path) -> Path:
    """Compile the runtime as libcudart and libcuda, with stubs of all functions that PyTorch
    calls."""
    sources = sorted(HERE.glob("*.cpp"))
    key = hashlib.sha256(str(packages).encode())
    for path in (*sources, HERE / "state.h", Path(__file__)):
        key.update(path.read_bytes())
    result = Path(tempfile.gettempdir()) / f"fake-gpu-{os.getuid()}-{key.hexdigest()[:16]}"
    if result.exists():
        return result
    header = next(packages.glob("nvidia/*/include/cuda_runtime_api.h"))
    with tempfile.TemporaryDirectory(dir=result.parent) as name:
        folder = Path(name) / "lib"
        folder.mkdir()
        compile_ = ["c++", "-std=c++17", "-O1", "-fPIC", "-shared"]
        include = (header.parent, packages / "triton/backends/nvidia/include")  # has crt/
        runtime = [*compile_, *(f"-I{path}" for path in include), *map(str, sources)]
        first = folder / "first.so"
        run([*runtime, "-o", str(first)])
        libraries = [*packages.glob("torch/lib/*.so"), *packages.glob("nvidia/*/lib/*.so*")]
        wanted = symbols(libraries, "undefined", r"(?:__)?cuda[A-Z]\w+")
        wanted |= symbols([packages / "torch/lib/libcaffe2_nvrtc.so"], "undefined", r"cu[A-Z]\w+")
        missing = sorted(wanted - symbols([first], "defined", r"\w+"))
        first.unlink()
        # Each stub returns cudaErrorNotSupported and reports its name.
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
    """Return the names of dynamic symbols that libraries define or need (`kind`)."""
    found = set()
    for library in libraries:
        listed = run(["nm", "-D", f"--{kind}-only", "--format=posix", str(library)])
        names = (line.split()[0].partition("@")[0] for line in listed.splitlines() if line)
        found |= {name for name in names if re.fullmatch(pattern, name)}
    return found


def run(command: list[str]) -> str:
    """Return the output of a command."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
