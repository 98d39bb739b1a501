"""The native library for CPUs: a build for each instruction set, and the threads that use it."""

import ctypes
import os
import platform
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qwen_megakernel.errors import BuildError, GenerationError, OutOfMemory, SetupError
from qwen_megakernel.native import compiling

# The flags in /proc/cpuinfo that an instruction set of x86 needs, the best set first.
CPU_FLAGS = {
    "avx512_vnni": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "fma"),
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"),
    "avx2": ("avx2", "fma", "f16c"),
}
# Compiler flags by instruction set.
INSTRUCTION_SETS = {
    name: tuple(f"-m{flag.replace('_', '')}" for flag in flags) for name, flags in CPU_FLAGS.items()
} | {"neon": (), "plain": ("-DQWEN_CPU_PLAIN",)}
# -ffp-contract=off: the compiler fuses a multiplication and an addition only if the sources ask for
# it, so that a sum is the same in every function that it compiles. GCC 12 warns about uninitialized
# values in AVX-512's own headers.
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-ffp-contract=off"),
    *("-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra"),
    *("-Wno-unknown-pragmas", "-Wno-uninitialized", "-Wno-maybe-uninitialized"),
)
LIBRARY = "libqwen_cpu.so"
DONE, OUT_OF_MEMORY, NO_THREADS, BAD_CODE, UNFORESEEN = range(5)  # Status
COMPILE_SECONDS = 600  # g++ needs 5 s, zig 45 s the first time
FORCED = "QWEN_MEGAKERNEL_INSTRUCTION_SET"  # an environment variable, for tests and comparisons


def sets_of_machine(machine: str | None = None) -> list[str]:
    """Return the instruction sets that CPUs of `platform.machine()` can have, the best first."""
    machine = machine or platform.machine()
    if machine in ("aarch64", "arm64"):
        return ["neon", "plain"]
    return [*CPU_FLAGS, "plain"] if machine in ("x86_64", "AMD64") else ["plain"]


def supported_sets(cpuinfo: Path = Path("/proc/cpuinfo"), machine: str | None = None) -> list[str]:
    """Return the instruction sets that this CPU runs, the best first and "plain" last.

    Without Linux' description of the CPU, x86 gets "plain".
    """
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = set(next((line for line in lines if line.startswith("flags")), "").split())
    return [name for name in sets_of_machine(machine) if found.issuperset(CPU_FLAGS.get(name, ()))]


def choose_set() -> str:
    """Return the instruction set to compile for: that of `FORCED`, or the best one."""
    supported = supported_sets()
    forced = os.environ.get(FORCED)
    if forced and forced not in supported:
        raise SetupError(
            f"{FORCED} is {forced!r}; this CPU runs {', '.join(supported)}.",
            hint=f"Unset {FORCED}, or set it to one of these.",
        )
    return forced or supported[0]


def find_compiler() -> str:
    """Return the command of the system's C++ compiler, or else of the package ziglang."""
    try:
        return compiling.find_cxx()
    except BuildError as error:
        if os.environ.get("CXX"):
            raise
        if zig := compiling.find_zig():
            return zig
        raise BuildError(
            error.what,
            "The CPU decoder is compiled once, for this CPU.",
            "Run: apt install g++, or pip install ziglang (a compiler of 400 MB).",
        ) from error


def recipe(instruction_set: str, compiler: str = "") -> compiling.Recipe:
    """Return the recipe of an instruction set's library; for `found`, omit the compiler."""
    folder = compiling.source_folder() / "cpu"
    return compiling.Recipe(
        name=f"the CPU decoder for {instruction_set}",
        library=LIBRARY,
        compiler=compiler,
        flags=(*FLAGS, *INSTRUCTION_SETS[instruction_set]),
        units=(folder / "cpu_decoder.cpp", folder / "cpu_vocoder.cpp"),
        sources=compiling.sources_below(folder),
        source_root=folder,
        limit_seconds=COMPILE_SECONDS,
        is_portable=True,
    )


def library_for(instruction_set: str) -> Path:
    """Return the library of an instruction set, from the cache or newly compiled."""
    earlier = compiling.found(recipe(instruction_set))
    return earlier or compiling.compiled(recipe(instruction_set, find_compiler()))


def open_library() -> ctypes.CDLL:
    """Load the library for this CPU, compiled at first use, and declare its entry points.

    Raises:
        BuildError, SetupError: there is no compiler, it failed, or the library does not load.
    """
    library = compiling.load(library_for(choose_set()))
    library.qwen_cpu_instruction_set.restype = ctypes.c_char_p
    library.qwen_cpu_pool_create.restype = ctypes.c_void_p
    for name in ("pool", "decoder", "vocoder"):
        destroy = getattr(library, f"qwen_cpu_{name}_destroy")
        destroy.argtypes, destroy.restype = [ctypes.c_void_p], None
    library.qwen_cpu_packed_bytes.restype = ctypes.c_int64
    return library


def check_status(status: int, what: str, hint: str) -> None:
    """Raise the error that a native function's Status stands for, unless it is `DONE`.

    `what` is the subject of the message, such as "A step", `hint` that of an `OutOfMemory`.
    """
    if status == OUT_OF_MEMORY:
        raise OutOfMemory(f"{what} does not fit into memory.", hint=hint)
    if status == NO_THREADS:
        raise GenerationError(
            f"{what}: the system refuses a thread.",
            hint="Use fewer threads, or raise the limit of processes (ulimit -u).",
        )
    if status != DONE:
        raise GenerationError(f"{what} failed: native code returned status {status}.")


def check_structs(
    library: ctypes.CDLL, name: str, structs: Sequence[type[ctypes.Structure]]
) -> None:
    """Compare the sizes of our mirrored structs with those that the library's function `name`
    writes, in the order of `structs`, or raise BuildError."""
    theirs = (ctypes.c_int32 * len(structs))()
    getattr(library, name)(theirs)
    ours = [ctypes.sizeof(each) for each in structs]
    if list(theirs) != ours:
        raise BuildError(
            f"The native library has structs of {list(theirs)} bytes, not {ours}.",
            "It was built from other sources.",
            "Remove the build cache; the next run compiles it again.",
        )


def return_free_memory() -> None:
    """Return freed memory to the system; glibc otherwise keeps freed blocks of up to 32 MB."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def destroy_with(owner: object, destroy: Callable[[Any], None], handle: Any, *held: object) -> None:
    """Call destroy(handle) when `owner` is collected, but not at the interpreter's exit.

    At exit another thread may still load or speak (Ctrl-C while a model loads), and the system
    frees everything anyway.

    Args:
        held: what native code reads where it is, and so must not be freed before.
    """
    weakref.finalize(owner, lambda *_: destroy(handle), *held).atexit = False


class CpuPool:
    """Threads that wait for native work and share it; they sleep while there is none.

    The calling thread is one of `num_threads`.
    """

    def __init__(self, library: ctypes.CDLL, num_threads: int):
        self.library, self.num_threads = library, num_threads
        self.handle = library.qwen_cpu_pool_create(num_threads)
        if not self.handle:
            raise SetupError(
                f"The system refuses {num_threads} threads.",
                hint="Use fewer, with --threads, or raise the limit (ulimit -u).",
            )
        # A decoder and a vocoder keep a reference to their pool.
        destroy_with(self, library.qwen_cpu_pool_destroy, self.handle)
