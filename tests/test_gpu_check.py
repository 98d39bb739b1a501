"""tools/gpu_check.py: steps that fail or hang do not stop the others; a bare machine is enough."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import performance
from tools import compute_sanitizer, kernel_timer

ROOT = Path(__file__).parents[1]

# What the machines that have a GPU do not have.
ABSENT = ("soundfile", "soxr", "pipecat", "sentence_stream", "qwen_tts", "librosa", "loguru")

SILICON = ("endurance", "int8", "listeners")  # sets whose steps are in gpu_silicon.py

PLANTED = """
import json, subprocess, sys, time
step, output = sys.argv[1], sys.argv[3]
print(step, "says something")
if step == "tests":
    sys.exit("planted failure")
if step == "endurance":
    subprocess.Popen(["sleep", "321"])
    json.dump({"so far": 1}, open(output, "w"))
    time.sleep(60)
if step == "sanitizer":
    json.dump({"status": "refused", "why": "planted"}, open(output, "w"))
else:
    json.dump({"step": step}, open(output, "w"))
"""


@pytest.fixture
def gpu_check(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "tools" / "gpu_check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "query", lambda fields: None)
    return module


def run(gpu_check, monkeypatch, tmp_path, *arguments: str) -> tuple[int, dict]:
    steps = tmp_path / "steps.py"
    steps.write_text(PLANTED)
    monkeypatch.setattr(gpu_check, "STEPS", steps)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--out", str(tmp_path / "out"), *arguments])
    code = gpu_check.main()
    return code, json.loads((tmp_path / "out" / "result.json").read_text())


def test_one_failing_and_one_hanging_step_leave_the_others(
    gpu_check, monkeypatch, tmp_path, capsys
):
    monkeypatch.setitem(gpu_check.BUDGETS, "endurance", 6)
    started = time.monotonic()
    names = ("build", "tests", "endurance", "sanitizer", "benchmark")
    code, result = run(gpu_check, monkeypatch, tmp_path, "--emulation", "--steps", ",".join(names))
    statuses = {name: step["status"] for name, step in result["steps"].items()}
    expected = ("ok", "failed", "timeout", "refused", "ok")
    assert code == 1 and statuses == dict(zip(names, expected, strict=True))
    assert time.monotonic() - started < 20
    assert result["steps"]["benchmark"]["result"] == {"step": "benchmark"}
    assert result["steps"]["endurance"]["result"] == {"so far": 1}
    assert "planted failure" in capsys.readouterr().out
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "sleep 321" not in processes  # what a step started ends with it


def test_a_launch_is_timed_without_the_hosts_way_to_it(monkeypatch):
    log = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("record")

        def synchronize(self):
            log.append("wait")

        def elapsed_time(self, last):
            return 1.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: log.append("busy"))
    timer = kernel_timer.KernelTimer(torch.device("cuda"))
    assert timer._timed(lambda: log.append("launch")) == 1.5
    assert log == ["busy", "record", "launch", "record", "wait"]


def test_a_step_is_told_to_end_before_its_time_is_up(gpu_check, monkeypatch, tmp_path):
    monkeypatch.setitem(gpu_check.BUDGETS, "build", 30)
    told = "print(float(sys.argv[sys.argv.index('--until') + 1]) - time.monotonic())"
    monkeypatch.setattr(sys.modules[__name__], "PLANTED", PLANTED + told)
    run(gpu_check, monkeypatch, tmp_path, "--emulation", "--steps", "build")
    left = float((tmp_path / "out" / "log.txt").read_text().split()[-1])
    assert 20 < left <= 30 - gpu_check.END_SECONDS  # the imports are in it, whatever they take


def test_sets_of_one_call_do_not_write_over_each_other(gpu_check, monkeypatch, tmp_path):
    monkeypatch.setenv("OUT", str(tmp_path))
    for name in ("truth", "int8"):
        arguments = ["gpu_check.py", "--emulation", "--set", name, "--seconds", "1"]
        monkeypatch.setattr(sys, "argv", arguments)
        assert gpu_check.main() == 0
    written = {path.parent.name for path in tmp_path.glob("*/result.json")}
    assert written == {"gpu_emulation", "gpu_emulation_int8"}


@pytest.mark.parametrize(
    ("says", "code", "expected"),
    [
        ("========= ERROR SUMMARY: 0 errors", 0, "ok"),
        ("A module could not be found\n========= ERROR SUMMARY: 3 errors", 9, "failed"),
        ("========= Error: Device not supported", 1, "refused"),
    ],
)
def test_what_a_sanitizer_says_is_what_counts(says, code, expected):
    command = [sys.executable, "-c", f"print({says!r}); raise SystemExit({code})"]
    found = compute_sanitizer.run(command, 20)
    assert found == {"status": expected, "says": says.splitlines()[-1]}


def test_a_sanitizer_that_takes_too_long_leaves_the_others_their_time():
    command = ["sh", "-c", "echo ========= begun; sleep 322 & wait"]
    started = time.monotonic()
    found = compute_sanitizer.run(command, 1)
    assert found == {"status": "timeout", "says": "========= begun"}
    assert time.monotonic() - started < 10
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "sleep 322" not in processes


def test_refused_is_not_failed(gpu_check, monkeypatch, tmp_path):
    code, _ = run(gpu_check, monkeypatch, tmp_path, "--emulation", "--steps", "build,sanitizer")
    assert code == 0


def test_when_time_is_up_the_rest_is_not_begun(gpu_check, monkeypatch, tmp_path):
    arguments = ("--emulation", "--seconds", "1", "--steps", "build,benchmark")
    code, result = run(gpu_check, monkeypatch, tmp_path, *arguments)
    assert {step["status"] for step in result["steps"].values()} == {"no time"}
    assert result["seconds"] < 2 and code == 0


def test_all_steps_end_within_nine_minutes(gpu_check):
    assert gpu_check.TOTAL_SECONDS < 9 * 60


def test_every_set_begins_with_what_a_fresh_machine_lacks(gpu_check):
    for steps in gpu_check.SETS.values():
        first = next(iter(steps))
        assert first.endswith("build") and steps[first] >= 150


def test_without_a_gpu_it_says_so(gpu_check, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_check, "has_gpu", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    assert gpu_check.main() == 77
    assert "No GPU" in capsys.readouterr().out


def bare_machine(tmp_path: Path) -> dict[str, str]:
    """An environment in which the packages of `ABSENT` cannot be imported."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nfor name in {ABSENT}:\n    sys.modules[name] = None\n"
    )
    return os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}


SLOW = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("which", "steps"),
    [
        ("truth", "microbenchmark,endurance,sanitizer"),
        pytest.param(
            "truth", "build,validate_0.6b,frame_times,tests,benchmark,validate_1.7b", marks=SLOW
        ),
        ("endurance", "abort,two_engines"),
        pytest.param("int8", "int8_build,int8_validate_0.6b,int8_frame_times", marks=SLOW),
        pytest.param("endurance", "batch_curve,million", marks=SLOW),
        ("listeners", "engine_build,memory"),
        pytest.param("listeners", "first_sound,peers,open_loop,texts,capacity", marks=SLOW),
    ],
)
def test_the_steps_run_by_emulation_on_a_bare_machine(tmp_path, which, steps):
    command = ["tools/gpu_check.sh", "--emulation", "--out", str(tmp_path / "out"), "--set", which]
    done = subprocess.run(
        [*command, "--steps", steps],
        cwd=ROOT,
        env=bare_machine(tmp_path) | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert list(result["steps"]) == steps.split(",") and result["commit"]
    found = {name: step["result"] for name, step in result["steps"].items()}
    if which != "truth":
        check_rows(found)
    elif "endurance" in steps:
        endurance = result["steps"]["endurance"]["result"]
        assert endurance["goal_reached"] and endurance["load_rounds_beside"] > 0
        kinds = {row["kind"] for row in result["steps"]["microbenchmark"]["result"]["rows"]}
        assert kinds == {"device", "copy", "read", "barrier", "frame_skeleton"}
    else:
        rows = result["steps"]["frame_times"]["result"]["rows"]
        assert [row["streams"] for row in rows] == [1, 4, 8, 16]
        assert all(row["ms_per_frame"] > 0 for row in rows)


def check_rows(found: dict) -> None:
    """What docs/performance.md shows of each step is there."""
    for step, (_, columns) in performance.STEPS.items():
        for row in found.get(step, {}).get("rows", []):
            if "why_not" not in row:
                assert all(performance.value(row, column) is not None for column in columns), row
    if "abort" in found:
        assert found["abort"]["timeouts"] and found["abort"]["steps_cut_short"]
    if "two_engines" in found:
        assert found["two_engines"]["outcomes"] == {"same": 4}
    if "peers" in found:
        systems = {row["system"]: "why_not" in row for row in found["peers"]["rows"]}
        assert systems == {"graph": False, "torch": False, "qwen-tts": True}


def test_every_step_of_every_set_is_known_to_its_script(gpu_check):
    for script, names in (
        (gpu_check.STEPS, gpu_check.SETS["truth"]),
        (gpu_check.SILICON_STEPS, [step for which in SILICON for step in gpu_check.SETS[which]]),
    ):
        table = re.search(r"^STEPS = \{\n(.*?)^\}", script.read_text(), re.DOTALL | re.MULTILINE)
        assert set(names) <= set(re.findall(r'"(\S+)": ', table.group(1)))
