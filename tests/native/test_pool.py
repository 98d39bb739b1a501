"""The native pool alone: threads that are refused, late threads, and another program on a core."""

import shlex
import subprocess
from pathlib import Path

import pytest
from fixtures import module_value

from qwen_megakernel.native import compiling

CHECKS = (
    "refused threads",
    "refused threads of a fork",
    "lateness",
    "a taken core",
    "asking for workers",
    "exceptions",
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    def compile_it(*flags: str) -> Path:
        made = tmp_path_factory.mktemp("pool") / "driver"
        source = Path(__file__).with_name("pool_driver.cpp")
        sources = compiling.source_folder() / "cpu"
        command = [
            *shlex.split(compiling.find_cxx()),
            "-std=c++17",
            "-pthread",
            "-O1",
            *flags,
            f"-I{sources}",
        ]
        subprocess.run([*command, source, "-o", made], check=True)
        return made

    return compile_it


plain = module_value(lambda driver: driver())


def run(driver: Path, check: str) -> None:
    done = subprocess.run([driver, check], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("check", CHECKS)
def test_the_pool_keeps_its_promises(plain, check):
    run(plain, check)


@pytest.mark.ci
def test_no_thread_races_another(driver):
    made = driver("-g", "-fsanitize=thread")
    for check in CHECKS:
        if "fork" not in check:  # the sanitizer has no threads in a child
            run(made, check)
