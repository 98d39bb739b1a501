"""Chooses the number of CPU threads: as many as make decoding faster, at most the available
cores."""

import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

from qwen_megakernel.errors import check_counts
from qwen_megakernel.printable import get_logger

logger = get_logger(__name__)

T = TypeVar("T")

# A second thread pays off if a frame reads this many bytes. With fewer, the weights fit into a
# core's caches, and the threads lose more time by waiting for each other than a second core saves
# (docs/performance.md has measurements of both cases).
BYTES_PER_THREAD = 256 * 2**20
# On an idle machine, the native decoder's second thread makes a speech of demo-voice, 5 million
# weights a frame, 1.7 times as fast (0.6 instead of 1.0 ms a frame, vocoder included). Next to two
# busy programs, it makes the speech 3.5 times as slow: losing a core for a scheduler's time slice
# costs several frames. A frame of the 0.6B model outlasts a slice, and gains either way.
WEIGHTS_PER_NATIVE_THREAD = 2**24


def available_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may keep busy, at least 1.

    The operating system's affinity mask and the quotas of the process's control groups (a
    container's `--cpus`) both limit it. PyTorch's own default considers only the mask. The folder
    `root` has `proc` and `sys`.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS
        cores = os.cpu_count() or 1
    return max(1, int(min(cores, quota(root) or math.inf)))


def choose(bytes_per_frame: int, asked: int | None = None) -> int:
    """Return the number of threads with which PyTorch computes a model.

    The number depends on the model, on the cores that the process may use, and on PyTorch's own
    number (OMP_NUM_THREADS, `torch.set_num_threads`), but not on the load of the machine, so that
    sums, and therefore codes, are the same in the next run.

    Args:
        bytes_per_frame: bytes of weights that decoding one codec frame reads.
        asked: the caller's number, which is returned, with a warning if it exceeds the cores.
    """
    cores = available_cores()
    if asked is None:
        useful = math.ceil(bytes_per_frame / BYTES_PER_THREAD)
        return max(1, min(useful, cores, torch.get_num_threads()))
    check_counts(num_threads=asked)
    asked = int(asked)
    if asked > cores:
        logger.warning("%d threads share %d cores, so they wait for each other.", asked, cores)
    return asked


def choose_native(weights_per_frame: int, asked: int | None = None) -> int:
    """Return the number of threads of the native decoder; log a warning if a quota is too small.

    The decoder's threads wait microseconds for each other, so a second thread helps far below
    `BYTES_PER_THREAD`, and its sums do not depend on their number.

    Args:
        weights_per_frame: number of weights that decoding one codec frame reads.
        asked: the caller's number, which is returned; `choose` has already warned about it.
    """
    if warning := quota_warning():
        logger.warning("%s", warning)
    if asked is not None:
        check_counts(num_threads=asked)
        return int(asked)
    useful = math.ceil(weights_per_frame / WEIGHTS_PER_NATIVE_THREAD)
    return max(1, min(useful, available_cores()))


def limit_this_thread(num_threads: int) -> None:
    """Set the calling thread's number of threads of PyTorch; all other threads keep theirs."""
    of_others = torch.get_num_threads()
    torch.set_num_threads(num_threads)  # for this thread and for threads that begin later
    restore = threading.Thread(target=torch.set_num_threads, args=(of_others,))
    restore.start()
    restore.join()


def single_threads(count: int | None, name: str = "") -> ThreadPoolExecutor:
    """Return new threads, which compute PyTorch's operations on one core each.

    The threads of PyTorch's own pool wait for each other after every operation, in a busy loop. The
    loop takes cores from other programs; on a busy machine, most of the time is spent in it.
    After `shutdown`, a call gets a new thread, which ends with it.
    """
    return _SingleThreads(count, name, initializer=limit_this_thread, initargs=(1,))


class _SingleThreads(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:  # it is shut down; the thread of a new one ends with it
            return ThreadPoolExecutor(1, "", limit_this_thread, (1,)).submit(fn, *args, **kwargs)


def quota(root: Path = Path("/")) -> float | None:
    """Return the quota of the process's control groups, in cores; None: they set no limit."""
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return None
    quotas = [math.inf]
    names: tuple[str, ...]
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers == "":  # version 2
            mount, names = root / "sys/fs/cgroup", ("cpu.max",)
        elif "cpu" in controllers.split(","):
            mount = root / "sys/fs/cgroup/cpu"
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        folder = mount / path.lstrip("/")
        # A group limits those below it. A container sees its own group as the mount.
        for level in (folder, *folder.parents):
            if level.is_relative_to(mount):
                quotas.append(_quota_of(level, names))
    granted = min(quotas)
    return None if granted == math.inf else granted


def quota_warning() -> str | None:
    """Return a warning if a quota grants the process fewer than two cores."""
    granted = quota()
    if granted is None or granted >= 2:
        return None
    return (
        f"This container may use {granted:.2g} cores; speech in real time takes two for most "
        "models. Raise its quota (docker run --cpus)."
    )


def _quota_of(folder: Path, names: tuple[str, ...]) -> float:
    """Return a control group's own quota in cores; infinity: it has none."""
    try:
        values = [(folder / name).read_text(encoding="utf-8") for name in names]
    except OSError:  # the root group, or a folder that the container does not see
        return math.inf
    quota, period = " ".join(values).split()
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)
