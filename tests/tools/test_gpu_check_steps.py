"""The steps of tools/gpu_check: each runs by emulation, and writes what the page shows."""

import json
import os
import re
import time
import venv
from pathlib import Path
from unittest.mock import Mock

import kernel_models as k
import pytest
import torch
from commands import ROOT, captured
from installed import distributions
from nvcc import needs_nvcc
from tolerances import nearly

import validate_kernel
from benchmarks import performance_page
from qwen_megakernel.decoders import quantization
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.native import compiling
from qwen_megakernel.speech_options import Sampling
from tools.gpu_check import stage_times
from tools.gpu_check.steps import registry, scripts, speed
from tools.gpu_check.steps.context import TOY, Context
from tools.gpu_check.variants import VARIANTS
from tools.validation import compare

# The packages that a GPU machine must have, as the head of gpu_check.sh says, and those that steps
# use if they are installed.
PROMISED = ("torch", "numpy", "ninja", "safetensors", "tokenizers", "huggingface-hub")
BARE = (*PROMISED, "pytest", "pytest-timeout")

ONLY_ON_A_GPU = ("peak_memory_mb.gpu", "peak_memory_mb.device")


def test_int8_layers_are_made_once_and_what_was_compared_is_kept(monkeypatch, tmp_path):
    made, output = [], tmp_path / "result.json"

    def validate_fast(loaded, backend, dtype, args):
        if args.weights == "int8" and backend.name == "graph":
            raise RuntimeError("planted")
        made.append((args.weights, quantization.int8_stacks(loaded.talker), id(loaded)))
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


def test_every_define_of_a_variant_is_read_by_a_source_and_its_libraries_differ():
    sources = "\n".join(path.read_text() for path in compiling.source_folder().glob("*.cu*"))
    for defines in VARIANTS.values():
        assert all(re.search(rf"\b{name}\b", sources) for name in defines), defines
    assert len({tuple(defines.items()) for defines in VARIANTS.values()}) == len(VARIANTS)
    assert next(iter(VARIANTS.values())) == {}  # the others are compared with this


@needs_nvcc
@pytest.mark.parametrize(
    "arch",
    [
        pytest.param(arch, marks=pytest.mark.ci if arch == "sm_90a" else pytest.mark.slow)
        for arch in build.ARCHITECTURES
    ],
)
def test_the_microbenchmark_compiles_for_every_architecture(tmp_path, arch):
    command = [*speed.bench_command(arch), "-Xptxas", "-warn-spills", "-o", str(tmp_path / "bench")]
    done = captured(command)
    assert done.returncode == 0 and "warning" not in done.stdout + done.stderr, done.stderr


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment in which nothing is installed but `BARE`."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in distributions(BARE).values():
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:  # a folder of several packages (nvidia) is linked as a whole
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))).resolve())
    return str(folder / "bin" / "python")


def test_a_bare_machine_has_what_the_program_promises_and_nothing_else(bare_python):
    head = (ROOT / "tools" / "gpu_check.sh").read_text().split("set -eu")[0]
    promised = re.search(r"a Python with (.*?), but", " ".join(head.split()))[1]
    assert re.split(r", | and ", promised) == [name.replace("-", "_") for name in PROMISED]
    hidden = ("soundfile", "soxr", "pipecat", "babel", "num2words", "transformers")
    hidden += ("fastapi", "uvicorn", "pydantic", "psutil", "aiohttp", "matplotlib", "qwen_tts")
    program = "from importlib.util import find_spec as f; import sys; print(*map(f, sys.argv[1:]))"
    done = captured([bare_python, "-c", program, *hidden], cwd=ROOT / "docs")
    assert done.stdout.split() == ["None"] * len(hidden), done.stdout + done.stderr


def test_without_pytest_every_step_but_the_tests_can_run(bare_python):
    program = "import sys; sys.modules['pytest'] = None; import tools.gpu_check.steps.registry"
    done = captured([bare_python, "-c", f"{program}, tools.gpu_check.stage_times"], cwd=ROOT)
    assert done.returncode == 0, done.stderr


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
    done = captured(
        [*command, "--steps", steps],
        cwd=ROOT,
        env=os.environ | {"PYTHON": bare_python, "OMP_NUM_THREADS": "1"},
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
            is_shown = row.get("kind", "exchange") == "exchange"  # of the micro-benchmark's rows
            if is_shown and "why_not" not in row:
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
