"""The build of csrc/ as a shared library, once for each model shape, compiler and target.

nvcc compiles the sources for a GPU, and a C++ compiler compiles the same sources for the emulation.
"""

import importlib.util
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from qwen_megakernel.checkpoint.config import ModelConfig, PredictorConfig, StackConfig
from qwen_megakernel.errors import ArchError, BuildError, UnsupportedModel
from qwen_megakernel.installing import install_command
from qwen_megakernel.native.compiling import (
    Recipe,
    compiled,
    find_cxx,
    source_folder,
    sources_below,
)

# Compute capabilities that the kernel is compiled for: bf16 tensor cores and cp.async need 8.0.
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
MIN_CAPABILITY = (8, 0)

# Shared memory that one block may allocate, by compute capability (CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability": maximum per thread block).
SMEM_KIB = {"80": 163, "86": 99, "87": 163, "89": 99, "90": 227, "100": 227, "103": 227, "120": 99}

GPU_THREADS = 512  # 16 warps, at most 128 registers each
# A thread keeps the queries that share a key, and their results, in registers: with Qwen2.5's seven
# a frame's kernel needs more than 128. Half as many threads have twice as many registers.
MAX_QUERIES_PER_KEY = 4
GPU_LOOKAHEAD_TILES = 16  # per warp; with 16 warps, shared memory allows fewer
EMULATION_THREADS = 64  # two warps: the least that can race, and the fastest
EMULATION_LOOKAHEAD_TILES = 5  # enough for the ring to wrap and to hold three matrices
CHUNK_COLS = 1024  # activations of 16 rows held at once: 66 KiB
# The columns held at once in a prompt, if a block has enough shared memory: each block of a team
# has many tiles, and would read rows that do not fit again for every few of them. This saves more
# time than look-ahead does, because the weights of all teams but one come from L2.
FORWARD_CHUNK_COLS = 2048
FORWARD_CHUNK_SMEM_KIB = 227
ROUND_TILES = 4  # row tiles whose sums wait for the other warps: 512 bytes of each
# If a block has less than 128 KiB, it holds half the activations and has half the warps, and uses
# the memory for look-ahead: such GPUs have slower memory, and eight warps keep up with it.
SMALL_SMEM_KIB = 128
EMULATION_ROUND_TILES = 8  # a reduction costs 64 changes of fiber

# Compiler warnings do not stop a build, but a test reports them: with another compiler, a kernel
# that spills a register is better than none.
NVCC_FLAGS = (
    *("-std=c++17", "-O3", "-cudart", "static", "-lineinfo"),
    *("-Xcompiler", "-fPIC,-Wall", "-Xptxas", "-v,-warn-spills,-warn-lmem-usage"),
)
# nvcc knows "#pragma unroll" and lets vector types alias anything, as CUDA code expects.
CXX_FLAGS = (
    *("-std=c++17", "-O2", "-g1", "-fPIC", "-ffp-contract=off"),
    *("-fno-strict-aliasing", "-Wno-unknown-pragmas", "-Wall", "-Wextra"),
)


@dataclass(frozen=True, slots=True)
class TextStack:
    """A text model's layers in the place of the talker's; its other sizes are the smallest."""

    stack: StackConfig
    vocab_size: int = 1056  # 1024 control ids and one row of tiles
    num_code_groups: int = 2


@dataclass(frozen=True, slots=True)
class TextSizes:
    """The dimensions that the kernel is compiled for to run a text model."""

    talker: TextStack
    predictor: PredictorConfig  # never runs


KernelSizes = ModelConfig | TextSizes


@dataclass(frozen=True, slots=True)
class Target:
    """The options of a build, apart from the model's dimensions."""

    arch: str | None  # "sm_90a"; None: emulation
    weights: str  # "float32" | "bfloat16": the type of all weights that are not int8
    int8: tuple[str, ...] = ()  # "talker", "predictor": stacks with int8 layers
    probes: bool = False  # the stages one by one, for the tests, instead of the kernel
    stage_times: bool = False  # clock stamps of every block and stage (csrc/stage_times.cuh)
    defines: tuple[tuple[str, int], ...] = ()  # -D's of an experiment, which override ours


def check_config(config: KernelSizes) -> None:
    """Raise UnsupportedModel, with all faults, if a model's dimensions do not fit the kernel."""
    faults: list[str] = []
    for name, stack in (("talker", config.talker.stack), ("predictor", config.predictor.stack)):
        needs = (
            ("hidden_size", stack.hidden_size, 32),
            ("intermediate_size", stack.intermediate_size, 32),
            ("num_heads * head_dim", stack.q_size, 32),
            ("head_dim", stack.head_dim, 16),
            ("num_heads", stack.num_heads, stack.num_kv_heads),
        )
        faults += [f"{name} {k} {v} (multiple of {n})" for k, v, n in needs if v % n]
        if stack.head_dim > 256:
            faults.append(f"{name} head_dim {stack.head_dim} (at most 256)")
    if config.talker.vocab_size % 32:
        faults.append(f"talker vocab_size {config.talker.vocab_size} (multiple of 32)")
    if config.predictor.vocab_size % 8:
        faults.append(f"predictor vocab_size {config.predictor.vocab_size} (multiple of 8)")
    if faults:
        raise UnsupportedModel(
            f"The kernel cannot run this model: {', '.join(faults)}.",
            "It cuts weights into tiles of 8 rows, activations into 32 columns, heads into 16.",
            "Use --backend torch.",
        )


def definitions(config: KernelSizes, target: Target) -> dict[str, int]:
    """Return the names and values of all -D's of a build."""

    values: dict[str, int] = {}
    for name, part in (("TALKER", config.talker), ("PREDICTOR", config.predictor)):
        stack = part.stack
        values |= {
            f"{name}_HIDDEN_SIZE": stack.hidden_size,
            f"{name}_INTERMEDIATE_SIZE": stack.intermediate_size,
            f"{name}_NUM_HEADS": stack.num_heads,
            f"{name}_NUM_KV_HEADS": stack.num_kv_heads,
            f"{name}_HEAD_DIM": stack.head_dim,
            f"{name}_QKV_BIAS": int(stack.qkv_bias),
            f"{name}_QK_NORM": int(stack.qk_norm),
            f"{name}_VOCAB_SIZE": part.vocab_size,
        }
    values["NUM_CODE_GROUPS"] = config.talker.num_code_groups
    values["WEIGHTS_F32"] = int(target.weights == "float32")
    values["TALKER_INT8"] = int("talker" in target.int8)
    values["PREDICTOR_INT8"] = int("predictor" in target.int8)
    values["STAGE_TIMES"] = int(target.stage_times)
    # L2 evicts a weight before it is read again: the predictor's layers of the released models have
    # 157 MB, more than any L2. In int8 they have half of that, which fits into some.
    values["WEIGHTS_EVICT_FIRST"] = int("predictor" not in target.int8)
    # Switches for choices that measurements on a GPU will decide (tools/gpu_check/variants.py).
    values |= {"SHORT_ATTENTION": 1, "FIRST_WARP_WAITS": 0}
    if target.arch is None:
        tuning = {
            "NUM_THREADS": EMULATION_THREADS,
            "CHUNK_COLS": CHUNK_COLS,
            "FORWARD_CHUNK_COLS": CHUNK_COLS,
            "ROUND_TILES": EMULATION_ROUND_TILES,
            "LOOKAHEAD_TILES": EMULATION_LOOKAHEAD_TILES,
            "SMEM_BYTES": 1 << 20,  # host memory, which has no such limit
        }
    else:
        number = re.sub(r"\D", "", target.arch)
        kib = SMEM_KIB[number]
        is_small = kib < SMALL_SMEM_KIB
        stacks = config.talker.stack, config.predictor.stack
        queries_per_key = max(stack.num_heads // stack.num_kv_heads for stack in stacks)
        is_halved = is_small or queries_per_key > MAX_QUERIES_PER_KEY
        chunk_cols = CHUNK_COLS // 2 if is_small else CHUNK_COLS
        is_wide = chunk_cols < config.talker.stack.hidden_size <= FORWARD_CHUNK_COLS
        fits = kib >= FORWARD_CHUNK_SMEM_KIB
        tuning = {
            "NUM_THREADS": GPU_THREADS // 2 if is_halved else GPU_THREADS,
            "CHUNK_COLS": chunk_cols,
            "FORWARD_CHUNK_COLS": FORWARD_CHUNK_COLS if is_wide and fits else chunk_cols,
            "ROUND_TILES": ROUND_TILES,
            "LOOKAHEAD_TILES": GPU_LOOKAHEAD_TILES,
            "SMEM_BYTES": kib * 1024,
        }
    return values | tuning | dict(target.defines)


def is_known_arch(arch: str) -> bool:
    """Return whether `arch` ("sm_90a", "sm_120") names a GPU whose limits are known."""
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return match is not None and match[1] in SMEM_KIB


def arch_of(capability: tuple[int, int], device_name: str) -> str:
    """Return nvcc's name for the architecture of a GPU.

    Raises:
        ArchError: the GPU is older than the kernel can use, or newer than this version knows.
    """
    number = f"{capability[0]}{capability[1]}"
    if capability < MIN_CAPABILITY:
        raise ArchError(
            f"{device_name} is sm_{number}; the kernel needs sm_80 or newer (bf16).",
            "PyTorch decodes in float32 instead. Expect an RTF above 1.",
        )
    if number not in SMEM_KIB:
        raise ArchError(
            f"{device_name} is sm_{number}; the kernel knows {', '.join(ARCHITECTURES)}.",
            "This version does not know the size of its shared memory.",
            "Use --backend torch, or a newer qwen_megakernel.",
        )
    return f"sm_{number}" + ("a" if number == "90" else "")


def build(config: KernelSizes, target: Target) -> Path:
    """Return the shared library for a model and a target, which is compiled at first use.

    Raises:
        UnsupportedModel: the kernel cannot be compiled for the model's dimensions.
        BuildError: a tool is missing, or the compiler failed (the message names its log).
    """
    return compiled(recipe(config, target))


def recipe(config: KernelSizes, target: Target) -> Recipe:
    """Return the recipe that `build` compiles."""
    check_config(config)
    folder = source_folder()
    # The slowest file comes first, so that on two cores the others compile beside it.
    names = ("step_kernel.cu", "few_step_kernel.cu", "forward_kernel.cu", "tts_kernel.cu")
    units = [folder / name for name in (("probes.cu",) if target.probes else names)]
    flags = [f"-D{name}={value}" for name, value in definitions(config, target).items()]
    if target.arch:
        # The library has machine code alone: PTX would be two thirds of a packed library, and no
        # other GPU loads this library.
        ptx_arch, nvcc = target.arch.replace("sm_", "compute_"), find_nvcc()
        flags = [*NVCC_FLAGS, f"-gencode=arch={ptx_arch},code={target.arch}", *flags]
        compiler, link_flags = shlex.quote(nvcc), _cuda_runtime(nvcc)
    else:
        units += sorted((folder / "emulation").glob("*.cpp"))
        flags = [*CXX_FLAGS, *flags]
        compiler, link_flags = find_cxx(), ("-Wl,-Bsymbolic", "-lpthread")
    return Recipe(
        name=f"the kernel for {target.arch or 'the CPU emulation'}",
        library="libqwen_tts.so",
        compiler=compiler,
        flags=tuple(flags),
        units=tuple(units),
        sources=sources(),
        source_root=folder,
        link_flags=link_flags,
        cu_language="" if target.arch else "-x c++",
    )


def _cuda_runtime(nvcc: str) -> tuple[str, ...]:
    """Return the linker's flags for CUDA's runtime, which nvcc itself looks for in lib64.

    NVIDIA's Python packages have it in lib.
    """
    folder = Path(nvcc).parent.parent / "lib"
    if not (folder / "libcudart_static.a").exists():
        return ()
    return ("-L" + shlex.quote(str(folder)).replace("$", "$$"),)


def sources() -> tuple[Path, ...]:
    """Return the sources that a library of the kernel depends on: csrc/ without csrc/cpu."""
    return sources_below(source_folder(), without=("cpu",))


def find_nvcc() -> str:
    """Return the path of nvcc from PATH, from CUDA_HOME, or from NVIDIA's Python packages."""
    candidates = [shutil.which("nvcc")]
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(str(Path(home) / "bin" / "nvcc"))
    spec = importlib.util.find_spec("nvidia")
    for place in (spec and spec.submodule_search_locations) or ():
        candidates += sorted(map(str, Path(place).glob("*/bin/nvcc")), reverse=True)
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise BuildError(
        "No nvcc in PATH, CUDA_HOME, or the nvidia packages of this Python.",
        f"{install_command('nvcc')} installs one for CUDA 13; for CUDA 12 install "
        "cuda-nvcc-12-8 from NVIDIA's apt repository, or conda's cuda-nvcc.",
        "Until then use --backend torch.",
    )
