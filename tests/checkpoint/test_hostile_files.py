"""Changed model files, voice files and codes end in speech or in an error of this package."""

import os
import sys
from collections import Counter
from pathlib import Path

import hostile_files
import pytest
from commands import captured

from qwen_megakernel.native import compiling

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")


def assert_both_happen(outcomes: Counter) -> None:
    """Raise unless changes of every kind of config, and of codes, are refused and accepted."""
    for kind in (*hostile_files.CONFIGS, "codes"):
        assert outcomes[kind, "accepted"] and outcomes[kind, "refused"], kind


@pytest.mark.ci
def test_changed_files_end_in_speech_or_in_our_errors(tmp_path):
    outcomes = hostile_files.attack(100, tmp_path / "model")
    assert sum(outcomes.values()) == 100
    assert_both_happen(outcomes)


@pytest.mark.ci
def test_changed_files_of_a_converted_model_end_so_too(tmp_path):
    outcomes = hostile_files.attack(100, tmp_path / "model", "int8")
    assert sum(outcomes.values()) == 100
    assert outcomes["config.json", "accepted"] and outcomes["model.safetensors", "refused"] > 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_changed_files_harm_nothing_under_sanitizers(tmp_path, monkeypatch):
    """Native code is compiled with sanitizers, whose libraries Python must load first."""
    compiler = compiling.find_cxx()
    libraries = []
    for name in ("libasan.so", "libubsan.so", "libstdc++.so"):
        command = [compiler, f"-print-file-name={name}"]
        path = Path(captured(command, check=True).stdout[:-1])
        if not path.is_absolute():
            pytest.skip(f"{compiler} has no {name}")
        libraries.append(str(path))
    environment = {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python leaks at its exit
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    program = [sys.executable, hostile_files.__file__, "2000", tmp_path / "model", *SANITIZERS]
    done = captured(program, env=os.environ | environment, timeout=1700)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    outcomes = Counter({(kind, outcome): int(count) for kind, outcome, count in rows})
    assert sum(outcomes.values()) == 2000
    assert_both_happen(outcomes)
