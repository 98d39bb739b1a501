"""The kernel's build: the flags and files that it compiles, its cache, and its errors."""

import hashlib
import multiprocessing
import re
import shutil
from itertools import product
from pathlib import Path

import kernel_models as k
import ninja
import pytest
from commands import write_program
from nvcc import has_nvcc, needs_nvcc

from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.choices import INT8_STACKS
from qwen_megakernel.decoders.kernel import build as kernel_build
from qwen_megakernel.decoders.kernel.build import Target
from qwen_megakernel.errors import ArchError, BuildError
from qwen_megakernel.native import compiling

EMULATION = Target(None, "float32")


def released(name: str = "random-0.6b"):
    return parse_model_config(model_config(name))


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A compilation that writes a stand-in; the list has an item for each run of it."""
    calls = []

    def compile_nothing(work: Path, *_) -> None:
        calls.append(work)
        (work / "libqwen_tts.so").write_bytes(b"library")
        (work / "sha256").write_text(hashlib.sha256(b"library").hexdigest())

    monkeypatch.setattr(compiling, "_compile", compile_nothing)
    return calls


def test_every_definition_is_read_by_a_source():
    sources = "\n".join(p.read_text() for p in compiling.source_folder().glob("*.cu*"))
    for arch in (None, "sm_90a"):
        for name in kernel_build.definitions(k.small_config(), Target(arch, "bfloat16")):
            assert re.search(rf"\b{name}\b", sources), name


def test_a_library_is_compiled_once_and_found_again(empty_cache, no_compiler):
    first = kernel_build.build(k.small_config(), EMULATION)
    assert kernel_build.build(k.small_config(), EMULATION) == first
    assert len(no_compiler) == 1
    assert {path.name for path in first.parent.iterdir()} == {"libqwen_tts.so", "sha256"}


def test_shape_precision_and_sources_make_other_libraries(empty_cache, no_compiler, monkeypatch):
    config = k.small_config()
    libraries = {
        kernel_build.build(config, EMULATION),
        kernel_build.build(config, Target(None, "bfloat16")),
        kernel_build.build(config, Target(None, "float32", probes=True)),
        kernel_build.build(config, Target(None, "float32", int8=("talker",))),
        kernel_build.build(k.small_config(talker={"hidden_size": 96}), EMULATION),
    }
    changed = empty_cache.parent / "csrc"
    shutil.copytree(compiling.source_folder(), changed)
    (changed / "barrier.cuh").write_text("// another barrier\n")
    monkeypatch.setattr(kernel_build, "source_folder", lambda: changed)
    libraries.add(kernel_build.build(config, EMULATION))
    assert len(libraries) == len(no_compiler) == 6
    (changed / "cpu" / "vocoder.cpp").write_text("// not the kernel's\n")
    assert kernel_build.build(config, EMULATION) in libraries


def test_a_define_of_an_experiment_replaces_ours_in_another_library(empty_cache, no_compiler):
    config = k.small_config()
    tuned = Target("sm_90a", "bfloat16", defines=(("LOOKAHEAD_TILES", 3), ("PLANTED", 1)))
    values = kernel_build.definitions(config, tuned)
    assert (values["LOOKAHEAD_TILES"], values["PLANTED"], values["ROUND_TILES"]) == (3, 1, 4)
    emulated = Target(None, "float32", defines=(("LOOKAHEAD_TILES", 3),))
    assert kernel_build.build(config, emulated) != kernel_build.build(config, EMULATION)


def test_a_damaged_library_is_built_again(empty_cache, no_compiler, caplog):
    library = kernel_build.build(k.small_config(), EMULATION)
    library.write_bytes(b"half a libr")
    assert kernel_build.build(k.small_config(), EMULATION) == library
    assert library.read_bytes() == b"library"
    assert "is damaged" in caplog.text


def build_and_report(queue) -> None:
    queue.put(str(kernel_build.build(k.small_config(), EMULATION)))


def test_two_processes_build_it_once(empty_cache, no_compiler):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=build_and_report, args=(queue,)) for _ in range(3)]
    for process in processes:
        process.start()
    paths = {queue.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(paths) == 1
    assert [p.name for p in empty_cache.iterdir() if p.is_dir()] == [Path(paths.pop()).parent.name]


def test_a_failing_compiler_leaves_its_log_and_no_library(empty_cache, monkeypatch, tmp_path):
    broken = tmp_path / "csrc"
    shutil.copytree(compiling.source_folder(), broken)
    for unit in (*broken.glob("*.cu"), *broken.glob("emulation/*.cpp")):
        unit.write_text("#error planted\n" if unit.name == "tts_kernel.cu" else "")
    monkeypatch.setattr(kernel_build, "source_folder", lambda: broken)
    with pytest.raises(BuildError, match=r"failed on tts_kernel.cu .*\n.*failed\.log"):
        kernel_build.build(k.small_config(), EMULATION)
    assert "planted" in (empty_cache / "failed.log").read_text()
    assert not list(empty_cache.glob("*/libqwen_tts.so"))


def test_missing_tools_are_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(kernel_build.importlib.util, "find_spec", lambda name: None)
    for find, words in (
        (kernel_build.find_nvcc, "No nvcc in PATH, CUDA_HOME, or the nvidia packages"),
        (compiling.find_cxx, r"There is no C\+\+ compiler"),
        (compiling.find_ninja, "ninja is not installed"),
    ):
        with pytest.raises(BuildError, match=words):
            find()
    assert not has_nvcc()  # so tests with nvcc are skipped


def test_ninja_is_that_of_its_package_before_that_of_the_system(monkeypatch, tmp_path):
    write_program(tmp_path / "ninja", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiling.find_ninja() == str(Path(ninja.BIN_DIR) / "ninja")
    monkeypatch.setattr(kernel_build.importlib.util, "find_spec", lambda name: None)
    assert compiling.find_ninja() == str(tmp_path / "ninja")


def test_nvcc_is_found_in_cuda_home(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    nvcc = write_program(tmp_path / "bin" / "nvcc", "")
    assert kernel_build.find_nvcc() == str(nvcc)
    assert has_nvcc()  # so tests with nvcc run, although none is in PATH


NVCC_OF_THE_PACKAGES = """#!/bin/sh
for word; do
    [ "$before" = -o ] && out=$word
    case "$word" in -L*) runtime=${word#-L}/libcudart_static.a;; -shared) links=yes;; esac
    before=$word
done
[ -z "$links" ] || [ -e "$runtime" ] || exit 1
[ -z "$out" ] || : > "$out"
"""


@pytest.mark.parametrize("lib", ["lib", "lib64"])
def test_cudas_runtime_is_found_where_nvidias_python_packages_have_it(
    empty_cache, monkeypatch, tmp_path, lib
):
    nvcc = write_program(tmp_path / "a $folder's" / "bin" / "nvcc", NVCC_OF_THE_PACKAGES)
    (nvcc.parent.parent / lib).mkdir()
    (nvcc.parent.parent / lib / "libcudart_static.a").touch()
    monkeypatch.setattr(kernel_build, "find_nvcc", lambda: str(nvcc))
    recipe = kernel_build.recipe(k.small_config(), Target("sm_90", "bfloat16"))
    if lib == "lib":
        assert compiling.compiled(recipe).exists()
    else:  # nvcc finds it there by itself
        assert recipe.link_flags == ()


def test_architectures():
    assert kernel_build.arch_of((9, 0), "H200") == "sm_90a"
    assert kernel_build.arch_of((12, 0), "RTX 5090") == "sm_120"
    with pytest.raises(ArchError, match="T4 is sm_75; the kernel needs sm_80"):
        kernel_build.arch_of((7, 5), "NVIDIA T4")
    with pytest.raises(ArchError, match="sm_130; the kernel knows sm_80"):
        kernel_build.arch_of((13, 0), "X")


def test_a_prompts_rows_are_resident_where_they_fit():
    def columns(name: str, arch: str) -> tuple[int, int]:
        values = kernel_build.definitions(released(name), Target(arch, "bfloat16"))
        return values["CHUNK_COLS"], values["FORWARD_CHUNK_COLS"]

    assert columns("random-1.7b", "sm_90a") == columns("random-1.7b", "sm_100") == (1024, 2048)
    assert columns("random-0.6b", "sm_90a") == (1024, 1024)  # the width of the hidden state
    assert columns("random-1.7b", "sm_80") == (1024, 1024)  # 163 KB of shared memory
    assert columns("random-1.7b", "sm_120") == (512, 512)


WARNING = re.compile(r"\bwarning\b *[:#]")
ENTRY = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) reg",
    re.DOTALL,
)


@pytest.mark.parametrize("probes", [False, True])
def test_the_emulation_compiles_without_warnings(probes):
    library = kernel_build.build(k.small_config(), Target(None, "float32", probes=probes))
    assert not WARNING.search((library.parent / "build.log").read_text())


IN_EVERY_CI_RUN = ("random-0.6b", "bf16", "sm_90a")


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "weights", "arch"),
    [
        pytest.param(*build, marks=pytest.mark.ci if build == IN_EVERY_CI_RUN else pytest.mark.slow)
        for build in product(
            ("random-0.6b", "random-1.7b"), ("bf16", *INT8_STACKS), kernel_build.ARCHITECTURES
        )
    ],
)
def test_nvcc_compiles_without_warnings_spills_or_too_many_registers(name, weights, arch):
    target = Target(arch, "bfloat16", int8=INT8_STACKS.get(weights, ()))
    log = (kernel_build.build(released(name), target).parent / "build.log").read_text()
    assert not WARNING.search(log)
    entries = ENTRY.findall(log)
    assert len(entries) == 3  # step_kernel, few_step_kernel and forward_kernel
    threads = kernel_build.definitions(released(name), target)["NUM_THREADS"]
    for stack, stores, loads, registers in entries:
        assert (stack, stores, loads) == ("0", "0", "0")
        assert int(registers) * threads <= 65536
