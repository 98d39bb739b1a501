"""Ctrl-C, SIGTERM and SIGHUP: a command ends in order and completes the file it is closing."""

import atexit
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A second signal within this time repeats the request of the first. A later one means that the
# program hangs, or that a library swallowed the first.
GRACE_S = 5.0

Handler = Callable[[int, FrameType | None], Any] | int | None


class GracefulExit:
    """Inside a `with` block each of SIGNALS raises KeyboardInterrupt in the main thread.

    Signals within GRACE_S of the first are ignored, so that the interrupted code can close what it
    opened. After an interrupted block all are ignored, because the process is about to end. A
    signal that is ignored (`nohup`) or has another handler when the block begins is left alone.
    """

    def __init__(self) -> None:
        self._number: int = signal.SIGINT  # the first that came
        self._came_at: float | None = None
        self._previous: dict[int, Handler] = {}

    @property
    def exit_code(self) -> int:
        """The exit code that a shell reports: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self._number

    @property
    def has_come(self) -> bool:
        """Whether a signal has come."""
        return self._came_at is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            for number in SIGNALS:
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    self._previous[number] = signal.signal(number, self._end)
        return self

    def __exit__(self, *_: object) -> None:
        if self._came_at is None:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
        else:
            atexit.register(self._ignore)  # before Python restores the default handlers

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
            # Raised between tasks: a task would store the exception, and asyncio would log it.
            loop.call_soon_threadsafe(_interrupt)
        else:
            _interrupt()


@contextmanager
def deferred_signals(on_first: Callable[[], object] | None = None) -> Iterator[None]:
    """Defer SIGNALS to the end of a `with` block of the main thread; other threads get none.

    A signal that comes GRACE_S after the first is not deferred, because the block may never end.

    Args:
        on_first: called when the first signal comes, so that the block can end sooner.
    """
    came: list[tuple[int, float]] = []
    previous = {}

    def wait(number: int, frame: FrameType | None) -> None:
        came.append((number, time.monotonic()))
        if len(came) == 1:
            if on_first:
                on_first()
        elif came[-1][1] - came[0][1] >= GRACE_S:
            _interrupt()

    try:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # None is a handler that Python did not set and cannot restore.
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
    # While the module is imported, it lacks the function.
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return running() if running else None
