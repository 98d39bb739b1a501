"""`build` and what `doctor` reports of its tools."""

import hashlib
import re
from pathlib import Path
from unittest.mock import Mock

import pytest

from qwen_megakernel.cli import doctor, main
from qwen_megakernel.decoders.kernel import build as kernel_build
from qwen_megakernel.errors import BuildError
from qwen_megakernel.native import compiling


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, str]]:
    """An empty cache and a compiler that writes a stand-in; (arch, its -D's) of every call."""
    calls = []

    def compile_nothing(work: Path, recipe: compiling.Recipe, ninja: str) -> None:
        arch = re.search(r",code=(\w+)", flags := " ".join(recipe.flags))
        calls.append((arch and arch[1], flags))
        (work / recipe.library).write_bytes(b"library")
        (work / "sha256").write_text(hashlib.sha256(b"library").hexdigest())

    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setattr(compiling, "_compile", compile_nothing)
    return calls


def build(*arguments: str) -> int:
    return main.main(["build", *arguments])


def test_every_architecture_is_built_and_its_library_named(compiled, capsys):
    assert build("--arch", "sm_90a,sm_120a,emulation", "--model", "tiny-random") == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in out] == [
        ["sm_90a", "bfloat16"],
        ["sm_120a", "bfloat16"],
        ["emulation", "float32"],
    ]
    assert len({line.split()[2] for line in out}) == 3
    assert all(Path(line.split()[2]).read_bytes() == b"library" for line in out)


def test_it_says_what_it_compiles_and_is_quiet_when_asked(compiled, caplog):
    build("--arch", "sm_90a", "--model", "tiny-random")
    assert re.search(
        r"Compiling the kernel for sm_90a.*Compiled the kernel for sm_90a in", caplog.text, re.S
    )
    caplog.clear()
    build("--arch", "sm_80", "--model", "tiny-random", "--quiet")
    assert len(compiled) == 2 and not caplog.text


def test_a_second_build_finds_the_first(compiled, capsys):
    for _ in range(2):
        build("--arch", "sm_90a", "--model", "tiny-random")
    first, second = capsys.readouterr().out.splitlines()
    assert first == second and len(compiled) == 1


@pytest.mark.parametrize(
    ("model", "hidden"), [("Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign", 2048), ("demo-voice", 192)]
)
def test_released_models_need_no_download(compiled, monkeypatch, model, hidden):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert build("--arch", "sm_90a", "--model", model, "--dtype", "float32") == 0
    ((_, flags),) = compiled
    assert f"-DTALKER_HIDDEN_SIZE={hidden} " in flags and "-DWEIGHTS_F32=1" in flags


@pytest.mark.parametrize(
    ("weights", "flags"),
    [
        ("int8-talker", "TALKER_INT8=1 -DPREDICTOR_INT8=0"),
        ("int8", "TALKER_INT8=1 -DPREDICTOR_INT8=1"),
    ],
)
def test_int8_layers_are_other_libraries(compiled, capsys, weights, flags):
    build("--arch", "sm_90a", "--model", "tiny-random")
    assert build("--arch", "sm_90a", "--model", "tiny-random", "--weights", weights) == 0
    plain, int8 = capsys.readouterr().out.splitlines()
    assert int8.split()[:2] == ["sm_90a", weights] and plain.split()[2] != int8.split()[2]
    assert "-DTALKER_INT8=0 -DPREDICTOR_INT8=0" in compiled[0][1] and flags in compiled[1][1]


def test_without_a_gpu_the_cpu_decoder_is_built_for_every_instruction_set(
    compiled, monkeypatch, capsys
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert build() == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    names = ["avx512_vnni", "avx512", "avx2", "plain"]
    assert [row[:2] for row in rows] == [["cpu", name] for name in names]
    assert len({row[2] for row in rows}) == 4
    flags = [flags for _, flags in compiled]
    assert "-mavx512vnni" in flags[0] and "-mavx2" in flags[2] and "-mavx" not in flags[3]


def test_the_gpu_of_this_machine_is_the_default(compiled, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "H200")
    assert build("--model", "tiny-random") == 0
    assert [arch for arch, _ in compiled] == ["sm_90a"]


@pytest.mark.parametrize("arch", ["sm_75", "sm_90b", "90a", ""])
def test_an_unknown_architecture_is_a_usage_error_before_anything_is_built(compiled, capsys, arch):
    assert build("--arch", f"sm_80,{arch}", "--model", "tiny-random") == 2
    assert f"--arch has {arch!r}; known: sm_80" in capsys.readouterr().err
    assert not compiled


def test_a_missing_compiler_is_exit_code_3(compiled, monkeypatch, capsys):
    monkeypatch.setattr(kernel_build, "find_nvcc", Mock(side_effect=BuildError("No nvcc in PATH.")))
    assert build("--arch", "sm_90a", "--model", "tiny-random") == 3
    assert "No nvcc in PATH" in capsys.readouterr().err


def test_doctor_finds_nvcc_where_the_build_finds_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(compiling, "find_zig", lambda: None)
    assert doctor.report()["cxx"] is None
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("")
    nvcc.chmod(0o755)
    assert doctor.report()["nvcc"] == str(nvcc)


def test_nvcc_of_a_wheel_is_found(monkeypatch, tmp_path):
    nvcc = tmp_path / "nvidia" / "cu13" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(
        kernel_build.importlib.util,
        "find_spec",
        lambda name: type("Spec", (), {"submodule_search_locations": [str(tmp_path / "nvidia")]}),
    )
    assert kernel_build.find_nvcc() == str(nvcc)
