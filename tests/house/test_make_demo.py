"""`make demo` installs all that the README's commands need, and reports progress while it works."""

import json
import re
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from commands import AS_PROGRAM, EXTRAS, PROJECT, ROOT, captured, lines, run, write_program
from installed import distributions
from packaging.utils import canonicalize_name

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

# Runs a command without the modules that its first argument names.
WITHOUT = f"""
import json, sys
absent = set(json.loads(sys.argv[1]))
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in absent:
            return self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = map(Without, sys.meta_path)
for name in absent & {{*sys.modules}}:
    del sys.modules[name]
sys.argv.pop(1)
{AS_PROGRAM}
"""


def absent() -> list[str]:
    """Return the modules of this environment that `make demo` does not install."""
    (recipe,) = re.findall(r"\.demo-ready:.*?\n(.*?)@touch", MAKEFILE, re.DOTALL)
    (extras,) = re.findall(r"--editable \.\[([^\]]+)\]", recipe.replace("$(COMMA)", ","))
    assert "-r requirements.txt" in recipe
    wanted = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line]
    wanted += PROJECT["dependencies"]
    for extra in extras.split(","):
        wanted += EXTRAS[extra]
    there = {*distributions(wanted), "qwen-megakernel", "pip", "setuptools"}
    modules = metadata.packages_distributions()
    return [
        name
        for name, homes in modules.items()
        if not there & {*map(canonicalize_name, homes)} and name not in sys.builtin_module_names
    ]


@pytest.fixture(scope="module")
def without() -> str:
    names = absent()
    assert {"pytest", "qwen_tts", "snac", "ray", "matplotlib"} <= {*names}
    assert not {"torch", "pipecat", "numpy", "soundfile"} & {*names}
    return json.dumps(names)


@pytest.mark.ci
@pytest.mark.parametrize("line", [line for line in lines(README) if line.startswith("python")])
def test_the_readmes_commands_need_no_more(without, line, tmp_path):
    line = line.replace("out.wav", str(tmp_path / "out.wav")).replace("--runs 5", "--runs 1")
    if "validate_kernel" in line:  # the kernel would need a compiler and two minutes
        line += " --backend graph --steps 2 --dtype float32"
    done = run("-c", WITHOUT, without, *shlex.split(line)[1:])
    assert done.returncode == 0, done.stderr


def test_the_readmes_server_needs_no_more(without):
    (command,) = re.findall(r"`python (-m qwen_megakernel serve [^`]+)`", README)
    words = [sys.executable, "-c", WITHOUT, without, *command.split(), "--port", "0"]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True) as server:
        said = []
        for line in server.stderr:
            said.append(line)
            if "listening on" in line:
                server.terminate()
    assert any("listening on" in line for line in said), "".join(said)


PYTHON = """#!/bin/sh
echo "$@" >> "{log}"
case "$2" in
venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
pip) sleep 1.3 ;;
esac
"""


def make_demo(folder: Path, python: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `make demo` with a new environment in a folder, and with the text of another Python."""
    given = (f"VENV={folder / 'venv'}", f"PYTHON={write_program(folder / 'python', python)}")
    command = ["make", f"--file={ROOT / 'Makefile'}", "--silent", "demo", *given, *words]
    return captured(command, cwd=ROOT)


def test_every_step_is_announced_and_reports_every_few_seconds_that_it_goes_on(tmp_path):
    log, began = tmp_path / "log", time.monotonic()
    done = make_demo(tmp_path, PYTHON.format(log=log), "SECONDS_BETWEEN_WORDS=1")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 20  # no child process stays and keeps the output open
    said = done.stdout.splitlines()
    steps = [line for line in said if re.search(r": .*(seconds|minutes?)", line)]
    assert [step.split(":")[0].split()[0] for step in steps] == ["Making", *["Installing"] * 2]
    assert said.count("  1 seconds so far") == 3
    assert log.read_text().count("pip install") == 3


def test_a_step_that_fails_ends_make(tmp_path):
    done = make_demo(tmp_path, "#!/bin/sh\nexit 7\n")
    assert done.returncode != 0 and "Error 7" in done.stderr
    assert "Installing" not in done.stdout


@pytest.mark.parametrize(("version", "is_refused"), [((3, 10, 12), True), ((3, 11, 0), False)])
def test_a_python_that_is_too_old_is_named_before_anything_is_installed(
    tmp_path, version, is_refused
):
    """The Python of this test says that it has another version, and can make no environment."""
    says = f"import sys\nsys.version_info = {version}\n"
    runs = "assert sys.argv[1] == '-c'\nexec(sys.argv[2])\n"
    done = make_demo(tmp_path, f"#!{sys.executable}\n{says}{runs}")
    assert done.returncode != 0
    assert ("is Python 3.10.12; this project needs 3.11 or newer" in done.stderr) == is_refused
    assert ("Making" in done.stdout) != is_refused
