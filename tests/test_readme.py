"""The README says what is so: its commands run, its tables come from result files."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands():
    """Every line of a bash block that starts Python; `make` builds environments and is CI's."""
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("python")]


@pytest.mark.parametrize("command", commands())
def test_each_command_runs(command, tmp_path):
    command = command.replace("out.wav", str(tmp_path / "out.wav"))
    command = command.replace("--steps 50", "--steps 5").replace("--runs 5", "--runs 1")
    words = [sys.executable, *command.split(" ", 1)[1:]]
    done = subprocess.run(
        " ".join(words), shell=True, cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    if "out.wav" in command:
        assert (tmp_path / "out.wav").stat().st_size > 1000


def test_the_first_screen_has_the_two_commands():
    screen = "\n".join(README.splitlines()[:22])
    assert "make demo TEXT=" in screen and "make test" in screen
    makefile = (ROOT / "Makefile").read_text()
    assert "demo:" in makefile and "test:" in makefile


@pytest.mark.parametrize("block", blocks("python"))
def test_the_python_example_runs(block, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        env={**__import__("os").environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr


def test_the_measured_table_is_generated_from_the_result_files():
    done = subprocess.run([sys.executable, "benchmarks/tables.py", "--check"], cwd=ROOT, timeout=60)
    assert done.returncode == 0, "run python benchmarks/tables.py"


def test_every_linked_file_exists():
    for name in re.findall(r"`((?:docs|csrc|benchmarks)/[\w./-]+)`", README):
        assert (ROOT / name).exists(), name


def test_ci_calls_the_readmes_test_command():
    assert "make test" in (ROOT / ".ci" / "run").read_text()
