"""tools/gpu_check: steps that fail or hang do not stop the others; a bare machine is enough."""

import hashlib
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from commands import ROOT, write_program

from benchmarks import performance_page
from benchmarks.load_test import workload
from benchmarks.measures.load import LEAD_SECONDS
from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.native import compiling
from tools.gpu_check import carried, carry
from tools.gpu_check.steps import libraries, registry, scripts
from tools.gpu_check.steps.context import BIG, SMALL, Context
from tools.gpu_check.variants import VARIANTS

ENGINE_SECONDS = 20  # time to start a script and load an engine of 256 slots

PLANTED = """
import json, subprocess, sys, time
step, output = sys.argv[1], sys.argv[3]
print(step, "says something")
if step == "tests":
    sys.exit("planted failure")
if step == "endurance":
    subprocess.Popen(["sleep", "321"])
    json.dump({"so far": 1}, open(output, "w"))
    time.sleep(60)
if step == "sanitizer":
    json.dump({"status": "refused", "why": "planted"}, open(output, "w"))
else:
    json.dump({"step": step}, open(output, "w"))
"""


@pytest.fixture
def gpu_check(monkeypatch):
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "tools/gpu_check/run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "query", lambda fields: None)
    steps = ("build", "tests", "endurance", "sanitizer", "benchmark")
    monkeypatch.setitem(module.SECONDS, "planted", 500)
    monkeypatch.setitem(module.SETS, "planted", dict.fromkeys(steps, 150))
    return module


@pytest.fixture
def run(gpu_check, monkeypatch, tmp_path):
    """Return run(*arguments, then=""): exit code and result of steps `PLANTED` and `then`."""

    def run(*arguments: str, then: str = "") -> tuple[int, dict]:
        steps = tmp_path / "steps.py"
        steps.write_text(PLANTED + then)
        monkeypatch.setattr(gpu_check, "STEPS", steps)
        options = ["--out", str(tmp_path / "out"), "--set", "planted", *arguments]
        monkeypatch.setattr(sys, "argv", ["gpu_check", *options])
        code = gpu_check.main()
        return code, json.loads((tmp_path / "out" / "result.json").read_text())

    return run


@pytest.mark.ci
def test_one_failing_and_one_hanging_step_leave_the_others(gpu_check, run, monkeypatch, capsys):
    monkeypatch.setitem(gpu_check.SETS["planted"], "endurance", 6)
    started = time.monotonic()
    names = ("build", "tests", "endurance", "sanitizer", "benchmark")
    code, result = run("--emulation", "--steps", ",".join(names))
    statuses = {name: step["status"] for name, step in result["steps"].items()}
    expected = ("ok", "failed", "timeout", "refused", "ok")
    assert code == 1 and statuses == dict(zip(names, expected, strict=True))
    assert time.monotonic() - started < 20
    assert result["steps"]["benchmark"]["result"] == {"step": "benchmark"}
    assert result["machine"]["cores"] >= 1 and 0 <= result["machine"]["stolen_share"] <= 1
    assert result["steps"]["endurance"]["result"] == {"so far": 1}
    assert "planted failure" in capsys.readouterr().out
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "sleep 321" not in processes  # all that a step has started ends with it


def test_a_step_gets_a_deadline_before_its_time_is_up(gpu_check, run, monkeypatch, tmp_path):
    monkeypatch.setitem(gpu_check.SETS["planted"], "build", 30)
    program = "print(float(sys.argv[sys.argv.index('--until') + 1]) - time.monotonic())"
    run("--emulation", "--steps", "build", then=program)
    left = float((tmp_path / "out" / "log.txt").read_text().split()[-1])
    assert 20 < left <= 30 - gpu_check.END_SECONDS  # the time for imports is subtracted


def test_a_step_and_what_it_starts_know_the_commit(run, tmp_path):
    program = "import sys; sys.path.insert(0, '.'); from benchmarks import common"
    process = f"""
subprocess.run([sys.executable, "-c", "{program}; print(common.commit())"], check=True)"""
    run("--emulation", "--steps", "build", "--commit", "abc123", then=process)
    assert (tmp_path / "out" / "log.txt").read_text().split()[-1] == "abc123"


def test_clocks_are_those_of_the_busy_gpu(gpu_check, run, monkeypatch):
    clocks = itertools.chain(["345", "1755"], itertools.repeat("1980"))

    def query(fields):
        if not fields.startswith("utilization"):
            return None
        sm = next(clocks)
        busy = "0 %" if sm == "345" else "97 %"
        values = (busy, f"{sm} MHz", "3201 MHz", "[N/A]", "40")
        return dict(zip(fields.split(","), values, strict=True))

    monkeypatch.setattr(gpu_check, "query", query)
    monkeypatch.setattr(gpu_check, "has_gpu", lambda: True)
    monkeypatch.setattr(gpu_check, "SAMPLE_SECONDS", 0.02)
    _, result = run("--steps", "build", then="time.sleep(0.5)")
    found = result["steps"]["build"]["clocks"]
    assert found["clocks.sm"] == [1755, 1980] and found["clocks.mem"] == [3201, 3201]
    assert "power.draw" not in found and found["samples"] == found["busy"] + 1 > 5


def test_without_nvidia_smi_there_are_no_clocks(gpu_check, run, monkeypatch):
    monkeypatch.setattr(gpu_check, "has_gpu", lambda: True)
    code, result = run("--steps", "build")
    assert code == 0 and "clocks" not in result["steps"]["build"]


def test_endurance_that_comes_short_of_its_goal_neither_passes_nor_fails(run, tmp_path):
    context = Context(True, time.monotonic(), tmp_path / "result.json")
    assert registry.STEPS["million"](context)["status"] == "short"
    short = 'json.dump({"status": "short", "launches": 3}, open(output, "w"))'
    code, result = run("--emulation", "--steps", "build", then=short)
    assert code == 0 and result["steps"]["build"]["status"] == "short"
    assert result["steps"]["build"]["result"] == {"launches": 3}


def test_a_carried_library_is_found_by_another_nvcc_of_the_same_version(run, monkeypatch, tmp_path):
    def nvcc(folder: str) -> str:
        return str(write_program(tmp_path / folder / "nvcc", "#!/bin/sh\necho release 13.0\n"))

    def compile_nothing(work: Path, *_) -> None:
        for name in ("libqwen_tts.so", "step_kernel.o", "build.log"):
            (work / name).write_text("Used 128 registers")
        (work / "sha256").write_text(hashlib.sha256(b"Used 128 registers").hexdigest())

    monkeypatch.setattr(compiling, "_compile", compile_nothing)
    here, there = nvcc("here"), nvcc("there")
    monkeypatch.setattr(build, "find_nvcc", lambda: here)
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "carried"
    monkeypatch.setattr(sys, "argv", ["carry", "--out", str(folder)])
    folder.mkdir()
    (folder / "old.tar.xz").write_text("of other sources")
    assert carry.main() == 0
    names = {path.name for path in folder.iterdir()}
    names.remove(carried.VERSION)
    assert len(names) > len(VARIANTS) and "old.tar.xz" not in names
    monkeypatch.setattr(carry, "MOST_MB", 0.0)
    assert carry.main() == 1
    # On a machine with the compiler in another place, nothing is compiled again.
    monkeypatch.setattr(compiling, "_compile", Mock(side_effect=AssertionError))
    monkeypatch.setattr(build, "find_nvcc", lambda: there)
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(tmp_path / "its cache"))
    monkeypatch.setattr(carried, "CARRIED", folder)
    run("--emulation", "--steps", "build")
    unpacked = [
        {each.name for each in path.iterdir()} for path in (tmp_path / "its cache").iterdir()
    ]
    assert unpacked == [{*carried.KEPT}] * len(names)
    run("--emulation", "--steps", "build")  # an existing library stays
    context = SimpleNamespace(
        arch="sm_90a", models=(SMALL, BIG), dtypes=("float32", "bfloat16"), toy=False
    )
    for name in libraries.JOBS:
        assert libraries.build(context, name)["libraries"]
    for model, defines in itertools.product((SMALL, BIG), VARIANTS.values()):
        target = build.Target("sm_90a", "bfloat16", defines=tuple(defines.items()))
        build.build(parse_model_config(model_config(model)), target)


def test_the_checkout_and_as_much_as_may_be_packed_travel_together():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    names = filter(None, listed.stdout.split("\0"))  # none in a copy without git's history
    checkout = sum((ROOT / name).stat().st_size for name in names if (ROOT / name).exists())
    assert checkout + carry.MOST_MB * 1e6 < 64 * 2**20


@pytest.mark.parametrize(
    ("there", "answers"),
    [
        ("release 13.0, V13.0.48", "release 13.0, V13.0.88"),
        ("release 12.9, V12.9.41", "release 12.9, V12.9.41"),
    ],
)
def test_libraries_of_another_build_of_the_same_nvcc_are_found(
    gpu_check, run, monkeypatch, tmp_path, there, answers
):
    """A machine may have 13.0.48 although 13.0.88 compiled; other calls still reach its nvcc."""
    folder, nvcc = tmp_path / "carried", tmp_path / "there" / "nvcc"
    carried.pack([], folder, "release 13.0, V13.0.88\n")
    program = f'#!/bin/sh\n[ "$1" = --version ] && echo "{there}" || echo "compiles $*"\n'
    write_program(nvcc, program)
    monkeypatch.setenv("PATH", f"{nvcc.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(carried, "CARRIED", folder)
    ask = 'subprocess.run("nvcc --version; nvcc -c --version; nvcc -O3 a.cu", shell=True)'
    _, result = run("--emulation", "--steps", "build", then=ask)
    said = (tmp_path / "out" / "log.txt").read_text().splitlines()[-3:]
    assert said == [answers, "compiles -c --version", "compiles -O3 a.cu"]
    assert result["nvcc"] == there
    assert result.get("carried_nvcc") == (answers if answers != there else None)
    assert os.environ["PATH"].startswith(f"{nvcc.parent}:")


def listening_seconds(listeners: int) -> float:
    """Return how long `measures.load.listen` takes: listeners play their speech in real time."""

    def of(index: int) -> float:
        spent = 0.0
        while spent <= scripts.LISTEN_SECONDS:
            audio = workload.num_frames(0, index) * performance_page.FRAME_MS / 1000
            spent, index = spent + max(0.0, audio - LEAD_SECONDS), index + listeners
        return spent

    return max(map(of, range(listeners)))


def test_steps_that_last_as_long_as_their_sound_fit_their_budgets(gpu_check):
    budgets, models = gpu_check.SETS["more"], 2
    heard = sum(listening_seconds(int(count)) for count in scripts.LISTENERS.split(","))
    assert models * (heard + ENGINE_SECONDS) < budgets["capacity"] - gpu_check.END_SECONDS
    late = 20  # seconds for the speech that is left after the last request has arrived

    def sending(rates: str) -> float:
        return len(rates.split(",")) * scripts.RATE_SECONDS + late + ENGINE_SECONDS

    assert scripts.ALL_RATES == "1,10,20,40,80"
    assert models * sending(scripts.ALL_RATES) < budgets["open_loop_long"] - gpu_check.END_SECONDS
    budget = gpu_check.SETS["listeners"]["open_loop"]  # for the smaller model only
    assert scripts.RATES == "20,80" and sending(scripts.RATES) < budget - gpu_check.END_SECONDS


def test_sets_of_one_call_do_not_write_over_each_other(gpu_check, monkeypatch, tmp_path):
    monkeypatch.setenv("OUT", str(tmp_path))
    for name in ("first", "why"):
        arguments = ["gpu_check", "--emulation", "--set", name, "--seconds", "1"]
        monkeypatch.setattr(sys, "argv", arguments)
        assert gpu_check.main() == 0
    written = {path.parent.name for path in tmp_path.glob("*/result.json")}
    assert written == {"gpu_emulation_first", "gpu_emulation_why"}


def test_refused_is_not_failed(run):
    code, _ = run("--emulation", "--steps", "build,sanitizer")
    assert code == 0


def test_when_time_is_up_the_rest_is_not_begun(run):
    code, result = run("--emulation", "--seconds", "1", "--steps", "build,benchmark")
    assert {step["status"] for step in result["steps"].values()} == {"no time"}
    assert result["seconds"] < 2 and code == 0


def test_every_set_begins_with_what_a_fresh_machine_lacks_and_ends_in_its_minutes(gpu_check):
    minutes = {"first": 4, "why": 4, "changed": 4, "listeners": 5, "reliability": 5, "more": 9}
    for name, steps in gpu_check.SETS.items():
        if name != "planted":
            first = next(iter(steps))
            assert first.endswith("build") and steps[first] >= 150
            assert gpu_check.SECONDS[name] == 60 * minutes[name]


CARRIED_SECONDS = 10  # a step that finds all its libraries takes this: the import of torch


def test_with_carried_libraries_most_of_a_set_fits_its_call(gpu_check):
    """Budgets allow for slow steps, so only the last step may be cut short."""
    for name, steps in gpu_check.SETS.items():
        if name not in ("planted", "more"):
            *others, last = list(steps.values())[1:]
            assert CARRIED_SECONDS + sum(others) + last / 2 <= 1.25 * gpu_check.SECONDS[name]


def test_without_a_gpu_it_says_so(gpu_check, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_check, "has_gpu", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    assert gpu_check.main() == 77
    assert "No GPU" in capsys.readouterr().out


def test_every_step_of_every_set_is_registered_and_no_other(gpu_check):
    names = {step for name, steps in gpu_check.SETS.items() for step in steps if name != "planted"}
    # The steps sanitizer and ncu run these.
    assert set(registry.STEPS) == names | {"toy_frames", "profiled_frames"}
