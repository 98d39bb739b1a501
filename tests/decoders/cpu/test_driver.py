"""The native sources in a program of their own: on other processors, and under sanitizers.

Each sanitizer first has to find a fault that is planted in a copy of the sources, so that its
silence about the sources proves something.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tolerances import AUDIO_F32, LOGITS_F32, LOGITS_INT8_RMS

from qwen_megakernel.native import compiling, cpu_library

pytestmark = pytest.mark.ci

ARM = "aarch64-linux-gnu-g++"
QEMU = "qemu-aarch64"
AVX2 = cpu_library.INSTRUCTION_SETS["avx2"]
SANITIZERS = {
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address"],
    "undefined": ["-fsanitize=undefined,float-cast-overflow", "-fno-sanitize-recover=all"],
}
# A file, a text in it, the fault that replaces it, and the sanitizers that must report it.
FAULTS = {
    "a barrier is missing behind a product": (
        *("frame.h", "for (int i = 0; i < count; ++i) to[i] += sums[i];\n  });\n"),
        *("  worker.barrier();\n", "", "thread", "data race"),
    ),
    "a worker arrives without release": (
        *("pool.h", "crew.num_arrived.fetch_add(1, "),
        *("std::memory_order_acq_rel", "std::memory_order_relaxed", "thread", "data race"),
    ),
    "a buffer is too small": (
        *("model.h", "model->mlp.resize("),
        *("num_rows * inner", "num_rows * inner / 2", "address", "heap-buffer-overflow"),
    ),
    "weights are read past their end": (
        *("product.h", "const uint8_t* weights = matrix.packed + "),
        *("block * ", "(block + 1) * ", "address", "heap-buffer-overflow"),
    ),
    "weights of the vocoder are read one row past their end": (
        *("convolution.h", "      of_column[v] = load_weights<kIsHalf>("),
        *("weights + v * kLanes", "weights + pitch_bytes + v * kLanes"),
        *("address", "heap-buffer-overflow"),
    ),
    "cancelling is not atomic": (
        *("model.h", "  std::vector<std::unique_ptr<Slot>> slots;\n  "),
        *("std::atomic<bool> is_cancelled", "bool is_cancelled", "thread", "data race"),
    ),
    "a shift goes too far": (
        *("convolution.h", "    return stride > 1 ? "),
        *("stride * int(out_size())", "stride << 40", "undefined", "shift exponent"),
    ),
    "a barrier is missing behind a convolution": (
        *("vocoder.h", "    compute(c, x, num_rows, output);\n"),
        *("    barrier();\n", "", "thread", "data race"),
    ),
    "a buffer of the vocoder is too small": (
        *("vocoder_model.h", "scratch.sums.resize("),
        *("kPanelRows * kWidth", "kPanelRows * kWidth / 2", "address", "heap-buffer-overflow"),
    ),
    "a null bias is read": (
        *("model.h", "    layer.k_norm.assign(v[3], v[3] + source.head_dim);\n  }\n  if ("),
        *("v[4]", "true", "undefined", "null pointer"),
    ),
}


@pytest.fixture(scope="module")
def program(build_cache: Path, tmp_path_factory):
    """program(flags, compiler, fault) compiles the driver, and keeps it until a source changes."""

    def compile_it(flags, compiler=None, fault=None) -> Path:
        sources = compiling.source_folder() / "cpu"
        driver = Path(__file__).with_name("driver.cpp")
        if fault:
            name, before, planted, instead, *_ = FAULTS[fault]
            copy = tmp_path_factory.mktemp("planted") / "cpu"
            shutil.copytree(sources, copy)
            text = (copy / name).read_text()
            assert text.count(before + planted) == 1
            (copy / name).write_text(text.replace(before + planted, before + instead))
            sources = copy
        command = [*shlex.split(compiler or compiling.find_cxx()), "-std=c++17", "-pthread", "-w"]
        command += ["-ffp-contract=off", *flags]
        objects = []
        for unit in (driver, sources / "cpu_decoder.cpp", sources / "cpu_vocoder.cpp"):
            options = [f"-I{sources}", unit]
            text = subprocess.run([*command, "-E", "-P", *options], check=True, capture_output=True)
            # A fault is in one or two of the units; the others are compiled once.
            objects.append(made(command, text.stdout, "-c", *options))
        return made(command, b"".join(map(os.fsencode, objects)), *objects)

    def made(command, content: bytes, *arguments) -> Path:
        """Return the output of a command, which runs unless it has run for the same content."""
        digest = hashlib.sha256(" ".join(command).encode() + content).hexdigest()
        output = build_cache / f"driver-{digest[:16]}"
        if not output.exists():
            build_cache.mkdir(parents=True, exist_ok=True)
            new = output.with_suffix(f".{os.getpid()}.o")
            subprocess.run([*command, *arguments, "-o", new], check=True)
            new.rename(output)
        return output

    return compile_it


def run(program: Path, *arguments, emulator=()):
    environment = os.environ | {
        "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    command = [*emulator, program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def expected(program) -> str:
    """The output of this CPU's best instruction set, whose library the Python tests check."""
    name = cpu_library.supported_sets()[0]
    done = run(program(["-O2", *cpu_library.INSTRUCTION_SETS[name]]), "1")
    assert (done.returncode, done.stderr) == (0, f"{name}\n")
    assert done.stdout.count("logits") > 100 and done.stdout.count("samples") == 16
    rounded, half = done.stdout.partition("vocoder")[0].removeprefix("rounded").split("float16")
    assert half == rounded  # to the last bit
    return done.stdout


@pytest.mark.parametrize("name", cpu_library.sets_of_machine())
def test_every_instruction_set_computes_the_same(program, expected, name):
    if name not in cpu_library.supported_sets():
        pytest.skip(f"this CPU has no {name}")
    for num_threads in ("1", "3"):
        made = program(["-O2", *cpu_library.INSTRUCTION_SETS[name]])
        done = run(made, num_threads, "fork")
        assert (done.returncode, done.stderr.split()[0]) == (0, name), done.stdout[-500:]
        if name != "plain":
            assert done.stdout == expected
            continue
        # Plain C++ rounds products before it adds them.
        for line, want in zip(done.stdout.splitlines(), expected.splitlines(), strict=True):
            if want == "rounded":
                limit = AUDIO_F32
            if want[:6] in ("float3", "bf16 0", "bf16 1", "int8 r", "int8 g", "int6 g", "int4 g"):
                limit = LOGITS_INT8_RMS if want.startswith("int") else LOGITS_F32
            if want.startswith(("logits ", "samples ")):
                both = [np.array(each.split()[1:], dtype=float) for each in (line, want)]
                assert np.sqrt(np.mean((both[0] - both[1]) ** 2)) < limit
            else:
                assert line == want


def test_neon_computes_the_same_under_an_emulator(program, expected):
    missing = [name for name in (ARM, QEMU) if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}")
    done = run(program(["-O2", "-static"], ARM), "2", emulator=[QEMU])
    assert (done.returncode, done.stderr) == (0, "neon\n")
    assert done.stdout == expected


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(program, fault):
    *_, sanitizer, words = FAULTS[fault]
    made = program(["-O1", "-g", *AVX2, *SANITIZERS[sanitizer]], fault=fault)
    for _ in range(8):  # a mutex orders threads that sleep, which may hide the fault
        done = run(made, "3")
        if done.returncode:
            break
    assert done.returncode and re.search(words, done.stderr), done.stderr[-800:]


def test_every_allocation_may_fail_and_leaks_nothing(program):
    made = program(["-O1", "-g", *AVX2, *SANITIZERS["address"]])
    done = run(made, "3", "starve")
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-2000:]
    assert done.stdout.count(" allocations") == 17


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_no_sanitizer_finds_anything_in_the_sources(program, expected, sanitizer):
    made = program(["-O1", "-g", *AVX2, *SANITIZERS[sanitizer]])
    done = run(made, "3", *(["fork"] if sanitizer != "thread" else []))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == expected
