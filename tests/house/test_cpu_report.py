"""At its end, `make test` prints the CPU time of its tests, with all workers and their children."""

import os
import re
import sys

import pytest
from commands import ROOT, captured
from tolerances import CPU_SECONDS

BUSY = "import time\nwhile time.process_time() < {seconds}: pass\n"
FILES = {
    "test_own.py": "import time\ndef test_it():\n"
    "    end = time.process_time() + 0.6\n    while time.process_time() < end: pass\n",
    "test_child.py": "import subprocess, sys\n"
    f"def test_it():\n    subprocess.run([sys.executable, '-c', {BUSY.format(seconds=1.2)!r}])\n",
    **{f"test_cheap_{number}.py": "def test_it(): pass\n" for number in range(12)},
}


@pytest.mark.ci
@pytest.mark.parametrize("workers", [[], ["-p", "xdist", "-n", "2", "--dist", "loadfile"]])
def test_every_files_cpu_time_is_printed_and_the_sum_comes_last(tmp_path, workers):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    before = os.times()
    done = captured(
        [sys.executable, "-m", "pytest", "-p", "cpu_report", *workers, "."],
        cwd=tmp_path,
        env=os.environ
        | {"PYTHONPATH": str(ROOT / "tests" / "support"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    after = os.times()
    assert done.returncode == 0, done.stdout + done.stderr
    title, *table, last = done.stdout.splitlines()[-12:]
    assert title == "CPU seconds of the slowest files:"
    seconds = {name: float(spent) for spent, name in (row.split(maxsplit=1) for row in table)}
    assert list(seconds.values()) == sorted(seconds.values(), reverse=True)
    assert 0.6 <= seconds["test_own.py"] < 1.2 <= seconds["test_child.py"] < 2.4
    assert "(starting and collecting)" in seconds
    total = float(re.fullmatch(r"\d+\.\d CPU-minutes in all \((\d+) s\)", last)[1])
    spent = after.children_user + after.children_system
    spent -= before.children_user + before.children_system
    assert total == pytest.approx(spent, abs=CPU_SECONDS)
