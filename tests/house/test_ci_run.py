""".ci/run installs nvcc before it tests."""

import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from commands import ROOT, captured, run, write_program

SCRIPT = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
# A Python that finds nvcc when the file `nvcc` is there; its pip installs one, or fails.
PYTHON = """#!{python}
import pathlib, sys
here = pathlib.Path({here!r})
does = "install" if "pip" in sys.argv else "find"
with open(here / "calls", "a") as calls:
    calls.write(does + " ")
if does == "install":
    assert sys.argv[-1] == ".[nvcc]"
    if {offline}:
        sys.exit(1)
    (here / "nvcc").touch()
sys.exit(not (here / "nvcc").exists())
"""


@pytest.mark.parametrize(
    ("found", "offline", "calls", "succeeds"),
    [
        (True, True, "find find ", True),
        (False, False, "find install find ", True),
        (False, True, "find install ", False),
    ],
)
def test_an_nvcc_is_installed_where_none_is_found(tmp_path, found, offline, calls, succeeds):
    for name in ("requirements.txt", "pyproject.toml"):  # older than the environment that is ready
        shutil.copy2(ROOT / name, tmp_path)
    text = PYTHON.format(python=sys.executable, here=str(tmp_path), offline=offline)
    write_program(tmp_path / "bin" / "python", text)
    for step in (".torch-ready", ".test-ready"):
        (tmp_path / step).touch()
    if found:
        (tmp_path / "nvcc").touch()
    done = captured(
        ["make", "--silent", f"--file={ROOT / 'Makefile'}", "nvcc", f"VENV={tmp_path}"],
        cwd=tmp_path,
    )
    assert (done.returncode == 0) == succeeds, done.stderr
    assert (tmp_path / "calls").read_text() == calls


def test_ci_has_an_nvcc_before_it_tests_reads_their_reports_and_ends_with_the_first_failure():
    assert "set -euo pipefail" in SCRIPT
    steps = [line for line in SCRIPT.splitlines() if line.startswith("make ")]
    tests = ["make test", "make test-ci", "make test-torch", "make test-user"]
    assert steps == ["make nvcc", *tests, "make ledger"]
    assert SCRIPT.rindex(" &\n") < SCRIPT.index("\nwait\n") < SCRIPT.index("\nmake test\n")


def test_the_tests_that_ci_runs_alone_are_slow():
    """pytest fails where it finds no test, but only after the half hour of `make` before it."""
    files = re.findall(r"pytest -m slow (\S+)", SCRIPT)
    assert len(files) == 2
    assert all("@pytest.mark.slow" in (ROOT / name).read_text(encoding="utf-8") for name in files)


@pytest.mark.ci
def test_a_run_fails_in_which_too_few_tests_passed():
    words = ["-m", "pytest", "-q", "-n", "1", "--at-least", "1200", "tests/test_printable.py"]
    done = run(*words)
    assert done.returncode == 1
    assert "passed; there must be 1200 at least" in done.stdout


@pytest.mark.parametrize(
    ("asked", "text", "is_left_out"),
    [
        ("ci and not slow", "@pytest.mark.slow", True),
        ("ci and not slow", "@pytest.mark.ci", None),
        ("ci and alone", "@pytest.mark.ci", True),
        ("not slow and not ci", "\npytestmark = pytest.mark.ci", True),
        ("not slow and not ci", "\n@pytest.mark.ci", None),
        ("ci and gpu or slow", "@pytest.mark.slow", None),
        ("slow", "", None),
        ("", "\npytestmark = pytest.mark.ci", None),
    ],
)
def test_a_file_is_imported_if_any_test_is_selected(request, tmp_path, asked, text, is_left_out):
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    (tmp_path / "test_it.py").write_text(text)
    config = SimpleNamespace(option=SimpleNamespace(markexpr=asked))
    assert conftest.pytest_ignore_collect(tmp_path / "test_it.py", config) is is_left_out


def test_only_files_of_tests_give_marks_by_which_files_are_left_out():
    others = [path for path in (ROOT / "tests").rglob("*.py") if path.name[:5] != "test_"]
    assert not [
        path
        for path in others
        if re.search(r"mark\.(ci|alone|own_backend)", path.read_text("utf-8"))
    ]


def test_the_files_that_test_torch_leaves_out_take_no_backend_of_it():
    files = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    files = [text for text in files if "\npytestmark = pytest.mark.own_backend" in text]
    assert len(files) == 3
    for text in files:
        assert not re.search(r"tiny_engine\((?![^)]*\bbackend=)", text)
        for fixture in set(re.findall(r"def test_\w+\([^)]*\b(tts|backend)\b", text)):
            assert f"def {fixture}(" in text or f'"{fixture}"' in text


def made_by(*targets: str) -> str:
    """The commands with which `make` would reach these targets."""
    return subprocess.check_output(["make", "--dry-run", *targets], cwd=ROOT, text=True)


def test_the_users_run_must_have_most_tests():
    assert "--at-least 1200 tests/server tests/pipecat tests/cli" in made_by("test-user")


def test_the_ledger_reads_the_reports_that_the_tests_write():
    commands = made_by("test", "test-ci", "ledger")
    written = re.findall(r"--junit-xml (\S+)", commands)
    assert len(written) == 2
    assert re.findall(r"--report (\S+)", commands) == written
