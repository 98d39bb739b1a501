"""The README is true: its commands run, and its tables come from result files."""

import json
import os
import re
import shlex
import shutil
import sys

import pytest
from commands import ROOT, blocks, captured, lines, write_program
from live_server import serving
from tiny_speech import tiny_engine

from qwen_megakernel.cli import main

README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands():
    """Return every line of a bash block that starts Python; `make` lines are left to CI."""
    for line in lines(README):
        if line.startswith("python"):  # one of them compiles the kernel
            yield pytest.param(line, marks=pytest.mark.ci if "validate_kernel" in line else [])


@pytest.mark.parametrize("command", list(commands()))
def test_each_command_runs(run_here, command, tmp_path):
    command = command.replace("out.wav", str(tmp_path / "out.wav"))
    command = command.replace("--runs 5", "--runs 1")
    if "validate_kernel" in command:
        command += " --steps 5"
    done = run_here(*shlex.split(command)[1:])
    assert done.returncode == 0, done.stderr
    if "out.wav" in command:
        assert (tmp_path / "out.wav").stat().st_size > 1000


def test_the_first_screen_has_the_two_commands():
    screen = "\n".join(README.splitlines()[:22])
    assert "make demo TEXT=" in screen and "make test" in screen
    makefile = (ROOT / "Makefile").read_text()
    assert "demo:" in makefile and "test:" in makefile


TRICKY = """It costs $5 & `touch ran`; $(shell touch ran) "she" said: it's \\n 100 % $HOME #1."""


@pytest.mark.parametrize(
    ("argument", "variable", "said"),
    [
        ([], None, "Hello, how are you today?"),
        ([f"TEXT={TRICKY}"], None, TRICKY),
        ([], TRICKY, TRICKY),
        (["TEXT=-5 degrees"], TRICKY, "-5 degrees"),
    ],
)
def test_make_demo_passes_the_text_on_unchanged(argument, variable, said, tmp_path):
    """The Python of this test only prints its arguments, and checks that it writes bytecode."""
    for name in ("requirements.txt", "pyproject.toml"):  # older than the environment that is ready
        shutil.copy2(ROOT / name, tmp_path)
    tell = "import json, sys\nassert not sys.dont_write_bytecode\nprint(json.dumps(sys.argv))\n"
    write_program(tmp_path / "bin" / "python", f"#!{sys.executable}\n{tell}")
    for step in (".torch-ready", ".demo-ready"):
        (tmp_path / step).touch()
    environment = {name: value for name, value in os.environ.items() if name != "TEXT"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    if variable is not None:
        environment["TEXT"] = variable
    done = captured(
        ["make", "--silent", f"--file={ROOT / 'Makefile'}", "demo", f"VENV={tmp_path}", *argument],
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert f"--text={said}" in json.loads(done.stdout)
    assert not (tmp_path / "ran").exists()


def test_the_server_answers_openais_voices():
    [command] = re.findall(r"`python -m qwen_megakernel (serve [^`]+)`", README)
    args = main.parser().parse_args(command.split())
    with tiny_engine(args.model) as tts, serving(tts, voice_fallback=args.voice_fallback) as live:
        assert args.port == 8090
        assert live.speak("Hello.", voice="alloy", model="tts-1").status_code == 200


@pytest.mark.parametrize("block", blocks(README, "python"))
def test_the_python_example_runs(run_here, monkeypatch, block, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run_here("-c", block).returncode == 0
    assert (tmp_path / "hello.wav").stat().st_size > 1000


def test_every_linked_file_exists():
    for name in re.findall(r"`((?:docs|csrc|benchmarks)/[\w./-]+)`", README):
        assert (ROOT / name).exists(), name


def test_ci_calls_the_readmes_test_command():
    assert "make test" in (ROOT / ".ci" / "run").read_text()
