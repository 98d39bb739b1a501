"""`make demo` installs all that the README's commands need, and reports progress while it works."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from importlib import metadata

import pytest
from commands import EXTRAS, PROJECT, ROOT, lines, run
from packaging.requirements import Requirement

README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

# Runs a command without the modules that its first argument names.
WITHOUT = """
import json, runpy, sys
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
for name in absent & {*sys.modules}:
    del sys.modules[name]
sys.path.insert(0, "")
sys.argv = sys.argv[2:]
if sys.argv[0] == "-m":
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def installed(requirements: list[str]) -> set[str]:
    """Return the names of these requirements' packages, and of all that those need."""
    found: set[tuple[str, str]] = set()
    left = [Requirement(line) for line in requirements]
    while left:
        requirement = left.pop()
        for extra in ("", *requirement.extras):
            key = (canonical(requirement.name), extra)
            if key in found:
                continue
            found.add(key)
            try:
                needed = metadata.requires(requirement.name) or []
            except metadata.PackageNotFoundError:  # required only on another system
                continue
            for line in map(Requirement, needed):
                if line.marker is None or line.marker.evaluate({"extra": extra}):
                    left.append(line)
    return {name for name, _ in found}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def absent() -> list[str]:
    """Return the modules of this environment that `make demo` does not install."""
    (recipe,) = re.findall(r"\.demo-ready:.*?\n(.*?)@touch", MAKEFILE, re.DOTALL)
    (extras,) = re.findall(r"--editable \.\[([^\]]+)\]", recipe.replace("$(COMMA)", ","))
    assert "-r requirements.txt" in recipe
    wanted = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line]
    wanted += PROJECT["dependencies"]
    for extra in extras.split(","):
        wanted += EXTRAS[extra]
    there = installed(wanted) | {"qwen-megakernel", "pip", "setuptools"}
    modules = metadata.packages_distributions()
    return [
        name
        for name, homes in modules.items()
        if not {canonical(home) for home in homes} & there and name not in sys.builtin_module_names
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


def test_every_step_is_announced_and_reports_every_few_seconds_that_it_goes_on(tmp_path):
    python, log = tmp_path / "python", tmp_path / "log"
    python.write_text(PYTHON.format(log=log))
    python.chmod(0o755)
    words = ["make", f"--file={ROOT / 'Makefile'}", "--silent", "demo", f"VENV={tmp_path / 'venv'}"]
    words += [f"PYTHON={python}", "SECONDS_BETWEEN_WORDS=1"]
    began = time.monotonic()
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=os.environ | {})
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 20  # no child process stays and keeps the output open
    said = done.stdout.splitlines()
    steps = [line for line in said if re.search(r": .*(seconds|minutes?)", line)]
    assert [step.split(":")[0].split()[0] for step in steps] == ["Making", *["Installing"] * 2]
    assert said.count("  1 seconds so far") == 3
    assert log.read_text().count("pip install") == 3


def test_a_step_that_fails_ends_make(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 7\n")
    python.chmod(0o755)
    words = ["make", f"--file={ROOT / 'Makefile'}", "--silent", "demo", f"VENV={tmp_path / 'venv'}"]
    done = subprocess.run([*words, f"PYTHON={python}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0 and "Error 7" in done.stderr
    assert "Installing" not in done.stdout
