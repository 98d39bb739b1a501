"""tools/gpu_check: the verdict on a compute sanitizer's run, and the timing of a launch."""

import subprocess
import sys
import time
from unittest.mock import Mock, call

import pytest
import torch

from tools.gpu_check import compute_sanitizer, kernel_timer


def test_a_launch_is_timed_without_the_hosts_way_to_it(monkeypatch):
    log = Mock()
    monkeypatch.setattr(torch.cuda, "Event", log.Event)
    monkeypatch.setattr(torch.cuda, "_sleep", log.sleep)
    log.Event.return_value.elapsed_time.return_value = 1.5
    timer = kernel_timer.KernelTimer(torch.device("cuda"))
    assert timer._timed(log.launch) == 1.5
    assert all(made == call.Event(enable_timing=True) for made in log.mock_calls[:2])
    names = [name.removeprefix("Event().") for name, *_ in log.mock_calls[2:]]
    assert names == ["sleep", "record", "launch", "record", "synchronize", "elapsed_time"]


@pytest.mark.parametrize(
    ("says", "code", "expected"),
    [
        ("========= ERROR SUMMARY: 0 errors", 0, "ok"),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0, "ok"),
        ("A module could not be found\n========= ERROR SUMMARY: 3 errors", 9, "failed"),
        ("========= Error: Device not supported", 1, "refused"),
        (
            "========= Target application terminated before first instrumented API call",
            0,
            "refused",
        ),
        (
            "The cooperative grid was refused\nCUDA error 720\n========= ERROR SUMMARY: 1 error",
            9,
            "refused",
        ),
        (
            "not be launched (CUDA error 701: too many)\n========= ERROR SUMMARY: 0 errors",
            1,
            "refused",
        ),
        ("CUDA error 701\n========= ERROR SUMMARY: 5 errors", 9, "failed"),
        ("CUDA error 700\n========= ERROR SUMMARY: 1 error", 9, "failed"),
    ],
)
def test_what_a_sanitizer_says_is_what_counts(says, code, expected):
    command = [sys.executable, "-c", f"print({says!r}); raise SystemExit({code})"]
    found = compute_sanitizer.run(command, 20)
    why = [line for line in says.splitlines() if expected == "refused" and "CUDA error" in line]
    assert found == {"status": expected, "says": (why or says.splitlines())[-1]}


def test_a_sanitizer_waits_for_its_program_as_long_as_we_do():
    command = compute_sanitizer.command("compute-sanitizer", "memcheck")
    assert "--launch-timeout 0" in " ".join(command)


def test_a_sanitizer_that_takes_too_long_leaves_the_others_their_time():
    command = ["sh", "-c", "echo ========= begun; sleep 322 & wait"]
    started = time.monotonic()
    found = compute_sanitizer.run(command, 1)
    assert found == {"status": "timeout", "says": "========= begun"}
    assert time.monotonic() - started < 10
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "sleep 322" not in processes
