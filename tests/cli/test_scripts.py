"""The commands a new user types, run as they are typed: files, output, exit codes."""

import argparse
import functools
import importlib.util
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import soundfile
import torch
from commands import ROOT, run
from huggingface_hub import constants
from programs import programs
from tolerances import nearly

from benchmarks import common
from qwen_megakernel import families
from qwen_megakernel.cli import options
from qwen_megakernel.cli.main import main
from qwen_megakernel.errors import EmptyText
from qwen_megakernel.gpu import driver
from qwen_megakernel.installing import install_command
from qwen_megakernel.native import cpu_library, cpu_threads

SHORT = ("--max-frames", "6", "--seed", "3", "--backend", "torch")
TINY = ("--model", "tiny-random")
SPEAK = ("-m", "qwen_megakernel", "speak")


@pytest.fixture
def speak(run_here):
    """speak(*arguments): runs the command in this process."""
    return functools.partial(run_here, *SPEAK)


@pytest.fixture
def speak_bytes(capsysbinary):
    """speak_bytes(*arguments): exit code, stdout and stderr in bytes, since samples are no text."""

    def speak(*arguments):
        code = main(["speak", *map(str, arguments)])
        return code, *capsysbinary.readouterr()

    return speak


def test_demo_tts_writes_the_file_and_says_what_it_did(run_here, caplog, tmp_path):
    out = tmp_path / "demo.wav"
    done = run_here("demo_tts.py", "Hello there.", "--output", out, *TINY, *SHORT)
    assert done.returncode == 0, done.stderr
    samples, rate = soundfile.read(out)
    assert rate == 24000 and len(samples) <= 6 * 1920
    assert "seed 3" in done.stderr and "RANDOM" in caplog.text
    assert done.stdout == ""  # which is for data


@pytest.mark.parametrize("script", [SPEAK, ("demo_tts.py",), ("demo_pipeline.py", "--text")])
def test_quiet_front_ends_say_nothing_of_a_speech_that_went_well(run_here, tmp_path, script):
    out = tmp_path / "a.wav"
    done = run_here(*script, "Hello.", "--output", out, "--quiet", *TINY, *SHORT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "") and out.exists()


def test_speak_writes_a_file_a_dump_and_chunk_lines(speak, tmp_path):
    out, dump = tmp_path / "a.flac", tmp_path / "codes.tsv"
    done = speak("Hello there.", "--output", out, "--dump-codes", dump, "--stream", *TINY, *SHORT)
    assert done.returncode == 0, done.stderr
    codes = np.loadtxt(dump, dtype=int, ndmin=2)
    assert codes.shape[1] == 16
    assert len(soundfile.read(out)[0]) == len(codes) * 1920
    assert done.stdout == "" and "frames 0..0" in done.stderr


def test_the_dump_option_and_the_variable_give_the_same_file(speak, tmp_path, monkeypatch):
    """The engine's warm-up is in neither, and a second run begins anew."""
    option, variable = tmp_path / "option.tsv", tmp_path / "variable.tsv"
    common = ("Hello.", "--output", tmp_path / "a.wav", *TINY, *SHORT)
    assert speak(*common, "--dump-codes", option).returncode == 0
    assert len(option.read_text().splitlines()) == 6
    monkeypatch.setenv("TTS_DUMP_CODES", str(variable))
    for _ in range(2):
        assert speak(*common).returncode == 0
        assert variable.read_bytes() == option.read_bytes()


def test_chunk_lines_go_beside_raw_samples(speak_bytes):
    code, samples, shown = speak_bytes("Hello.", "--stdout", "--stream", *TINY, *SHORT)
    assert code == 0 and len(samples) % 3840 == 0 and b"frames 0..0" in shown


@pytest.mark.parametrize("prints", [print, functools.partial(print, flush=True)])
def test_output_that_nothing_takes_has_an_exit_code_and_no_traceback(monkeypatch, capsys, prints):
    """A full disk exits with 5; a reader that has ended (`... | head -1`) is no error."""
    reading, writing = os.pipe()
    os.close(reading)
    args = argparse.Namespace(debug=False, quiet=False)
    for file, code, shown in (("/dev/full", 5, "standard output: No space left"), (writing, 0, "")):
        with open(file, "w") as output:
            monkeypatch.setattr(sys, "stdout", output)
            assert options.run(lambda _: prints("figures") or 0, args) == code
            output.flush()  # as Python's exit does
        assert shown in capsys.readouterr().err


@pytest.mark.parametrize(
    "environment", [{}, pytest.param({"PYTHONUNBUFFERED": "1"}, marks=pytest.mark.ci)]
)
def test_samples_that_cannot_be_written_are_reported(environment):
    """A chunk is larger than the buffer, so no rest of it can fail again."""
    command = [sys.executable, *SPEAK, "Hello there, friend.", "--stdout", "--quiet", *TINY]
    command += ["--backend", "torch"]
    environment = os.environ | environment
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert len(process.stdout.read(100)) == 100
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 0)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert done.returncode == 5
    assert done.stderr == b"error: standard output: No space left on device.\n"


@pytest.mark.parametrize("error", [OSError(113, "No route to host"), BrokenPipeError(32, "gone")])
def test_a_fault_of_something_else_is_not_put_on_the_output(capsys, error):
    def fail(_):
        print("figures")
        raise error

    assert options.run(fail, argparse.Namespace(debug=False, quiet=False)) == 5
    shown = capsys.readouterr()
    assert shown.out == "figures\n" and shown.err == f"error: {error.strerror}.\n"


def test_a_folder_that_cannot_be_written_is_reported(run_here, tmp_path):
    (tmp_path / "file").touch()
    done = run_here("-m", "qwen_megakernel", "download", *TINY[1:], "--to", tmp_path / "file")
    assert done.returncode == 5
    assert f"error: {tmp_path / 'file'}: File exists" in done.stderr


def test_speak_reads_standard_input_and_writes_raw_samples(speak_bytes, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello there."))
    code, samples, shown = speak_bytes("-", "--stdout", *TINY, *SHORT)
    assert code == 0, shown
    assert len(samples) > 0 and len(samples) % (2 * 1920) == 0


def test_the_same_seed_gives_the_same_file_in_another_process(speak, tmp_path):
    for command, name in ((speak, "a.wav"), (functools.partial(run, *SPEAK), "b.wav")):
        assert command("Hi.", "--output", tmp_path / name, *TINY, *SHORT).returncode == 0
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("", *TINY), 2, "empty"),
        (("🙂", *TINY), 2, "no letter"),
        (("Hello.", "--voice", "alloy", *TINY), 2, "aiden"),
        (("Hello.", "--language", "Klingon", *TINY), 2, "english"),
        (("Hello.", "--seed", "-4", *TINY), 2, "-4"),
        (("Hello.", "--model", "/no/such/folder"), 4, "/no/such/folder"),
        (("Hello.", "--backend", "kernel", *TINY), 3, "--backend torch"),
        (("Hello.", "--device", "cuda", *TINY), 3, "--device cpu"),
        (("Hello.", "--temperature", "0", *TINY), 2, "use --greedy"),
        (("Hello.", "--output", "/no/such/dir/a.wav", *TINY), 5, "/no/such/dir"),
        (("Hello.", "--output", "a.xyz", *TINY), 2, "wav"),
    ],
)
def test_what_cannot_work_ends_with_its_code_one_message_and_no_file(
    speak, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    done = speak(*arguments)
    assert done.returncode == code, done.stderr
    assert message.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_unwritable_codes_and_a_dash_are_refused_before_a_model_is_loaded(
    run_here, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "engine_from_args", lambda *_: pytest.fail("loaded"))
    for script in (SPEAK, (ROOT / "demo_pipeline.py", "--text")):
        for path in ("/no/such/dir/a.tsv", "."):
            done = run_here(*script, "Hello.", "--dump-codes", path)
            assert done.returncode == 5 and f"Cannot write codes to {path}: " in done.stderr
    done = run_here(*SPEAK, "Hello.", "--output", "-")
    assert done.returncode == 2 and "--stdout" in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("script", [SPEAK, ("demo_tts.py",), ("demo_pipeline.py", "--text")])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("Hello.", "-o", "/no/such/dir/a.wav"), 5),
        (("🙂",), 2),
        (("a" * 20_001,), 2),
        (("Hello.", "--output", "a.xyz"), 2),
        (("Hello.", "--output", "/no/such/dir/a.wav"), 5),
    ],
)
def test_what_cannot_be_spoken_or_written_is_refused_before_a_model_is_loaded(
    run_here, monkeypatch, script, arguments, code
):
    monkeypatch.setattr(options, "engine_from_args", lambda *_: pytest.fail("loaded"))
    done = run_here(*script, *arguments)
    assert done.returncode == code and done.stderr.startswith("error: ")
    assert "--max-chars" not in done.stderr  # which these commands do not have


@pytest.mark.parametrize("script", [SPEAK, ("demo_tts.py",), ("demo_pipeline.py", "--text")])
def test_a_speech_that_is_cut_off_is_reported(run_here, tmp_path, caplog, script):
    text = "This sentence is too long for so few frames."
    options = ("--model", "demo-voice", "--backend", "torch", "--max-frames", "5", "--seed", "7")
    done = run_here(*script, text, *options, "--output", tmp_path / "a.wav")
    assert done.returncode == 0, done.stderr
    assert "Stopped at 5 frames (0.4 s) without an end token (seed 7)." in caplog.messages


def test_options_that_greedy_decoding_ignores_are_reported(speak, tmp_path, caplog):
    ignored = ("--temperature", "0.5", "--top-k", "3", "--repetition-penalty", "1.2")
    output = ("--output", tmp_path / "a.wav")
    assert speak("Hello.", "--greedy", *ignored, *output, *TINY, *SHORT).returncode == 0
    shown = [message for message in caplog.messages if "no effect" in message]
    assert shown == ["--greedy: --temperature has no effect.", "--greedy: --top-k has no effect."]


@pytest.mark.parametrize(
    ("count", "shown"), [(1, "at 1 frame (0.1 s)"), (2, "at 2 frames (0.2 s)")]
)
def test_one_frame_is_not_plural(caplog, count, shown):
    options.warn_of_end("length", count, 0.08 * count, 7)
    assert shown in caplog.text


def test_debug_leaves_the_error_to_python_which_shows_the_traceback(speak):
    with pytest.raises(EmptyText):
        speak("", "--debug", *TINY)


def test_doctor_reports_what_this_machine_has(run_here):
    facts = json.loads(run_here("-m", "qwen_megakernel", "doctor", "--json").stdout)
    assert facts["packages"]["torch"] and facts["backend"]["auto"] in ("cpu", "kernel")
    assert facts["instruction_sets"][-1] == "plain" and facts["cores"] >= 1
    done = run_here("-m", "qwen_megakernel", "doctor")
    assert "torch" in done.stdout
    assert done.stderr == "loading PyTorch\n"  # which takes seconds, in which nothing is printed


def test_doctor_names_the_instruction_set_in_use_and_a_small_quota(run_here, monkeypatch):
    def facts():
        return json.loads(run_here("-m", "qwen_megakernel", "doctor", "--json").stdout)

    monkeypatch.delenv(cpu_library.FORCED, raising=False)
    monkeypatch.setattr(cpu_threads, "quota", lambda root=None: None)
    here = facts()
    assert here["instruction_set"] == here["instruction_sets"][0]
    assert here["cpu_quota_warning"] is None
    monkeypatch.setenv(cpu_library.FORCED, "plain")
    monkeypatch.setattr(cpu_threads, "quota", lambda root=None: 1.5)
    here = facts()
    assert (here["instruction_set"], here["cpu_quota"]) == ("plain", 1.5)
    assert here["cpu_quota_warning"].startswith("This container may use 1.5 cores")
    monkeypatch.setenv(cpu_library.FORCED, "sve2")
    assert facts()["instruction_set"].startswith("none: QWEN_MEGAKERNEL_INSTRUCTION_SET is 'sve2'")


def test_doctor_reports_the_driver_and_the_cache_in_use(run_here, tmp_path, monkeypatch):
    """docs/gpu-setup.md: the CUDA version of the driver and the one torch was built for."""
    monkeypatch.setattr(driver, "cuda_of_driver", lambda: (12, 4))
    monkeypatch.setattr(driver, "driver_version", lambda: "550.163.01")
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    facts = json.loads(run_here("-m", "qwen_megakernel", "doctor", "--json").stdout)
    assert (facts["driver"], facts["torch_cuda"]) == ("550.163.01, CUDA 12.4", "13.2")
    assert facts["hub_cache"] == str(tmp_path)


def test_codes_compare_prints_figures_and_overlaps(run_here, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a.tsv", "b.tsv"):
        np.savetxt(tmp_path / name, rng.integers(0, 9, (20, 4)), fmt="%d", delimiter="\t")
    compare = ("-m", "qwen_megakernel", "codes", "compare", tmp_path / "a.tsv")
    done = run_here(*compare, tmp_path / "b.tsv")
    assert done.returncode == 0 and "entropy_bits" in done.stdout and "overlap" in done.stdout
    narrow = tmp_path / "c.tsv"
    narrow.write_text("1\t2\n")
    assert run_here(*compare, narrow).returncode == 2


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
    demo = ("--model", "demo-voice", "--backend", "torch", "--device", "cpu")
    done = run_here("test_e2e.py", *demo, "--runs", 1, "--json", result)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == 4 and json.loads(result.read_text())["runs"]


@pytest.mark.ci  # noise does not end by itself: seconds of it
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


def test_nothing_to_compare_is_its_own_exit_code(run_here, monkeypatch):
    monkeypatch.setitem(sys.modules, "qwen_tts", None)
    done = run_here("validate_kernel.py", "--backend", "torch")
    assert done.returncode == 77 and "pip install" in done.stderr


@pytest.mark.parametrize(
    "options",
    [("--temperature", "-1"), ("--top-p", "3"), ("--top-k", "-2"), ("--max-frames", "0")],
    ids=lambda options: options[0],
)
@pytest.mark.parametrize("script", [SPEAK, ("demo_tts.py",), ("demo_pipeline.py", "--text")])
def test_sampling_that_cannot_work_is_refused_before_a_model_is_loaded(
    run_here, monkeypatch, script, options
):
    monkeypatch.setattr(families, "load_engine", lambda *_, **__: pytest.fail("loaded"))
    done = run_here(*script, "Hello.", *options)
    assert done.returncode == 2 and options[1] in done.stderr and "must be" in done.stderr


DRAWING = [path.relative_to(ROOT) for path in programs() if '"--plot"' in path.read_text("utf-8")]


@pytest.mark.parametrize("script", ["benchmark.py", *map(str, DRAWING)])
def test_a_drawing_is_refused_before_the_first_run_where_nothing_can_draw(
    run_here, monkeypatch, script
):
    assert len(DRAWING) >= 3
    found = importlib.util.find_spec
    monkeypatch.setattr(
        options, "find_spec", lambda name: found(name) if name != "matplotlib" else None
    )
    monkeypatch.setattr(families, "load_engine", lambda *_, **__: pytest.fail("loaded"))
    done = run_here(script, "--plot", "a.png")
    assert done.returncode == 2 and install_command("plots") in done.stderr


@pytest.mark.parametrize(
    ("script", "package", "extra"),
    [
        (("examples/voice_agent.py",), "pipecat", "pipecat-ai[webrtc"),
        (("examples/offline_agent.py",), "pipecat", "[pipecat]"),
        (("examples/telephone_stream.py",), "websockets", "[server]"),
        (("benchmarks/load_test/__main__.py",), "aiohttp", "[bench]"),
        (("benchmarks/measure.py", "pipecat"), "loguru", "[bench,pipecat,server]"),
        (("benchmarks/measure.py", "server"), "aiohttp", "[bench,pipecat,server]"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else value,
)
def test_a_script_without_its_package_says_what_to_install(
    run_here, monkeypatch, script, package, extra
):
    for name in [name for name in sys.modules if name.split(".")[0] in (package, "benchmarks")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    done = run_here(*script)
    assert done.returncode == 3 and f"needs {package}" in done.stderr and extra in done.stderr


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


@pytest.mark.parametrize(
    ("codes", "suspicious"),
    [
        ([[(7 * i * (g + 1)) % 97 for g in range(4)] for i in range(40)], []),
        ([[i % 2, 5, i, 9] for i in range(40)], ["stuck_groups", "unique_code_0"]),
        ([[3, i, 2 * i, 3 * i] for i in range(40)], ["repeat_rate"]),
        ([[1, 2, 3, 4]] * 3, []),
        (
            [[2047 if (3 * g + i) % 10 else 5 * i + g for g in range(4)] for i in range(40)],
            ["top_code_share", "max_code_share", "single_value_groups"],
        ),
        (  # one group, whose value is not the largest
            [
                [700 if i % 10 else i, *((17 * i * g) % 2039 for g in (1, 2, 3, 5))]
                for i in range(80)
            ],
            ["single_value_groups"],
        ),
        (  # too short to judge groups, and not too short to judge all codes
            [[2047 if (3 * g + i) % 10 else 5 * i + g for g in range(16)] for i in range(4)],
            ["top_code_share", "max_code_share"],
        ),
    ],
    ids=["healthy", "stuck", "repeating", "too short", "one value", "one group", "short"],
)
def test_compared_codes_come_with_what_is_usual(run_here, tmp_path, codes, suspicious):
    dumps = [tmp_path / name for name in ("a.tsv", "b.tsv")]
    for dump in dumps:
        np.savetxt(dump, codes, fmt="%d", delimiter="\t")
    compare = ("-m", "qwen_megakernel", "codes", "compare", *dumps)
    done = run_here(*compare)
    shown = done.stdout
    first, pair = shown.split(str(dumps[1]), 1)[0], shown.splitlines()[-1]
    _, frames, *figures = first.splitlines()
    marked = [line.split()[0] for line in figures if "SUSPICIOUS" in line]
    assert set(suspicious) <= set(marked) and bool(marked) == bool(suspicious)
    judged = [line for line in figures if re.search("usual: .*; suspicious: ", line)]
    assert len(judged) == (9 if len(codes) >= 20 else 2 if len(codes) * len(codes[0]) >= 64 else 0)
    assert ("too few to judge" in frames) == (len(codes) < 20)
    assert done.returncode == 0
    as_json = run_here(*compare, "--json", "--strict")
    assert as_json.returncode == run_here(*compare, "--strict").returncode == bool(marked)
    assert json.loads(as_json.stdout)["anomalies"] == dict.fromkeys(map(str, dumps), marked)
    assert "overlap 1.000" in pair and "suspicious: above 0.8" in pair
    assert " -0.000" not in shown
