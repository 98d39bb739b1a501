"""benchmarks/measures/threads.py measures every case with the threads and backend that it names."""

import json
import re
import subprocess

import pytest
from spies import results_of

from benchmarks import cpu_page, measure
from benchmarks.measures import threads
from qwen_megakernel.errors import QwenTTSError
from qwen_megakernel.native import cpu_threads


def test_one_thread_never_waits_and_the_native_ones_wait_in_their_own_way(monkeypatch):
    monkeypatch.setattr(cpu_threads, "available_cores", lambda: 2)
    assert list(threads.ways("cpu")) == [(1, "native"), (2, "native")]
    assert list(threads.ways("torch")) == [(1, "passive"), (2, "passive"), (2, "busy")]


@pytest.mark.ci
def test_both_backends_stand_in_one_file(monkeypatch, measured):
    monkeypatch.setattr(cpu_threads, "available_cores", lambda *_: 1)
    words = ["threads", "--models", "tiny-random", "--backend", "cpu", "torch", "--busy", "0"]
    code, found = measured(*words, "--runs", "1", "--max-frames", "3")
    rows = found["rows"]
    assert code == 0
    cases = [(row["backend"], row["threads"], row["waiting"]) for row in rows]
    assert cases == [("cpu", 1, "native"), ("torch", 1, "passive")]
    for row in rows:
        assert ("instruction_set" in row) == (row["backend"] == "cpu")
        assert row["busy"] == 0 and row["is_synthetic"]
        assert all(row[name]["p50"] >= 0 for name in threads.FIGURES)
        assert row["rtf"]["p50"] > 0
    monkeypatch.setattr(cpu_page, "load_results", lambda pattern: [found | {"file": pattern}])
    table = cpu_page.threads_table()
    for backend in ("cpu", "torch"):
        # A mark may follow the name, because the machine of a test is seldom idle.
        start = re.compile(rf"\| tiny-random [†‡]? ?\| {backend} \|")
        assert sum(bool(start.match(line)) for line in table) == 1


def test_a_case_that_ran_with_other_threads_is_no_row(monkeypatch):
    case = {"model": "tiny-random", "backend": "cpu", "threads": 1, "waiting": "native"}

    def run(command, **_):
        file = command[command.index("--json") + 1]
        with open(file, "w") as result:
            json.dump({"threads": 2}, result)
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(threads.subprocess, "run", run)
    args = measure.parser(["threads"]).parse_args(["threads"])
    with pytest.raises(QwenTTSError, match="2 threads"):
        threads.speak(args, case)


def test_busy_programs_run_as_long_as_the_block(monkeypatch):
    started = results_of(monkeypatch, subprocess, "Popen")
    with threads.busy_loops(2):
        assert [loop.poll() for loop in started] == [None, None]
    assert all(loop.poll() for loop in started)
