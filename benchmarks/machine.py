"""The machine of a result file: its CPU, and what else kept it busy before and during the run.

The facts come from files of Linux. If a file is missing, its fact is None: not recorded.
"""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path("/")
# Name in result files -> name in /proc/cpuinfo.
INSTRUCTION_SETS = {
    "avx2": "avx2",
    "avx512f": "avx512f",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "amx": "amx_tile",
    "neon": "asimd",
}
# The pages mark a figure measured above one of these.
MAX_LOAD_PER_CORE, MAX_STOLEN_SHARE = 0.5, 0.05
IDLE_SECONDS = 60  # a load average of 1.3 falls to 0.5 in this time
READ_BYTES = 512 * 2**20  # more than caches hold
NUM_READS, READ_SECONDS = 9, 1.5


def facts(root: Path = HERE) -> dict[str, Any]:
    """Return the CPU, its instruction sets, and the cores: this process's and the machine's."""
    from qwen_megakernel.cli import doctor
    from qwen_megakernel.native import cpu_threads

    return {
        "processor": doctor.processor(root),
        "instruction_sets": instruction_sets(root),
        "cores": cpu_threads.available_cores(root),
        "online_cores": online_cores(root),
    }


def instruction_sets(root: Path = HERE) -> list[str] | None:
    """Return those of `INSTRUCTION_SETS` that the CPU has."""
    lines = _read(root / "proc/cpuinfo").splitlines()
    flags = [line.split() for line in lines if line.startswith(("flags", "Features"))]
    return [name for name, flag in INSTRUCTION_SETS.items() if flag in flags[0]] if flags else None


def online_cores(root: Path = HERE) -> int | None:
    """Return the cores of the whole machine, which its load average counts, in a container too."""
    lines = _read(root / "proc/cpuinfo").splitlines()
    return sum(line.startswith("processor") for line in lines) or None


def load_average(root: Path = HERE) -> float | None:
    """Return the load average of the last minute."""
    words = _read(root / "proc/loadavg").split()
    return float(words[0]) if words else None


class Conditions:
    """Observes the conditions of a run: create it before the run, and read its facts afterwards.

    Args:
        idle_seconds: longest wait for the load average to fall to a value that is not marked.
        root: folder that has `proc` and `sys`.
    """

    def __init__(self, idle_seconds: float = IDLE_SECONDS, root: Path = HERE):
        calm = MAX_LOAD_PER_CORE * (online_cores(root) or 1)
        end = time.monotonic() + idle_seconds
        if idle_seconds and (load := load_average(root) or 0) > calm:
            wait = f"waiting {idle_seconds} s at most for it to fall (--idle)"
            print(f"The load average is {load}; {wait}.", file=sys.stderr)
        while (load_average(root) or 0) > calm and time.monotonic() < end:
            time.sleep(0.5)
        self._root, self._load = root, load_average(root)
        self._bandwidth = read_bandwidth(facts(root)["cores"])
        self._stolen, self._wanted = _ticks(root) or (0, 0)

    def facts(self) -> dict[str, float | None]:
        """Return the load average before the run, the share of the CPU time that the host withheld
        since, and the speed at which all cores read memory together.
        """
        found = _ticks(self._root)
        stolen = None
        if found:
            stolen = (found[0] - self._stolen) / max(1, found[1] - self._wanted)
        return {
            "load_before_run": self._load,
            "stolen_share": stolen,
            "read_bandwidth_gb_s": self._bandwidth,
        }


def read_bandwidth(num_threads: int) -> float | None:
    """Return the GB/s at which threads read memory together; None if memory or time is short.

    It is measured in a separate process, so that its buffer does not count as the run's memory.
    """
    command = [sys.executable, __file__, str(num_threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return float(done.stdout)


class Memory:
    """A buffer larger than caches, and threads that read it together.

    A maximum of 64-bit integers costs less arithmetic than a sum. The speed is within some percent
    of the best that native code reads on two cores with AVX-512, and needs no compiler.
    """

    def __init__(self, num_threads: int):
        self._parts = np.array_split(np.ones(READ_BYTES // 8, np.int64), num_threads)
        self._threads = ThreadPoolExecutor(num_threads)

    def gb_s(self) -> float:
        """Return the GB/s of one reading of the whole buffer."""
        started = time.perf_counter()
        list(self._threads.map(np.max, self._parts))
        return READ_BYTES / (time.perf_counter() - started) / 1e9


def _read_bandwidth(num_threads: int) -> float:
    """Return the median speed at which numpy reads a whole buffer, in GB/s."""
    memory, found = Memory(num_threads), list[float]()
    end = time.monotonic() + READ_SECONDS
    while len(found) < NUM_READS and time.monotonic() < end:
        found.append(memory.gb_s())
    return float(np.median(found))


def _ticks(root: Path) -> tuple[int, int] | None:
    """Return the stolen CPU time since boot, and all CPU time that was neither idle nor waiting."""
    words = _read(root / "proc/stat").splitlines()[:1]
    if not words:
        return None
    user, nice, system, _, _, irq, soft_irq, stolen = map(int, words[0].split()[1:9])
    return stolen, user + nice + system + irq + soft_irq + stolen


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


if __name__ == "__main__":
    print(_read_bandwidth(int(sys.argv[1])))
