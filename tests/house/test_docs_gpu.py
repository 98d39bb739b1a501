"""The pages about GPUs: their commands are run, their files exist, their figures are the log's."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from commands import ROOT, CommandsHere, lines

from qwen_megakernel.native import compiling
from tools.kernel_study import mutate_kernel

PAGES = ("gpu-setup", "kernel-adaptation", "performance-journey", "insights")
SETUP = (ROOT / "docs" / "gpu-setup.md").read_text(encoding="utf-8")
NEEDS_GPU, NO_GPU = 3, 77  # exit codes: no GPU for --backend kernel; for gpu_check


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")


def expected(command: str) -> int:
    if torch.cuda.is_available():
        return 0
    if command.startswith("tools/gpu_check.sh"):
        return NO_GPU
    return NEEDS_GPU if "--backend kernel" in command else 0


def commands() -> Iterator[object]:
    """In every run one of those that end for want of a GPU, and in .ci/run the others."""
    for line in lines(SETUP):
        is_more = line.startswith("tools/gpu_check.sh") and "--set" in line
        yield pytest.param(line, marks=pytest.mark.ci if is_more else [])


@pytest.mark.parametrize("command", list(commands()))
def test_every_command_of_the_setup_runs_as_the_page_says(
    run_here: CommandsHere, command: str, tmp_path: Path
):
    if command.startswith("tools/gpu_check.sh") and torch.cuda.is_available():
        pytest.skip("nine minutes of a GPU")
    words = shlex.split(command.replace("out.wav", str(tmp_path / "out.wav")))
    if "pages.py" in command:
        words.append("--check")  # the page itself is not for a test to write
    if words[0] == "python":
        done = run_here(*words[1:])
    else:
        environment = os.environ | {"PYTHON": sys.executable}
        done = subprocess.run(
            words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250
        )
    assert done.returncode == expected(command), done.stdout + done.stderr
    if done.returncode == NEEDS_GPU:
        assert "torch sees none" in done.stderr
    if "--output" in command and done.returncode == 0:
        assert "backend" in done.stderr  # which one it took, and why
        assert (tmp_path / "out.wav").stat().st_size > 44


def test_the_checks_fit_half_an_hour_of_a_machine_that_ends_a_command_after_ten_minutes():
    seconds = [int(line.split("--seconds ")[1]) for line in lines(SETUP) if "--seconds" in line]
    assert len(seconds) == 4
    calls = [*seconds[:2], sum(seconds[2:])]
    assert max(calls) <= 9 * 60 and sum(calls) <= 27 * 60  # the rest starts the machine


@pytest.mark.parametrize("page", PAGES)
def test_every_file_a_page_names_is_there(page: str):
    pattern = r"`((?:docs|csrc|benchmarks|tests|tools|deploy|examples|qwen_megakernel)/[\w./-]*)`"
    names = re.findall(pattern, text_of(page))
    assert names
    missing = [name for name in names if not (ROOT / name).exists() and "NAME" not in name]
    assert not missing


def figures(text: str) -> set[str]:
    """Numbers with a unit of speed, size or share."""
    return set(re.findall(r"\d[\d.,]*(?: to \d[\d.,]*)? ?(?:GB/s|GB|MB|KB|ms|us|µs|%|times)", text))


def test_the_journey_tells_no_figure_that_the_log_does_not():
    log = " ".join((ROOT / "benchmarks" / "LOG.md").read_text(encoding="utf-8").split())
    told = figures(" ".join(text_of("performance-journey").split()))
    assert len(told) >= 6
    assert not {figure for figure in told if figure not in log}


def test_what_refuses_is_quoted_as_the_program_says_it():
    source = " ".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "qwen_megakernel").rglob("*.py")
    )
    quoted = re.findall(r"^\| .*?`([^`]+)`", SETUP.split("## When something is refused")[1], re.M)
    assert len(quoted) == 9
    for message in quoted:
        parts = [part.strip(" ;,") for part in message.split("...")]
        for part in (part for part in parts if len(part) > 8 and "sm_75" not in part):
            assert part in source, part


def test_the_table_of_mutants_has_every_synchronisation_of_the_kernel():
    sites = [
        (f"{file}:{line}", f"`{removed}`")
        for file, line, removed, _ in mutate_kernel.mutants(compiling.source_folder())
    ]
    told = [tuple(row[:2]) for row in mutate_kernel.table_rows()]
    assert told == sites, "Run mutate_kernel.py; --unnoticed if lines have only moved."
