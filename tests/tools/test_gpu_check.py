"""tools/gpu_check: steps that fail or hang do not stop the others; a bare machine is enough."""

import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, call

import kernel_models as k
import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tolerances import nearly

import validate_kernel
from benchmarks import performance_page
from benchmarks.load_test import workload
from benchmarks.measures.load import LEAD_SECONDS
from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.decoders import int8
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.native import compiling
from qwen_megakernel.records import Sampling
from qwen_megakernel.validation import compare
from tools.gpu_check import carried, carry, compute_sanitizer, kernel_timer, stage_times
from tools.gpu_check.steps import libraries, registry, scripts, speed
from tools.gpu_check.steps.context import BIG, SMALL, TOY, Context
from tools.gpu_check.variants import VARIANTS

ROOT = Path(__file__).parents[2]

# All that a machine with a GPU must have, as the head of gpu_check.sh says, and what the steps use
# where it is there.
PROMISED = ("torch", "numpy", "safetensors", "tokenizers", "huggingface-hub")
BARE = (*PROMISED, "ninja", "pytest", "pytest-timeout")

ONLY_ON_A_GPU = ("peak_memory_mb.gpu", "peak_memory_mb.device")
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


def test_a_launch_is_timed_without_the_hosts_way_to_it(monkeypatch):
    log = Mock()
    monkeypatch.setattr(torch.cuda, "Event", log.Event)
    monkeypatch.setattr(torch.cuda, "_sleep", log.sleep)
    log.Event.return_value.elapsed_time.return_value = 1.5
    timer = kernel_timer.KernelTimer(torch.device("cuda"))
    assert timer._timed(log.launch) == 1.5
    assert all(made == call.Event(enable_timing=True) for made in log.mock_calls[:2])
    names = [name.removeprefix("Event().") for name, *_ in log.mock_calls[2:]]
    assert names == ["sleep", "record", "launch", "record", "synchronize", "elapsed_time"]


def test_a_step_gets_a_deadline_before_its_time_is_up(gpu_check, run, monkeypatch, tmp_path):
    monkeypatch.setitem(gpu_check.SETS["planted"], "build", 30)
    program = "print(float(sys.argv[sys.argv.index('--until') + 1]) - time.monotonic())"
    run("--emulation", "--steps", "build", then=program)
    left = float((tmp_path / "out" / "log.txt").read_text().split()[-1])
    assert 20 < left <= 30 - gpu_check.END_SECONDS  # the imports count, however long they take


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


def test_int8_layers_are_made_once_and_what_was_compared_is_kept(monkeypatch, tmp_path):
    made, output = [], tmp_path / "result.json"

    def validate_fast(loaded, backend, dtype, args):
        if args.weights == "int8" and backend.name == "graph":
            raise RuntimeError("planted")
        made.append((args.weights, int8.int8_stacks(loaded.talker), id(loaded)))
        return compare.Report(f"{backend.name} as it should be", [])

    monkeypatch.setattr(validate_kernel, "validate_fast", validate_fast)
    context = Context(True, time.monotonic() + 60, output)
    with pytest.raises(RuntimeError, match="planted"):
        registry.STEPS["int8_validate_0.6b"](context)
    assert [each[:2] for each in made] == [
        ("int8-talker", ("talker",)),
        ("int8-talker", ("talker",)),
        ("int8", ("talker", "predictor")),
    ]
    assert made[0] == made[1]  # one checkpoint for both decoders
    assert len(json.loads(output.read_text())["reports"]) == 3


SCRIPT = """
import json, sys, time
file = sys.argv[sys.argv.index("--json") + 1]
json.dump({"rows": [{"rps": 1}]}, open(file, "w"))
"""


@pytest.mark.parametrize("end", ["time.sleep(60)", "sys.exit('planted')"])
def test_what_a_script_wrote_before_its_end_is_kept(monkeypatch, tmp_path, end):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "measure.py").write_text(SCRIPT + end)
    monkeypatch.setattr(scripts, "ROOT", tmp_path)
    context = Context(True, time.monotonic() + 2, tmp_path / "result.json")
    if "sleep" in end:
        assert scripts.measure(context, "planted", [])["status"] == "timeout"
    else:
        with pytest.raises(SystemExit, match="planted for tiny-random ended with 1"):
            scripts.measure(context, "planted", [])
    kept = json.loads((tmp_path / "result.json").read_text())
    assert kept["rows"] == [{"model": "tiny-random", "rps": 1}]


def test_a_carried_library_is_found_by_another_nvcc_of_the_same_version(run, monkeypatch, tmp_path):
    def nvcc(folder: str) -> str:
        path = tmp_path / folder / "nvcc"
        path.parent.mkdir()
        path.write_text("#!/bin/sh\necho release 13.0\n")
        path.chmod(0o755)
        return str(path)

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
    # Elsewhere, with a compiler in another place, nothing is compiled again.
    monkeypatch.setattr(compiling, "_compile", Mock(side_effect=AssertionError))
    monkeypatch.setattr(build, "find_nvcc", lambda: there)
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(tmp_path / "its cache"))
    monkeypatch.setattr(carried, "CARRIED", folder)
    run("--emulation", "--steps", "build")
    unpacked = [
        {each.name for each in path.iterdir()} for path in (tmp_path / "its cache").iterdir()
    ]
    assert unpacked == [{*carried.KEPT}] * len(names)
    run("--emulation", "--steps", "build")  # an existing library is left alone
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
    """A machine may have 13.0.48 where 13.0.88 compiled; any other call still reaches its nvcc."""
    folder, nvcc = tmp_path / "carried", tmp_path / "there" / "nvcc"
    carried.pack([], folder, "release 13.0, V13.0.88\n")
    nvcc.parent.mkdir()
    nvcc.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{there}" || echo "compiles $*"\n')
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nvcc.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(carried, "CARRIED", folder)
    ask = 'subprocess.run("nvcc --version; nvcc -c --version; nvcc -O3 a.cu", shell=True)'
    _, result = run("--emulation", "--steps", "build", then=ask)
    said = (tmp_path / "out" / "log.txt").read_text().splitlines()[-3:]
    assert said == [answers, "compiles -c --version", "compiles -O3 a.cu"]
    assert result["nvcc"] == there
    assert result.get("carried_nvcc") == (answers if answers != there else None)
    assert os.environ["PATH"].startswith(f"{nvcc.parent}:")


@pytest.mark.ci
@pytest.mark.parametrize("variant", ["predictor's attention in two stages", "the first warp waits"])
def test_a_variant_with_other_stages_or_waiters_draws_the_kernels_codes(tmp_path, variant):
    context = Context(True, time.monotonic() + 600, tmp_path / "result.json")
    loaded, drawn = context.load(TOY), []
    for defines in ({}, VARIANTS[variant]):
        decoder = context.decoder(loaded, defines=defines)
        k.start(decoder, 0, Sampling(), seed=1)
        drawn.append(decoder.step([0], 4).codes.tolist())
    assert drawn[0] == drawn[1]


def test_every_define_of_a_variant_is_read_by_a_source_and_its_libraries_differ():
    sources = "\n".join(path.read_text() for path in compiling.source_folder().glob("*.cu*"))
    for defines in VARIANTS.values():
        assert all(re.search(rf"\b{name}\b", sources) for name in defines), defines
    assert len({tuple(defines.items()) for defines in VARIANTS.values()}) == len(VARIANTS)
    assert next(iter(VARIANTS.values())) == {}  # the others are compared with this


def test_the_vocoder_is_timed_with_float32_products_and_with_tf32(monkeypatch, tmp_path):
    seen = []

    def chunk_ms(vocoder, codes, rounds):
        precision = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        seen.append((*precision, *codes.shape[:2]))
        samples = torch.tensor([3.0, 4.0], dtype=torch.float64)
        return samples * (1.001 if precision[1] else 1), [7.0, 5.0, 6.0]

    monkeypatch.setattr(speed, "GraphVocoder", Mock())
    monkeypatch.setattr(speed, "chunk_ms", chunk_ms)
    allowed = torch.backends.cudnn.allow_tf32
    try:
        rows = speed.vocoder_times(Context(True, 0.0, tmp_path / "result.json"))["rows"]
    finally:
        compare.forbid_reduced_precision()
        torch.backends.cudnn.allow_tf32 = allowed
    settings = [("highest", False), ("high", True)]
    shapes = speed.VOCODER_CHUNKS[:2]
    assert seen == [(*setting, *shape) for shape in shapes for setting in settings]
    assert [row["products"] for row in rows] == ["float32", "TF32"] * 2
    assert [row["relative_rms_error"] for row in rows] == nearly([0, 0.001] * 2)
    assert all((row["ms"], row["best_ms"]) == (6, 5) for row in rows)


def listening_seconds(listeners: int) -> float:
    """Return how long `measures.load.listen` takes: a listener hears no faster than sound plays."""

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
    budget = gpu_check.SETS["listeners"]["open_loop"]  # of the smaller model alone
    assert scripts.RATES == "20,80" and sending(scripts.RATES) < budget - gpu_check.END_SECONDS


def test_sets_of_one_call_do_not_write_over_each_other(gpu_check, monkeypatch, tmp_path):
    monkeypatch.setenv("OUT", str(tmp_path))
    for name in ("first", "why"):
        arguments = ["gpu_check", "--emulation", "--set", name, "--seconds", "1"]
        monkeypatch.setattr(sys, "argv", arguments)
        assert gpu_check.main() == 0
    written = {path.parent.name for path in tmp_path.glob("*/result.json")}
    assert written == {"gpu_emulation_first", "gpu_emulation_why"}


@pytest.mark.parametrize(
    ("says", "code", "expected"),
    [
        ("========= ERROR SUMMARY: 0 errors", 0, "ok"),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0, "ok"),
        ("A module could not be found\n========= ERROR SUMMARY: 3 errors", 9, "failed"),
        ("========= Error: Device not supported", 1, "refused"),
        (
            "========= Target application terminated before first instrumented API call",
            0,
            "refused",
        ),
        (
            "The cooperative grid was refused\nCUDA error 720\n========= ERROR SUMMARY: 1 error",
            9,
            "refused",
        ),
        (
            "not be launched (CUDA error 701: too many)\n========= ERROR SUMMARY: 0 errors",
            1,
            "refused",
        ),
        ("CUDA error 701\n========= ERROR SUMMARY: 5 errors", 9, "failed"),
        ("CUDA error 700\n========= ERROR SUMMARY: 1 error", 9, "failed"),
    ],
)
def test_what_a_sanitizer_says_is_what_counts(says, code, expected):
    command = [sys.executable, "-c", f"print({says!r}); raise SystemExit({code})"]
    found = compute_sanitizer.run(command, 20)
    why = [line for line in says.splitlines() if expected == "refused" and "CUDA error" in line]
    assert found == {"status": expected, "says": (why or says.splitlines())[-1]}


def test_a_sanitizer_waits_for_its_program_as_long_as_we_do():
    assert "--launch-timeout 0" in " ".join(
        compute_sanitizer.command("compute-sanitizer", "memcheck")
    )


def test_a_sanitizer_that_takes_too_long_leaves_the_others_their_time():
    command = ["sh", "-c", "echo ========= begun; sleep 322 & wait"]
    started = time.monotonic()
    found = compute_sanitizer.run(command, 1)
    assert found == {"status": "timeout", "says": "========= begun"}
    assert time.monotonic() - started < 10
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "sleep 322" not in processes


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
    """Budgets allow for steps that go badly; the last step may be the one that is cut short."""
    for name, steps in gpu_check.SETS.items():
        if name not in ("planted", "more"):
            *others, last = list(steps.values())[1:]
            assert CARRIED_SECONDS + sum(others) + last / 2 <= 1.25 * gpu_check.SECONDS[name]


@k.needs_nvcc
@pytest.mark.parametrize(
    "arch",
    [
        pytest.param(arch, marks=pytest.mark.ci if arch == "sm_90a" else pytest.mark.slow)
        for arch in build.ARCHITECTURES
    ],
)
def test_the_microbenchmark_compiles_for_every_architecture(tmp_path, arch):
    command = [*speed.bench_command(arch), "-Xptxas", "-warn-spills", "-o", str(tmp_path / "bench")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "warning" not in done.stdout + done.stderr, done.stderr


def test_without_a_gpu_it_says_so(gpu_check, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_check, "has_gpu", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_check"])
    assert gpu_check.main() == 77
    assert "No GPU" in capsys.readouterr().out


def distributions(names: Iterable[str]) -> Iterator[metadata.Distribution]:
    """Yield these installed distributions and all that they require, each once."""
    seen, wanted = set(), list(names)
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name in seen:
            continue
        seen.add(name)
        with contextlib.suppress(metadata.PackageNotFoundError):  # not of this platform
            found = metadata.distribution(name)
            requirements = map(Requirement, found.requires or ())
            wanted += [
                r.name for r in requirements if not r.marker or r.marker.evaluate({"extra": ""})
            ]
            yield found


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment in which nothing is installed but `BARE`."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in distributions(BARE):
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:  # one that several share, as nvidia, is there whole
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))).resolve())
    return str(folder / "bin" / "python")


def test_a_bare_machine_has_what_the_program_promises_and_nothing_else(bare_python):
    head = (ROOT / "tools" / "gpu_check.sh").read_text().split("set -eu")[0]
    promised = re.search(r"a Python with (.*?);", " ".join(head.split()))[1]
    assert re.split(r", | and ", promised) == [name.replace("-", "_") for name in PROMISED]
    hidden = ("soundfile", "soxr", "pipecat", "sentence_stream", "num2words", "transformers")
    hidden += ("fastapi", "uvicorn", "pydantic", "psutil", "aiohttp", "matplotlib", "qwen_tts")
    program = "from importlib.util import find_spec as f; import sys; print(*map(f, sys.argv[1:]))"
    done = subprocess.run(
        [bare_python, "-c", program, *hidden], capture_output=True, text=True, cwd=ROOT / "docs"
    )
    assert done.stdout.split() == ["None"] * len(hidden), done.stdout + done.stderr


SLOW = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("which", "steps"),
    [
        pytest.param("first", "microbenchmark,validate_tiny", marks=pytest.mark.ci),
        pytest.param("first", "build,validate_0.6b,frame_times", marks=SLOW),
        pytest.param("first", "stage_times", marks=pytest.mark.ci),
        pytest.param("why", "variant_build,ncu,variants", marks=pytest.mark.ci),
        pytest.param("why", "tests", marks=SLOW),
        pytest.param("changed", "build,validate_0.6b_long,validate_1.7b_long", marks=SLOW),
        pytest.param("listeners", "prompt_times,vocoder_times", marks=pytest.mark.ci),
        pytest.param("listeners", "first_sound,batch_curve,open_loop", marks=SLOW),
        pytest.param("reliability", "endurance,abort,two_engines,sanitizer", marks=pytest.mark.ci),
        pytest.param("reliability", "int8_build,int8_validate_0.6b,int8_frame_times", marks=SLOW),
        pytest.param("more", "build,memory", marks=pytest.mark.ci),
        pytest.param(
            "more",
            "benchmark,peers,open_loop_long,texts,capacity,int8_validate_1.7b,million",
            marks=SLOW,
        ),
    ],
)
def test_the_steps_run_by_emulation_on_a_bare_machine(tmp_path, bare_python, which, steps):
    command = ["tools/gpu_check.sh", "--emulation", "--out", str(tmp_path / "out"), "--set", which]
    done = subprocess.run(
        [*command, "--steps", steps],
        cwd=ROOT,
        env=os.environ | {"PYTHON": bare_python, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert list(result["steps"]) == steps.split(",") and result["commit"]
    check_rows({name: step["result"] for name, step in result["steps"].items()})
    if "stage_times" in steps:
        launches = result["steps"]["stage_times"]["result"]["launches"]
        assert [launch["streams"] for launch in launches] == [1, 16]
        assert stage_times.documents(tmp_path / "out" / "result.json") == launches
    if "ncu" in steps:
        assert result["steps"]["ncu"]["status"] == "skipped"


def check_rows(found: dict) -> None:
    """Check what docs/performance.md shows of each step."""
    for step, (_, columns) in performance_page.GPU_TABLES.items():
        for row in found.get(step, {}).get("rows", []):
            if "why_not" not in row:
                there = [c for c in columns if c not in ONLY_ON_A_GPU]
                assert all(performance_page.value(row, column) is not None for column in there), row
    if "endurance" in found:
        endurance = found["endurance"]
        assert endurance["launches"] >= endurance["goal"] and endurance["load_rounds_beside"] > 0
    if "microbenchmark" in found:
        rows = found["microbenchmark"]["rows"]
        # The most decisive figures come first, so that a run that is cut short has them.
        kinds = ["device", "barrier_in_traffic", "l2_latency", "exchange"]
        kinds += ["copy", "read", "barrier", "frame_skeleton"]
        assert list(dict.fromkeys(row["kind"] for row in rows)) == kinds
        exchanges = [row for row in rows if row["kind"] == "exchange"]
        assert {row["floats"] for row in exchanges} == {1024, 3072, 4096}
        assert [row["wrong"] for row in exchanges] == [0] * len(exchanges)
    if "frame_times" in found:
        rows = found["frame_times"]["rows"]
        assert [row["streams"] for row in rows] == [1, 4, 8, 16]
        assert all(row["ms_per_frame"] > 0 for row in rows)
    if "variants" in found:
        rows = found["variants"]["rows"]
        assert [row["variant"] for row in rows] == list(VARIANTS)[:2]
        assert all(row["same_codes"] for row in rows)
    if "prompt_times" in found:
        assert [row["backend"] for row in found["prompt_times"]["rows"]] == ["kernel", "graph"]
    if "vocoder_times" in found:
        rows = found["vocoder_times"]["rows"]
        assert [row["products"] for row in rows] == ["float32", "TF32"] * 2
        assert all(row["ms"] >= row["best_ms"] > 0 for row in rows)
        assert all(row["relative_rms_error"] == 0 for row in rows[::2])
    if "first_sound" in found:
        assert {row["backend"] for row in found["first_sound"]["rows"]} == {"torch", "graph"}
    if "abort" in found:
        assert found["abort"]["timeouts"] and found["abort"]["steps_cut_short"]
    if "two_engines" in found:
        assert found["two_engines"]["outcomes"] == {"same": 4}
    if "peers" in found:
        systems = {row["system"]: "why_not" in row for row in found["peers"]["rows"]}
        assert systems == {"cpu": False, "graph": False, "torch": False, "qwen-tts": True}


def test_every_step_of_every_set_is_registered_and_no_other(gpu_check):
    names = {step for name, steps in gpu_check.SETS.items() for step in steps if name != "planted"}
    # The steps sanitizer and ncu run these.
    assert set(registry.STEPS) == names | {"toy_frames", "profiled_frames"}
