"""The scripts that measure, check and converse, run as they are typed: results and exit codes."""

import importlib.util
import json
import re
import sys

import pytest
import torch
from commands import ROOT, run
from programs import programs
from tolerances import nearly

from benchmarks import common, option_types
from qwen_megakernel import families
from qwen_megakernel.installing import install_command

SHORT = ("--max-frames", "6", "--seed", "3", "--backend", "cpu")
TINY = ("--model", "tiny-random")


def test_benchmark_reports_and_keeps_its_figures(run_here, tmp_path):
    result = tmp_path / "result.json"
    done = run_here("benchmark.py", "--runs", 5, "--warmup", 0, "--json", result, *TINY, *SHORT)
    assert done.returncode == 0, done.stderr
    found = json.loads(result.read_text())
    assert len(found["runs"]) == 5 and found["model"] == "tiny-random" and found["is_synthetic"]
    assert set(found["summary"]) == set(common.METRICS)
    for name, figures in found["summary"].items():
        values = sorted(run[name] for run in found["runs"])
        assert (figures["p50"], figures["p95"]) == (values[2], values[4])
        assert f"\n{name} " in f"\n{done.stdout}"
    for each in found["runs"]:
        assert min(each[name] for name in ("first_frame_ms", "decode_ms_per_frame", "rtf")) > 0
        assert each["first_frame_ms"] <= each["first_chunk_ms"] <= each["total_ms"]
        assert each["first_audible_ms"] == each["first_chunk_ms"] + each["leading_silence_ms"]
        assert each["rtf"] * each["audio_s"] * 1000 == nearly(each["total_ms"])
        assert each["codes_per_s"] == 16 * each["frames_per_s"]
    assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?|unknown", found["commit"])
    assert found["summary"]["first_frame_ms"]["mean"] <= found["summary"]["first_chunk_ms"]["mean"]


@pytest.mark.parametrize("script", ["demo_tts.py", "benchmark.py"])
def test_the_help_needs_no_docstrings(script):
    done = run("-OO", script, "--help")
    assert done.returncode == 0 and "--model" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("script", "option", "value"),
    [
        ("benchmark.py", "--runs", "0"),
        ("benchmark.py", "--warmup", "-1"),
        ("benchmark.py", "--max-rtf", "nan"),
        ("validate_kernel.py", "--steps", "0"),
        ("benchmarks/measure.py streams", "--streams", "0"),
        ("benchmarks/measure.py texts", "--runs", "0"),
        ("benchmarks/load_test", "--duration", "-1"),
    ],
)
def test_numbers_that_measure_nothing_are_refused(run_here, script, option, value):
    if "load_test" in script:
        pytest.importorskip("psutil")
    done = run_here(*script.split(), option, value)
    assert done.returncode == 2
    assert f"argument {option}: {value} is " in done.stderr


def test_benchmark_fails_when_a_limit_is_missed(run_here):
    done = run_here("benchmark.py", "--runs", 1, "--warmup", 0, "--max-rtf", 1e-6, *TINY, *SHORT)
    assert done.returncode == 1 and "rtf" in done.stderr


@pytest.mark.parametrize("name", ["ttfc", "rtf", "tok_s", "e2e"])
def test_each_measure_script_writes_the_common_schema(run_here, tmp_path, name):
    result = tmp_path / "result.json"
    script = f"benchmarks/measure_{name}.py"
    done = run_here(script, "--runs", 1, "--warmup", 0, "--json", result, *TINY, *SHORT)
    assert done.returncode == 0, done.stderr
    found = json.loads(result.read_text())
    assert found["schema"] == common.SCHEMA and found["runs"][0]["frames"] <= 6
    assert found["machine"]["load_before_run"] >= 0 and 0 <= found["machine"]["stolen_share"] <= 1


@pytest.mark.parametrize("mode", [(), ("--token",)])
def test_the_cost_of_the_pipecat_service_is_measured_and_held_against_its_limits(
    run_here, tmp_path, mode
):
    result = tmp_path / "result.json"
    amount = ("--pipelines", 2, "--turns", 1, "--runs", 1, "--rtf", 0.05)
    done = run_here("benchmarks/measure.py", "pipecat", *amount, *mode, "--json", result)
    found = json.loads(result.read_text())
    summary, limits = found["summary"], found["limits"]
    assert (
        found["schema"] == common.SCHEMA and summary["overhead_ms"]["count"] >= 14
    )  # 7 chunks each
    missed = [name for name, most in limits.items() if summary[name]["p95"] > most]
    assert done.returncode == bool(missed) and all(name in done.stderr for name in missed)


@pytest.mark.ci  # four sentences and a measurement
def test_the_end_to_end_check_passes_with_the_demonstration_voice(run_here, tmp_path):
    result = tmp_path / "e2e.json"
    demo = ("--model", "demo-voice", "--backend", "cpu", "--device", "cpu")
    done = run_here("test_e2e.py", *demo, "--runs", 1, "--json", result)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == 4 and json.loads(result.read_text())["runs"]


@pytest.mark.ci  # noise does not end by itself, so this takes seconds
def test_the_end_to_end_check_fails_on_noise(run_here):
    noise = run_here("test_e2e.py", *TINY, "--device", "cpu", "--runs", 1, *SHORT)
    assert noise.returncode == 1 and "FAILED" in noise.stdout


def test_the_end_to_end_check_says_where_it_cannot_run(run_here, monkeypatch):
    nowhere = run_here("test_e2e.py", "--device", "cpu", "--model", "/no/such/folder")
    assert nowhere.returncode == 77
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    no_gpu = run_here("test_e2e.py", "--model", "demo-voice")
    assert no_gpu.returncode == 77 and "no GPU" in no_gpu.stderr


def test_a_plot_is_drawn(run_here, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "runs.png"
    done = run_here("benchmark.py", "--runs", 1, "--warmup", 0, "--plot", picture, *TINY, *SHORT)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_validation_passes_against_the_official_package_and_from_a_recording(
    run_here, tmp_path, official_package
):
    recording = tmp_path / "golden.safetensors"
    plain = ("validate_kernel.py", "--backend", "torch", "--steps", 6)
    done = run_here(*plain, "--save-reference", recording)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("PASSED: every figure of 1 table ")
    assert "official package, float32, greedy: 6 of 6 frames" in done.stderr
    for noise in ("flash-attn", "generation flags", "pad_token_id"):
        assert noise not in done.stdout + done.stderr
    again = run_here(*plain, "--reference", recording)
    assert again.returncode == 0 and "talker logits" in again.stdout
    other = run_here(*plain, "--model", "tiny-random-design", "--reference", recording)
    assert other.returncode == 1 and "DIFFERS" in other.stdout
    assert "\nFAILED: plain decoder against recording" in other.stdout
    assert run_here(*plain, "--reference", tmp_path / "none").returncode == 2


def test_validation_compares_the_emulated_kernel_layer_by_layer(run_here, monkeypatch):
    monkeypatch.setitem(sys.modules, "qwen_tts", None)  # not installed
    script = ("validate_kernel.py", "--steps", 5, "--backend", "emulation", "--dtype", "float32")
    done = run_here(*script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "emulation against plain decoder" in done.stdout and "after layer 2" in done.stdout
    strict = run_here(*script, "--tolerance", 1e-12)
    assert strict.returncode == 1 and "DIFFERS" in strict.stdout


def test_a_recording_that_cannot_be_written_is_refused_before_the_first_frame(run_here):
    done = run_here("validate_kernel.py", "--save-reference", "no/folder/a")
    assert done.returncode == 5 and "there is no folder no/folder" in done.stderr
    assert not done.stdout


def test_nothing_to_compare_is_its_own_exit_code(run_here, monkeypatch):
    monkeypatch.setitem(sys.modules, "qwen_tts", None)
    done = run_here("validate_kernel.py", "--backend", "torch")
    assert done.returncode == 77 and "pip install" in done.stderr


DRAWING = [
    path.relative_to(ROOT)
    for path in programs()
    if re.search(r'"--plot[ "]', path.read_text("utf-8"))
]


@pytest.mark.parametrize("script", ["benchmark.py", *map(str, DRAWING)])
def test_a_drawing_is_refused_before_the_first_run_where_nothing_can_draw(
    run_here, monkeypatch, script
):
    if "load_test" in script:
        pytest.importorskip("psutil")
    assert len(DRAWING) >= 3
    found = importlib.util.find_spec
    monkeypatch.setattr(
        option_types, "find_spec", lambda name: found(name) if name != "matplotlib" else None
    )
    monkeypatch.setattr(families, "load_engine", lambda *_, **__: pytest.fail("loaded"))
    done = run_here(script, "--plot", "a.png")
    assert done.returncode == 2 and install_command("plots") in done.stderr


@pytest.mark.parametrize(
    ("script", "package", "extra"),
    [
        (("examples/voice_agent.py",), "pipecat", "pipecat-ai[webrtc"),
        (("examples/offline_agent.py",), "pipecat", "[pipecat]"),
        (("examples/pipecat_elevenlabs.py",), "pipecat", "[pipecat]"),
        (("examples/livekit_elevenlabs.py",), "livekit", "pip install livekit-agents==1.8.9"),
        (("examples/telephone_stream.py",), "websockets", "[server]"),
        (("benchmarks/load_test/__main__.py", "--rps", "1"), "aiohttp", "[bench]"),
        (("benchmarks/measure.py", "pipecat"), "loguru", "[bench,pipecat,server]"),
        (("benchmarks/measure.py", "server"), "aiohttp", "[bench,pipecat,server]"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else value,
)
def test_a_script_without_its_package_says_what_to_install(
    run_here, monkeypatch, script, package, extra
):
    if "load_test" in script[0]:
        pytest.importorskip("psutil")
    for name in [name for name in sys.modules if name.split(".")[0] in (package, "benchmarks")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    done = run_here(*script)
    assert done.returncode == 3 and f"needs {package}" in done.stderr and extra in done.stderr


def test_the_load_test_explains_itself_without_its_packages(run_here, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("psutil", "aiohttp"):
        monkeypatch.setitem(sys.modules, name, None)
    done = run_here("benchmarks/load_test/__main__.py", "--help")
    assert done.returncode == 0 and "--rps" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--user", "absent.wav"), 2, "absent.wav cannot be read as audio: no such file."),
        (("--output", "agent.xyz"), 2, "no audio format is called '.xyz'"),
        (("--seed", "-1"), 2, "seed is -1; it must be"),
        (("--seed", "x"), 2, "'x' is not a whole number"),
    ],
)
def test_what_the_offline_agent_cannot_do_is_refused_before_a_model_is_loaded(
    run_here, monkeypatch, arguments, code, message
):
    monkeypatch.setattr(families, "load_engine", lambda *_, **__: pytest.fail("loaded"))
    done = run_here("examples/offline_agent.py", *arguments)
    assert done.returncode == code and message in done.stderr
