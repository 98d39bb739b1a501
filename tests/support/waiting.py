"""Wait for an event on another thread, task or process."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any


def wait_until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Poll; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


@contextlib.asynccontextmanager
async def lateness() -> AsyncIterator[Callable[[], float]]:
    """Watch the event loop; the yielded function returns its greatest delay in seconds.

    On a busy machine, real-time playback is late by up to this time.
    """
    worst, nap = 0.0, 0.01

    async def watch() -> None:
        nonlocal worst
        while True:
            before = time.monotonic()
            await asyncio.sleep(nap)
            worst = max(worst, time.monotonic() - before - nap)

    watching = asyncio.create_task(watch())
    try:
        yield lambda: worst
    finally:
        watching.cancel()
