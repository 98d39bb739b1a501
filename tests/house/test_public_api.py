"""The names that users and scripts import and run exist, wherever their code is."""

import ast
import importlib
import sys
from pathlib import Path

import pytest
from commands import ROOT, CommandsHere, captured

from qwen_megakernel import __version__

ROOT_NAMES = "TTSEngine SheenEngine SpeechStream Speech Voice Sampling AudioChunk QwenTTSError"
NAMES = {
    "qwen_megakernel": f"{ROOT_NAMES} __version__",
    "qwen_megakernel.tts_engine": "TTSEngine DEFAULT_MODEL",
    "qwen_megakernel.model_tts": "FrameDecoder choose_backend Backend BACKENDS",
    "qwen_megakernel.build_tts": "build Target ARCHITECTURES",
    "qwen_megakernel.pipecat_tts": "MegakernelTTSService",
    "qwen_megakernel.compat": "Qwen3TTSModel FasterQwen3TTS VoiceClonePromptItem",
    "qwen_megakernel.errors": "QwenTTSError UsageError",
    "qwen_megakernel.audio": "WavWriter",
}
SCRIPTS = [
    *("demo_pipeline.py", "demo_tts.py", "benchmark.py", "validate_kernel.py", "test_e2e.py"),
    *(f"benchmarks/measure_{name}.py" for name in ("ttfc", "rtf", "tok_s", "e2e")),
    "tools/verify_mtp_projection.py",
    "tools/long_audio_test.py",
]


@pytest.mark.parametrize("module", NAMES)
def test_a_module_has_its_names(module: str):
    found = importlib.import_module(module)
    for name in NAMES[module].split():
        assert getattr(found, name) is not None


def test_the_root_offers_no_other_names():
    import qwen_megakernel

    assert set(qwen_megakernel.__all__) == set(NAMES["qwen_megakernel"].split())


def test_a_type_checker_sees_the_classes_and_no_getattr():
    import qwen_megakernel

    body = ast.parse(Path(qwen_megakernel.__file__).read_text("utf-8")).body
    assert not [each for each in body if getattr(each, "name", "") == "__getattr__"]
    seen = next(each.body for each in body if isinstance(each, ast.If))
    imported = {
        # Without "as", strict checkers do not let a name be imported from here.
        alias.asname: each.module
        for each in seen
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
        if alias.name == alias.asname
    }
    homes = {name: getattr(qwen_megakernel, name).__module__ for name in ROOT_NAMES.split()}
    assert imported == homes


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_answers_help(run_here: CommandsHere, script: str):
    done = run_here(script, "--help")
    assert done.returncode == 0 and "usage" in done.stdout


def test_the_gpu_check_answers_help():
    command = ["bash", "tools/gpu_check.sh", "--help"]
    done = captured(command, cwd=ROOT, timeout=100)
    assert done.returncode == 0 and "usage" in done.stdout


def test_the_module_prints_its_version(run_here: CommandsHere):
    done = run_here("-m", "qwen_megakernel", "--version")
    assert done.returncode == 0 and __version__ in done.stdout


def test_the_command_prints_its_version():
    command = [Path(sys.executable).with_name("qwen-megakernel"), "--version"]
    done = captured(command, timeout=100)
    assert done.returncode == 0 and __version__ in done.stdout
