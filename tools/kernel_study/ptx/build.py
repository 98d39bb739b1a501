"""Run the kernel on a CPU as nvcc compiles it for a GPU.

Host code, shared memory and threads are the emulation's; the kernels are the PTX that a GPU would
get, instruction by instruction (machine.h).
"""

import hashlib
import os
import platform
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.decoders.kernel import build as kernel_build
from qwen_megakernel.decoders.kernel.build import Target
from qwen_megakernel.native import compiling
from tools.kernel_study.ptx.translate import translate

HERE = Path(__file__).parent
NVCC_FLAGS = [flag for flag in kernel_build.NVCC_FLAGS if flag.startswith(("-std", "-O"))]
# -O1 keeps registers out of memory; -O2 takes twice as long. Integers wrap, as they do on a GPU.
CXX_FLAGS = ["-std=c++17", "-O1", "-fPIC", "-w", "-fno-strict-aliasing", "-fwrapv"]
CXX_FLAGS += ["-ffp-contract=off", *(["-mfma"] if platform.machine() == "x86_64" else [])]


def build(
    config: ModelConfig,
    target: Target,
    *,
    program: Path | None = None,
    sanitize: Sequence[str] = (),
    change: tuple[str, str] | None = None,
    count: bool = False,
) -> Path:
    """Build the library of `kernel.build.build` from the PTX for the GPU of `target`.

    Args:
        program: a source that includes the kernels; the result is then this program.
        sanitize: flags for the code that replaces the GPU's own.
        change: (pattern, replacement) for all such texts in few_step_kernel: a planted fault.
        count: count the executed instructions (`translate`).
    Raises:
        RuntimeError: a compiler failed, with the end of its output; or `change` found nothing.
    """
    nvcc = kernel_build.find_nvcc()
    defines = [
        f"-D{name}={value}" for name, value in kernel_build.definitions(config, target).items()
    ]
    command = [nvcc, *NVCC_FLAGS, f"-arch={target.arch}", *defines]
    names = ["probes"] if target.probes else ["few_step_kernel", "step_kernel", "forward_kernel"]
    host = [program] if program else [_source(name) for name in names]
    if not program and not target.probes:
        host.append(_source("tts_kernel"))

    def compile_kernels() -> dict[str, str]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            ptx = list(
                pool.map(lambda name: _run([*command, "-ptx", _source(name), "-o", "-"]), names)
            )
        if change:
            changed = re.sub(*change, ptx[0])
            if changed == ptx[0]:
                raise RuntimeError(f"{change[0]!r} is not in the PTX.")
            ptx[0] = changed
        return dict(zip(names, ptx, strict=True))

    key = compiling.key_of(
        [nvcc, compiling.version_of(nvcc), *command, *(change or ())],
        kernel_build.sources(),
        compiling.source_folder(),
    )
    return assemble(key, compile_kernels, host, defines, sanitize, not program, count)


@contextmanager
def instead_of_emulation(arch: str, **options: Any) -> Iterator[None]:
    """Within the block, give new decoders the kernel that `build` compiles for `arch`."""

    def build_ptx(config: ModelConfig, target: Target) -> Path:
        return build(config, replace(target, arch=arch), **options)

    with mock.patch.object(kernel_build, "build", build_ptx):
        yield


def assemble(
    key: str,
    compile_kernels: Callable[[], dict[str, str]],
    host: Sequence[Path],
    defines: Sequence[str] = (),
    sanitize: Sequence[str] = (),
    is_library: bool = True,
    count: bool = False,
) -> Path:
    """Link PTX and the host code that launches it into one file, which is kept until they change.

    Args:
        key: the key of the PTX.
        compile_kernels: the PTX, by names.
        host: C++ sources. The kernels of the PTX replace those in them.
    """
    cxx = compiling.find_cxx()
    digest = hashlib.sha256(repr([key, cxx, CXX_FLAGS, *defines, *sanitize, count]).encode())
    for path in [*sorted(HERE.glob("*.*")), *host]:
        digest.update(path.read_bytes())
    result = compiling.build_cache() / f"ptx-{digest.hexdigest()[:24]}"
    if result.exists():
        return result
    ptx = compile_kernels()
    result.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=result.parent, prefix=f"{result.name}.") as folder:
        work = Path(folder)
        emulation = (compiling.source_folder() / "emulation").glob("*.cpp")
        jobs = [(path, ()) for path in [HERE / "machine.cpp", *emulation]]
        for name, text in ptx.items():
            jobs.insert(0, (work / f"{name}_ptx.cpp", sanitize))  # the longest first
            jobs[0][0].write_text(translate(text, count))
        jobs += [(path, [*defines, "-O0"]) for path in host]  # they only launch
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda job: _object(work, cxx, *job), jobs))
        entries = re.findall(r"\.entry (\w+)", "".join(ptx.values()))
        for path in host:
            weaken = [f"--weaken-symbol={entry}" for entry in entries]
            _run(["objcopy", *weaken, work / f"{path.stem}.o"])
        link = ["-shared", "-Wl,-Bsymbolic"] if is_library else ["-lpthread"]
        _run([*shlex.split(cxx), *sanitize, *objects, *link, "-o", work / "result"])
        os.replace(work / "result", result)
    return result


def _source(name: str) -> Path:
    return compiling.source_folder() / f"{name}.cu"


def _object(work: Path, cxx: str, source: Path, flags: Sequence[str]) -> Path:
    path = work / f"{source.stem}.o"
    include = [f"-I{HERE}", f"-I{compiling.source_folder()}"]
    _run([*shlex.split(cxx), *CXX_FLAGS, *include, *flags, "-x", "c++", "-c", source, "-o", path])
    return path


def _run(command: Sequence[str | Path]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr[-4000:]}")
    return done.stdout
