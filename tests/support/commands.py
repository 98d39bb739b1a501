"""Runs commands that users type and pages show: in a new process, or faster in this one."""

import io
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qwen_megakernel.cli import main

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]

# Ends a program of Python that runs another one: sys.argv[1:] are that one's words.
AS_PROGRAM = """
import os, runpy
sys.path.insert(0, "")
sys.argv = sys.argv[1:]
if sys.argv[0] == "-m":
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def fences(page: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a Markdown page: (language, code)."""
    return re.findall(r"^ *```(\w*)\n(.*?)^ *```", page, re.DOTALL | re.MULTILINE)


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a Markdown page in one language."""
    return [code for name, code in fences(page) if name == language]


def lines(page: str) -> list[str]:
    """Return the commands in a page's bash blocks."""
    return [line for block in blocks(page, "bash") for line in block.splitlines()]


def package_commands(page: str, patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield the words of each command of this package in a page, and run all others, in order."""
    for command in lines(page):
        words = shlex.split(os.path.expandvars(command))
        if words[0] == "python":
            assert words[:3] == ["python", "-m", "qwen_megakernel"]
            yield words[3:]
            continue
        for setting in words[1:] if words[0] == "export" else ():
            patch.setenv(*setting.split("="))
        subprocess.run(command, shell=True, check=True)


def captured(command: Sequence[object], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command, and keep what it prints."""
    return subprocess.run(command, capture_output=True, text=True, **options)


def script(name: str) -> SimpleNamespace:
    """Return what a file of the repository defines."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / name)))


def run(*command: object, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python command`, in any folder, with the package of this checkout."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return captured([sys.executable, *map(str, command)], cwd=cwd, timeout=200, env=environment)


def checked(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, list[str], list[str]]:
    """Run a `verify` here: its exit code, and the names of the checks that passed and failed."""
    code = main.main([*map(str, words)])
    outcome: dict[str, list[str]] = {"ok  ": [], "FAIL": []}
    for line in capsys.readouterr().out.splitlines():
        if line[:4] in outcome:
            outcome[line[:4]].append(line[5:].split(":")[0])
    return code, outcome["ok  "], outcome["FAIL"]


def write_program(path: Path, text: str) -> Path:
    """Write a file that can be executed, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def start(*command: object) -> subprocess.Popen[str]:
    """Start `python command`, which the test may interrupt."""
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        # A suite started in the background of a shell ignores Ctrl-C, and this process would, too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


class CommandsHere:
    """Runs commands without a new process and the seconds in which it imports torch.

    Pytest captures messages of `logging` here; a test that needs them on stderr uses `run`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *command: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a script of the checkout, `-m` and a module or `-c` and a program; with arguments."""
        kind, *arguments = map(str, command)
        name = arguments.pop(0) if kind in ("-m", "-c") else kind
        self._monkeypatch.setattr(sys, "argv", [name if kind == "-m" else kind, *arguments])
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        self._capsys.readouterr()
        code = 0
        try:
            if kind == "-m":
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            elif kind == "-c":
                exec(compile(name, "<string>", "exec"), {"__name__": "__main__"})
            else:
                runpy.run_path(str(ROOT / name), run_name="__main__")
        except SystemExit as ended:
            code = ended.code or 0
        if isinstance(code, str):  # Python prints it when it exits
            print(code, file=sys.stderr)
            code = 1
        return subprocess.CompletedProcess(command, code, *self._capsys.readouterr())
