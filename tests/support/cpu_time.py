"""The CPU time of a piece of work, for tests that it grows no faster than its input."""

import gc
import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object], *, enough: float = 0.0) -> float:
    """Return the least CPU seconds of three runs of `work`, or those of the first that takes at
    most `enough`.

    Other threads of the process do not count, nor does the collection of garbage, which takes as
    long as all objects of the process need.
    """
    least = float("inf")
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            begin = time.thread_time()
            work()
            least = min(least, time.thread_time() - begin)
            if least <= enough:
                break
    finally:
        gc.enable()
    return least
