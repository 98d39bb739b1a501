"""Reports the CPU-minutes of a run of the tests, and those of its ten most expensive files.

CPU time does not depend on other work of the machine. It is that of the tests and of the processes
that they start and wait for, in every worker of pytest-xdist, from the start of the interpreter on.
Daemons that no test waits for (Ray's) are not included.
"""

import os
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

START, CONTROL = "(starting and collecting)", "(distributing and reporting)"
NUM_FILES = 10


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuReport(config))


class CpuReport:
    """Counts in the process that runs tests; adds up and prints in the one that was started."""

    def __init__(self, config: pytest.Config):
        self._config = config
        self._seconds: Counter[str] = Counter()
        self._counted = 0.0

    @property
    def _is_controller(self) -> bool:
        return self._config.pluginmanager.hasplugin("dsession")

    def _charge(self, name: str) -> None:
        """Add the time since the last call to `name`."""
        times = os.times()
        spent = times.user + times.system
        if not self._is_controller:  # its children are the workers, which count themselves
            spent += times.children_user + times.children_system
        self._seconds[name] += spent - self._counted
        self._counted = spent

    def pytest_collection_finish(self) -> None:
        self._charge(START)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if not self._is_controller:  # it also gets the events of the workers' tests
            self._charge(nodeid.split("::")[0])

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._seconds.update(getattr(node, "workeroutput", {}).get("cpu_seconds", {}))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None, None, None]:
        """Send the figures of a worker before it ends; print the others after pytest's output."""
        if hasattr(self._config, "workeroutput"):
            self._charge(CONTROL)
            self._config.workeroutput["cpu_seconds"] = dict(self._seconds)
        yield
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and not hasattr(self._config, "workeroutput"):
            self._charge(CONTROL)
            for line in self._lines():
                reporter.write_line(line)

    def _lines(self) -> list[str]:
        slowest, total = self._seconds.most_common(NUM_FILES), sum(self._seconds.values())
        return [
            "CPU seconds of the slowest files:",
            *(f"{seconds:8.1f}  {name}" for name, seconds in slowest),
            f"{total / 60:.1f} CPU-minutes in all ({total:.0f} s)",
        ]
