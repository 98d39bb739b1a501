"""How many threads compute on a CPU: as many as help, never more than the process may use."""

import logging
import math
import os
import threading
from pathlib import Path

import torch

from qwen_megakernel.errors import UsageError

logger = logging.getLogger(__name__)

# A second thread pays for itself where a frame reads this much. Below it, the weights fit into a
# core's caches, and the threads spend more time on meeting than a second core saves
# (docs/performance.md has both cases measured).
BYTES_PER_THREAD = 256 * 2**20
# On an idle machine, the native decoder's second thread makes a speech of demo-voice, 5 million
# weights a frame, 1.7 times as fast (0.6 instead of 1.0 ms a frame, vocoder included). Beside two
# busy programs it makes it 3.5 times as slow: a lost core costs a scheduler's slice, several
# frames. A frame of the 0.6B model lasts longer than slices do, and gains either way.
WEIGHTS_PER_NATIVE_THREAD = 2**24


def available_cores(root: Path = Path("/")) -> int:
    """How many cores this process may keep busy, at least 1.

    The operating system's affinity mask and the quotas of the process's control groups (a
    container's `--cpus`) both limit it. PyTorch's own default knows the mask alone.

    Args:
        root: folder that has `proc` and `sys`.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS
        cores = os.cpu_count() or 1
    return max(1, int(min(cores, quota(root) or math.inf)))


def choose(bytes_per_frame: int, asked: int | None = None) -> int:
    """The number of threads with which PyTorch computes a model.

    It depends on the model, on the cores that the process may use, and on PyTorch's own number
    (OMP_NUM_THREADS, `torch.set_num_threads`), never on how busy the machine is: sums, and so
    codes, are the same in the next run.

    Args:
        bytes_per_frame: weights that decoding one codec frame reads.
        asked: the caller's own number, which wins; a warning says if it exceeds the cores.
    Raises:
        UsageError: `asked` is not 1 or more.
    """
    cores = available_cores()
    if asked is None:
        useful = math.ceil(bytes_per_frame / BYTES_PER_THREAD)
        return max(1, min(useful, cores, torch.get_num_threads()))
    if _checked(asked) > cores:
        logger.warning("%d threads share %d cores: they will wait for each other.", asked, cores)
    return asked


def choose_native(weights_per_frame: int, asked: int | None = None) -> int:
    """The number of threads of the native decoder: of the cores that it may use, those that help.

    Its threads meet within microseconds, so they are worth it far below `BYTES_PER_THREAD`, and its
    sums do not depend on their number.

    Args:
        weights_per_frame: that decoding one codec frame reads.
        asked: the caller's own number, which wins; an engine has warned of it in `choose`.
    Raises:
        UsageError: `asked` is not 1 or more.
    """
    if warning := quota_warning():
        logger.warning("%s", warning)
    if asked is not None:
        return _checked(asked)
    useful = math.ceil(weights_per_frame / WEIGHTS_PER_NATIVE_THREAD)
    return max(1, min(useful, available_cores()))


def _checked(asked: int) -> int:
    if asked < 1:
        raise UsageError(f"num_threads is {asked}; it must be 1 or more.")
    return asked


def limit_this_thread(num_threads: int) -> None:
    """Let PyTorch compute with `num_threads` threads where the calling thread computes.

    Other threads, those to come included, keep the number that they have.
    """
    of_others = torch.get_num_threads()
    torch.set_num_threads(num_threads)  # for this thread and for threads that begin later
    restore = threading.Thread(target=torch.set_num_threads, args=(of_others,))
    restore.start()
    restore.join()


def quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that the process's control groups grant; None: as much as there is.

    Args:
        root: folder that has `proc` and `sys`.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return None
    quotas = [math.inf]
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
        # Any group above limits those below. A container sees its own group as the mount.
        for level in (folder, *folder.parents):
            if level.is_relative_to(mount):
                quotas.append(_quota_of(level, names))
    granted = min(quotas)
    return None if granted == math.inf else granted


def quota_warning() -> str | None:
    """What to warn of where a quota leaves the process fewer than two cores."""
    granted = quota()
    if granted is None or granted >= 2:
        return None
    return (
        f"This container may use {granted:.2g} cores; speech in real time takes two for most "
        "models. Raise its quota (docker run --cpus)."
    )


def _quota_of(folder: Path, names: tuple[str, ...]) -> float:
    """A control group's own quota, in cores."""
    try:
        values = [(folder / name).read_text(encoding="utf-8") for name in names]
    except OSError:  # the root group, or a folder that the container does not see
        return math.inf
    quota, period = " ".join(values).split()
    return math.inf if quota in ("max", "-1") else int(quota) / int(period)
