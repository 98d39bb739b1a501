"""The pages about GPUs: their commands run, their files exist, their figures are in the log."""

import os
import re
import shlex
import sys
from collections.abc import Iterator

import pytest
import torch
from commands import ROOT, captured, lines

from benchmarks import page_parts
from qwen_megakernel.native import compiling
from tools.kernel_study import mutate_kernel

PAGES = ("gpu-setup", "kernel-adaptation", "performance-journey", "insights")
SETUP = (ROOT / "docs" / "gpu-setup.md").read_text(encoding="utf-8")
NEEDS_GPU, NO_GPU = 3, 77  # exit codes: no GPU for --backend kernel; for gpu_check


def expected(command: str) -> int:
    if torch.cuda.is_available():
        return 0
    if command.startswith("tools/gpu_check.sh"):
        return NO_GPU
    return NEEDS_GPU if "--backend kernel" in command else 0


def commands() -> Iterator[object]:
    """Yield the commands; only .ci/run runs those of gpu_check.sh that name a set."""
    for line in lines(SETUP):
        is_more = line.startswith("tools/gpu_check.sh") and "--set" in line
        yield pytest.param(line, marks=pytest.mark.ci if is_more else [])


@pytest.mark.parametrize("command", list(commands()))
def test_every_command_of_the_setup_runs_as_the_page_says(run_here, command, tmp_path):
    if command.startswith("tools/gpu_check.sh") and torch.cuda.is_available():
        pytest.skip("minutes of a GPU")
    words = shlex.split(command.replace("out.wav", str(tmp_path / "out.wav")))
    if "pages.py" in command:
        words.append("--check")  # a test must not write the page itself
    if words[0] == "python":
        done = run_here(*words[1:])
    else:
        environment = os.environ | {"PYTHON": sys.executable}
        done = captured(words, cwd=ROOT, env=environment, timeout=250)
    assert done.returncode == expected(command), done.stdout + done.stderr
    if done.returncode == NEEDS_GPU:
        assert "torch sees none" in done.stderr
    if "--output" in command and done.returncode == 0:
        assert "backend" in done.stderr  # the backend and the reason for it
        assert (tmp_path / "out.wav").stat().st_size > 44


def test_the_checks_fit_half_an_hour_of_a_machine_that_ends_a_command_after_ten_minutes():
    seconds = [int(line.split("--seconds ")[1]) for line in lines(SETUP) if "--seconds" in line]
    assert seconds == [240, 240, 240, 300, 300]
    start = 90  # facts of the machine, which differ at every call
    assert sum(seconds) + start * len(seconds) <= 30 * 60


# A number with a unit of speed, size or share, or with decimals; "0.6B" is a model's name.
UNIT = r"(?:GB/s|GB|MB|KB|ms|us|µs|microseconds?|times)\b|%"
FIGURE = re.compile(rf"(?<![\w.,])(?:\d+\.\d+(?!B\b)|\d[\d,]*(?: (?:to|->) [\d,]+)? ?(?:{UNIT}))")
# An entry of the log, and an addition to one: both begin with their date.
ENTRY = re.compile(
    r"^(?:## )?(\d{4}-\d\d-\d\d)(.*?)(?=^(?:## )?\d{4}-\d\d-\d\d|^## |\Z)", re.M | re.S
)


def one_line(text: str) -> str:
    return " ".join(text.split())


def unsourced(page: str, log: str) -> list[str]:
    """Return a page's figures that the log does not have at their date, without generated ones."""
    entries = [(date, one_line(text)) for date, text in ENTRY.findall(log)]
    written = re.sub(f"{page_parts.BEGIN}.*?{page_parts.END}", "", page, flags=re.S)
    wrong = []
    for block in map(one_line, re.split(r"\n\n|\n(?=- |\d+\. )", written)):
        dates = re.findall(r"\(log, (\d{4}-\d\d-\d\d)\)", block)
        named = " ".join(text for date, text in entries if date in dates)
        wrong += [
            figure
            for figure in FIGURE.findall(block)
            if not re.search(rf"(?<![\w.,]){re.escape(figure)}(?!\d)", named)
        ]
    return wrong


def test_every_figure_of_the_journey_is_generated_or_names_its_entry_of_the_log():
    log = (ROOT / "benchmarks" / "LOG.md").read_text(encoding="utf-8")
    journey = (ROOT / "docs" / "performance-journey.md").read_text(encoding="utf-8")
    assert len(FIGURE.findall(journey)) >= 12
    assert not unsourced(journey, log)


def test_a_figure_of_another_entry_or_of_none_is_found():
    log = "## 2026-01-02  New\nIt is 2.8 times.\n\n## 2026-01-01  Old\nIt was 1.8 times, 176 ms.\n"
    log += "2026-01-02 (commit abc): 53 GB/s.\n"
    right = "- 2.8 times (log, 2026-01-02).\n- 176 ms of 0.6B, 1.8 times (log, 2026-01-01)."
    assert not unsourced(right + "\n- 53 GB/s (log, 2026-01-02).", log)
    assert unsourced("1.8 times (log, 2026-01-02).", log) == ["1.8"]
    assert unsourced("1.8 times.\n\nLater (log, 2026-01-01) 76 ms, 53 GB/s.", log) == [
        *("1.8", "76 ms", "53 GB/s")
    ]


def test_refusals_are_quoted_as_the_program_prints_them():
    source = " ".join(path.read_text("utf-8") for path in (ROOT / "qwen_megakernel").rglob("*.py"))
    refusals = SETUP.split("## When something is refused")[1].split("\n## ")[0]
    quoted = re.findall(r"^\| .*?`([^`]+)`", refusals, re.M)
    assert len(quoted) == 10
    for message in quoted:
        parts = [part.strip(" ;,") for part in message.split("...")]
        for part in (part for part in parts if len(part) > 8 and "sm_75" not in part):
            assert part in source, part


def test_the_table_of_mutants_has_every_synchronisation_of_the_kernel():
    sites = [
        (f"{file}:{line}", f"`{removed}`")
        for file, line, removed, _ in mutate_kernel.mutants(compiling.source_folder())
    ]
    listed = [tuple(row[:2]) for row in mutate_kernel.table_rows()]
    assert listed == sites, "Run mutate_kernel.py; --unnoticed if lines have only moved."
