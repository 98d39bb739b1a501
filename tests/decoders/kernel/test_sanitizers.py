"""The kernel's own source under ThreadSanitizer, AddressSanitizer and UBSan, on the CPU.

Each sanitizer first has to find bugs that are planted for it, so that its silence proves something.
"""

import hashlib
import os
import shlex
import subprocess
from pathlib import Path

import kernel_models as k
import pytest
from commands import captured

from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.native import compiling
from tools.gpu_check.variants import VARIANTS

pytestmark = pytest.mark.ci

FLAGS = {
    "thread": ["-fsanitize=thread"],
    "address": ["-fsanitize=address"],
    "undefined": ["-fsanitize=undefined", "-fno-sanitize-recover=all"],
}
BUGS = {  # names and numbers of enum Bug in sanitized.cu, and the sanitizers that must report it
    "missing __syncthreads": (1, "thread"),
    "missing grid barrier": (2, "thread"),
    "relaxed arrival": (3, "thread"),
    "relaxed poll": (4, "thread"),
    "missing __syncwarp": (5, "thread"),
    "write past shared memory": (6, "address"),
    "write past a buffer": (7, "address"),
    "index past an array": (8, "undefined"),
}


@pytest.fixture(scope="module")
def program(build_cache: Path):
    """program(sanitizer, **defines): sanitized.cu, compiled with both until a source changes."""

    def compile_it(sanitizer: str, **defines: int) -> Path:
        config = k.sanitized_config()
        # int8 layers beside float32 ones: both kinds of matrix, and the change between them.
        target = build.Target(None, "float32", int8=("talker",), defines=tuple(defines.items()))
        definitions = [f"-D{n}={v}" for n, v in build.definitions(config, target).items()]
        csrc, source = compiling.source_folder(), Path(__file__).with_name("sanitized.cu")
        sources = [source, *sorted(csrc.rglob("*.[ch]*"))]
        common = ["-std=c++17", "-O1", "-g", "-w", "-fno-strict-aliasing", f"-I{csrc}"]
        digest = hashlib.sha256(" ".join([*common, *FLAGS[sanitizer], *definitions]).encode())
        for path in sources:
            digest.update(path.read_bytes())
        folder = build_cache / f"sanitized-{sanitizer}-{digest.hexdigest()[:16]}"
        if not (folder / "sanitized").exists():
            folder.mkdir(parents=True, exist_ok=True)
            cxx, objects = compiling.find_cxx(), []
            # The runtime is not instrumented: it informs the sanitizers itself.
            for unit in sorted((csrc / "emulation").glob("*.cpp")):
                objects.append(str(folder / f"{unit.stem}.o"))
                subprocess.run(
                    [*shlex.split(cxx), *common, "-c", str(unit), "-o", objects[-1]], check=True
                )
            command = [
                *shlex.split(cxx),
                *common,
                *FLAGS[sanitizer],
                *definitions,
                "-x",
                "c++",
                str(source),
            ]
            command += ["-x", "none", *objects, "-lpthread", "-o", str(folder / "sanitized.new")]
            subprocess.run(command, check=True)
            (folder / "sanitized.new").rename(folder / "sanitized")
        return folder / "sanitized"

    return compile_it


def run(program: Path, *arguments: str, seed: int = 0, blocks: int = 3):
    environment = os.environ | k.SANITIZED_ENVIRONMENT
    environment |= {"EMULATION_SEED": str(seed), "EMULATION_SMS": str(blocks)}
    return captured([program, *arguments], env=environment, timeout=280)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(program, bug):
    number, sanitizer = BUGS[bug]
    binary = program(sanitizer)
    clean = run(binary, "0")
    assert (clean.returncode, clean.stderr) == (0, "")
    # Some interleavings hide a race; one seed in a few shows it.
    reports = [run(binary, str(number), seed=seed) for seed in range(4)]
    words = {"thread": "data race", "address": "AddressSanitizer", "undefined": "runtime error"}
    assert any(words[sanitizer] in report.stderr for report in reports)


@pytest.mark.parametrize("sanitizer", FLAGS)
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 8))]
)
def test_frames_are_clean_and_the_same_in_every_order(program, sanitizer, seed):
    result = run(program(sanitizer), seed=seed, blocks=2 + seed % 3)
    assert (result.returncode, result.stderr) == (0, "")
    expected = run(program("undefined"), blocks=1)
    assert result.stdout == expected.stdout != ""


# The emulation has no L2, so hints for it change nothing.
OTHERS = {name: made for name, made in VARIANTS.items() if {*made} - {"WEIGHTS_EVICT_FIRST"}}


@pytest.mark.slow
@pytest.mark.timeout(1800)  # two programs compile, minutes each on a busy machine
@pytest.mark.parametrize("sanitizer", FLAGS)
@pytest.mark.parametrize("variant", OTHERS)
def test_variants_are_clean_and_draw_the_kernels_codes(program, variant, sanitizer):
    defines = OTHERS[variant]
    expected = run(program("undefined"))
    for seed in range(3):
        result = run(program(sanitizer, **defines), seed=seed, blocks=2 + seed % 3)
        assert (result.returncode, result.stderr) == (0, "")
        # Another number of warps adds in another order.
        assert "NUM_THREADS" in defines or result.stdout == expected.stdout != ""
