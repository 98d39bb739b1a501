"""csrc/ into a shared library, once for each model shape, compiler and target.

The same sources build with nvcc for a GPU and with a C++ compiler for the emulation.
"""

import importlib.util
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from qwen_megakernel.checkpoint.config import ModelConfig, StackConfig
from qwen_megakernel.errors import ArchError, BuildError, UnsupportedModel
from qwen_megakernel.installing import install_command
from qwen_megakernel.native.compiling import (
    Recipe,
    compiled,
    find_cxx,
    source_folder,
    sources_below,
)

# Compute capabilities the kernel is compiled for: bf16 tensor cores and cp.async begin at 8.0.
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
MIN_CAPABILITY = (8, 0)

# Shared memory that one block may ask for, by compute capability (CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability": maximum per thread block).
SMEM_KIB = {"80": 163, "86": 99, "87": 163, "89": 99, "90": 227, "100": 227, "103": 227, "120": 99}

GPU_THREADS = 512  # 16 warps, at most 128 registers each
# A thread keeps the queries that share a key, and what they mix: with Qwen2.5's seven that is more
# than 128 registers in a frame's kernel. Half the threads have twice as many.
MAX_QUERIES_PER_KEY = 4
GPU_LOOKAHEAD_TILES = 16  # per warp: more than shared memory allows to 16 warps
EMULATION_THREADS = 64  # two warps: the least that can race, and the fastest
EMULATION_LOOKAHEAD_TILES = 5  # enough for the ring to wrap and to hold three matrices
CHUNK_COLS = 1024  # activations of 16 rows held at once: 66 KiB
# Of a prompt, where a block has so much shared memory: a team's blocks have so many tiles each that
# rows which do not fit are read again and again. That is worth more than look-ahead, for all but
# one team's weights come from L2.
FORWARD_CHUNK_COLS = 2048
FORWARD_CHUNK_SMEM_KIB = 227
ROUND_TILES = 4  # row tiles whose sums wait for the other warps: 512 bytes of each
# Where a block has less than 128 KiB, what half the activations and half the warps leave is worth
# more as look-ahead; memory is slower there, and eight warps keep up with it.
SMALL_SMEM_KIB = 128
EMULATION_ROUND_TILES = 8  # a reduction costs 64 changes of fiber

# A warning is a test's business: with another compiler, a kernel that spills a register is still
# better than none.
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
class Target:
    """What to build besides the model's shape."""

    arch: str | None  # "sm_90a"; None: emulation
    weights: str  # "float32" | "bfloat16", of all that is not int8
    int8: tuple[str, ...] = ()  # "talker", "predictor": whose layers are int8 (decoders/int8.py)
    probes: bool = False  # the stages one by one, for the tests, instead of the kernel
    stage_times: bool = False  # clock stamps of every block and stage (csrc/stage_times.cuh)
    defines: tuple[tuple[str, int], ...] = ()  # -D's of an experiment, beside or instead of ours


def check_config(config: ModelConfig) -> None:
    """Refuse a model whose dimensions the kernel lacks.

    Raises:
        UnsupportedModel: lists every dimension that does not fit.
    """
    faults = []
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
            "Weights are cut into tiles of 8 rows, activations into 32 columns, heads into 16.",
            "Use --backend torch.",
        )


def definitions(config: ModelConfig, target: Target) -> dict[str, int]:
    """Every -D of a build."""

    def stack_definitions(name: str, stack: StackConfig, vocab_size: int) -> dict[str, int]:
        return {
            f"{name}_HIDDEN_SIZE": stack.hidden_size,
            f"{name}_INTERMEDIATE_SIZE": stack.intermediate_size,
            f"{name}_NUM_HEADS": stack.num_heads,
            f"{name}_NUM_KV_HEADS": stack.num_kv_heads,
            f"{name}_HEAD_DIM": stack.head_dim,
            f"{name}_QKV_BIAS": int(stack.qkv_bias),
            f"{name}_QK_NORM": int(stack.qk_norm),
            f"{name}_VOCAB_SIZE": vocab_size,
        }

    values = stack_definitions("TALKER", config.talker.stack, config.talker.vocab_size)
    values |= stack_definitions("PREDICTOR", config.predictor.stack, config.predictor.vocab_size)
    values["NUM_CODE_GROUPS"] = config.talker.num_code_groups
    values["WEIGHTS_F32"] = int(target.weights == "float32")
    values["TALKER_INT8"] = int("talker" in target.int8)
    values["PREDICTOR_INT8"] = int("predictor" in target.int8)
    values["STAGE_TIMES"] = int(target.stage_times)
    # L2 has forgotten a weight before it is read again: the predictor's layers of the released
    # models, 157 MB, are more than any L2 holds. In int8 they are half, which some do hold.
    values["WEIGHTS_EVICT_FIRST"] = int("predictor" not in target.int8)
    if target.arch is None:
        # Emulated shared memory is host memory: no limit worth modelling.
        tuning = (EMULATION_THREADS, CHUNK_COLS, CHUNK_COLS, EMULATION_ROUND_TILES)
        tuning += (EMULATION_LOOKAHEAD_TILES, 1 << 20)
    else:
        number = re.sub(r"\D", "", target.arch)
        kib = SMEM_KIB[number]
        is_small = kib < SMALL_SMEM_KIB
        stacks = config.talker.stack, config.predictor.stack
        queries_per_key = max(stack.num_heads // stack.num_kv_heads for stack in stacks)
        is_halved = is_small or queries_per_key > MAX_QUERIES_PER_KEY
        tuning = (GPU_THREADS // 2 if is_halved else GPU_THREADS,)
        chunk_cols = CHUNK_COLS // 2 if is_small else CHUNK_COLS
        tuning += (chunk_cols, forward_chunk_cols(config, kib, chunk_cols), ROUND_TILES)
        tuning += (GPU_LOOKAHEAD_TILES, kib * 1024)
    names = ("NUM_THREADS", "CHUNK_COLS", "FORWARD_CHUNK_COLS", "ROUND_TILES")
    names += ("LOOKAHEAD_TILES", "SMEM_BYTES")
    return values | dict(zip(names, tuning, strict=True)) | dict(target.defines)


def forward_chunk_cols(config: ModelConfig, smem_kib: int, step_chunk_cols: int) -> int:
    """Columns of activations that a block of forward_kernel holds at once."""
    is_wide = step_chunk_cols < config.talker.stack.hidden_size <= FORWARD_CHUNK_COLS
    fits = smem_kib >= FORWARD_CHUNK_SMEM_KIB
    return FORWARD_CHUNK_COLS if is_wide and fits else step_chunk_cols


def is_known_arch(arch: str) -> bool:
    """Whether `arch` ("sm_90a", "sm_120") names a GPU whose limits are known."""
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    return bool(match) and match[1] in SMEM_KIB


def arch_of(capability: tuple[int, int], device_name: str) -> str:
    """The -arch of a GPU.

    Raises:
        ArchError: older than the kernel can use, or newer than it knows.
    """
    number = f"{capability[0]}{capability[1]}"
    if capability < MIN_CAPABILITY:
        raise ArchError(
            f"{device_name} is sm_{number}; the kernel needs sm_80 or newer (bf16).",
            "Using the torch path in fp32. Expect RTF above 1.",
        )
    if number not in SMEM_KIB:
        raise ArchError(
            f"{device_name} is sm_{number}; the kernel knows {', '.join(ARCHITECTURES)}.",
            "Its shared memory is unknown to this version.",
            "Use --backend torch, or a newer qwen_megakernel.",
        )
    return f"sm_{number}" + ("a" if number == "90" else "")


def build(config: ModelConfig, target: Target) -> Path:
    """The shared library for `config` and `target`; compiled at first use, then found again.

    Raises:
        UnsupportedModel: the kernel lacks the model's dimensions.
        BuildError: a tool is missing, or the compiler failed (its log is named).
    """
    return compiled(recipe(config, target))


def recipe(config: ModelConfig, target: Target) -> Recipe:
    """What `build` compiles; raises as it does."""
    check_config(config)
    folder = source_folder()
    # The longest first: on two cores it is then what the others fit beside.
    names = ("step_kernel.cu", "few_step_kernel.cu", "forward_kernel.cu", "tts_kernel.cu")
    units = [folder / name for name in (("probes.cu",) if target.probes else names)]
    if target.arch is None:
        units += sorted((folder / "emulation").glob("*.cpp"))
    return Recipe(
        name=f"the kernel for {target.arch or 'the CPU emulation'}",
        library="libqwen_tts.so",
        compiler=find_nvcc() if target.arch else find_cxx(),
        flags=tuple(_flags(config, target)),
        units=tuple(units),
        sources=sources(),
        source_root=folder,
        link_flags=() if target.arch else ("-Wl,-Bsymbolic", "-lpthread"),
        cu_language="" if target.arch else "-x c++",
    )


def sources() -> tuple[Path, ...]:
    """What a library of the kernel depends on; csrc/cpu belongs to the CPU's own libraries."""
    return sources_below(source_folder(), without=("cpu",))


def find_nvcc() -> str:
    """nvcc of PATH, of CUDA_HOME, or of NVIDIA's Python packages."""
    candidates = [shutil.which("nvcc")]
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(str(Path(home) / "bin" / "nvcc"))
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations if spec else ():
        candidates += sorted(map(str, Path(place).glob("*/bin/nvcc")), reverse=True)
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    raise BuildError(
        "No nvcc in PATH, CUDA_HOME, or the nvidia packages of this Python.",
        f"{install_command('nvcc')} brings one for CUDA 13; for CUDA 12 install "
        "cuda-nvcc-12-8 from NVIDIA's apt repository, or conda's cuda-nvcc.",
        "Meanwhile: --backend torch.",
    )


def _flags(config: ModelConfig, target: Target) -> list[str]:
    dims = [f"-D{name}={value}" for name, value in definitions(config, target).items()]
    if target.arch:
        return [*NVCC_FLAGS, f"-arch={target.arch}", *dims]
    return [*CXX_FLAGS, *dims]
