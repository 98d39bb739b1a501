"""Ctrl-C, SIGTERM and SIGHUP: a command ends in order, and what is being finished is finished."""

import atexit
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A second signal means the end that the first one began, unless that end takes longer than this:
# then something hangs, or a library swallowed the first one.
GRACE_S = 5.0


class GracefulExit:
    """Inside a `with` block each of SIGNALS raises KeyboardInterrupt in the main thread.

    Those of the GRACE_S after one are ignored, so that what it interrupts can be closed. They are
    so behind the block, too, if one has come: the process is about to end. A signal that is ignored
    or has a handler of somebody else's when the block begins is left alone (`nohup`).
    """

    def __init__(self) -> None:
        self._number = signal.SIGINT  # the first that came
        self._came_at: float | None = None
        self._previous: dict[int, object] = {}

    @property
    def exit_code(self) -> int:
        """What a shell reports for the first signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self._number

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            for number in SIGNALS:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    self._previous[number] = signal.signal(number, self._end)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._came_at is None:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
        else:
            atexit.register(self._ignore)  # from there on Python would put the defaults back

    def _ignore(self) -> None:
        for number in self._previous:
            signal.signal(number, signal.SIG_IGN)

    def _end(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._came_at is None:
            self._number = number
        elif now - self._came_at < GRACE_S:
            return
        self._came_at = now
        if loop := _running_loop():
            # Not in the midst of a task, which would keep the exception for itself and log it.
            loop.call_soon_threadsafe(_interrupt)
        else:
            _interrupt()


@contextmanager
def deferred_signals(tell: Callable[[], object] | None = None) -> Iterator[None]:
    """In a `with` block of the main thread, SIGNALS wait until its end; elsewhere none come.

    One that comes GRACE_S after the first no longer waits: the block may never end.

    Args:
        tell: is called when the first one comes, so that the block can end sooner.
    """
    came: list[tuple[int, float]] = []
    previous = {}

    def wait(number: int, frame: FrameType | None) -> None:
        came.append((number, time.monotonic()))
        if len(came) == 1:
            if tell:
                tell()
        elif came[-1][1] - came[0][1] >= GRACE_S:
            _interrupt()

    try:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # None: a handler that is not Python's, which cannot be put back.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    previous[number] = signal.signal(number, wait)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0][0])


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


def _running_loop() -> Any:
    asyncio = sys.modules.get("asyncio")
    return asyncio._get_running_loop() if asyncio else None
