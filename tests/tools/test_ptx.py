"""The kernel as nvcc compiles it for a GPU, instruction by instruction on this CPU.

tools/kernel_study/ptx runs it. The tests begin with the instructions themselves, then plant faults
in the kernel for the machine's checks, then run frames. `pytest -m slow -k ptx` runs every other
test of the kernel on it as well.
"""

import ctypes
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import kernel_models as k
import numpy as np
import pytest
import torch
from nvcc import needs_nvcc
from tolerances import KERNEL_LOGITS_F32, KERNEL_ONE_TERM, PTX_LOGITS_BF16
from torch import Tensor

from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.choices import INT8_STACKS
from qwen_megakernel.decoders.kernel import build as kernel_build
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.errors import GenerationError
from qwen_megakernel.speech_options import Sampling
from tools.kernel_study.ptx.build import assemble, build, instead_of_emulation
from tools.kernel_study.ptx.translate import translate

CPU = torch.device("cpu")
HERE = Path(__file__).parent
SANITIZED = HERE.parent / "decoders" / "kernel" / "sanitized.cu"
slow = pytest.mark.slow
# A library takes a minute to compile, a whole GPU ten.
pytestmark = [pytest.mark.ci, pytest.mark.timeout(3000)]

# ---- instructions, on small kernels written by hand

HEADER = """.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 128 .b8 smem[];
"""
# %rd2 and %rd4: where a thread's 32 bytes of input and of output begin.
KERNEL = """
.visible .entry {name}(
  .param .align 8 .b8 p[16]
)
{{
  .reg .pred %p<4>; .reg .b16 %rs<8>; .reg .f32 %f<16>; .reg .b32 %r<24>; .reg .b64 %rd<16>;
  ld.param.u64 %rd1, [p];
  ld.param.u64 %rd3, [p+8];
  mov.u32 %r20, %tid.x;
  mul.wide.u32 %rd5, %r20, 32;
  add.s64 %rd2, %rd1, %rd5;
  add.s64 %rd4, %rd3, %rd5;
  ld.global.v4.u32 {{%r1, %r2, %r3, %r4}}, [%rd2];
  ld.global.v4.u32 {{%r5, %r6, %r7, %r8}}, [%rd2+16];
  {body}
  ret;
}}
"""
STORE = "st.global.u32 [%rd4], %r9;"
BODIES = {
    "rounding": """
      { cvt.rn.bf16.f32 %rs1, %r1;}
      { cvt.f32.bf16 %r9, %rs1;}
      fma.rm.f32 %r10, %r1, %r2, %r3;
      st.global.v2.u32 [%rd4], {%r9, %r10};""",
    "integers": """
      mul.hi.u32 %r9, %r1, %r2;
      mul.hi.s32 %r10, %r1, %r2;
      shr.s32 %r11, %r1, 35;
      shf.l.wrap.b32 %r12, %r1, %r2, 8;
      st.global.v4.u32 [%rd4], {%r9, %r10, %r11, %r12};
      cvt.s64.s32 %rd6, %r1;
      cvt.u64.u32 %rd7, %r2;
      bfi.b64 %rd8, %rd6, %rd7, 32, 32;
      st.global.u64 [%rd4+16], %rd8;""",
    "bytes": """
      prmt.b32 %r9, %r1, %r2, 0x5410;
      prmt.b32 %r10, %r1, %r2, 0x7632;
      prmt.b32 %r11, %r1, %r2, 0xb8c3;
      cvt.u16.u32 %rs1, %r2;
      cvt.s16.s8 %rs2, %rs1;
      cvt.s32.s16 %r12, %rs2;
      st.global.v4.u32 [%rd4], {%r9, %r10, %r11, %r12};""",
    "butterfly": "shfl.sync.bfly.b32 %r9|%p1, %r1, 5, 31, -1;" + STORE,
    "greatest": "redux.sync.max.u32 %r9, %r1, -1;" + STORE,
    "up": "shfl.sync.up.b32 %r9|%p1, %r1, 3, 0, -1; selp.b32 %r9, %r9, -1, %p1;" + STORE,
    "of_lane": "shfl.sync.idx.b32 %r9|%p1, %r1, 21, 31, -1;" + STORE,
    # within each half of the warp, and there not beyond its tenth lane
    "of_lane_in_half": "and.b32 %r10, %r20, 15; shfl.sync.idx.b32 %r9|%p1, %r1, %r10, 0x1009, -1; "
    "selp.b32 %r9, %r9, -1, %p1;" + STORE,
    "product": """
      ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd4];
      mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
        {%f5, %f6, %f7, %f8}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f1, %f2, %f3, %f4};
      st.global.v4.f32 [%rd4], {%f5, %f6, %f7, %f8};""",
    "misaligned": "ld.global.v2.u32 {%r9, %r10}, [%rd2+4];" + STORE,
    "shared_end": "ld.shared.v2.u32 {%r9, %r10}, [smem+1024];" + STORE,
    "read_only": "ld.global.nc.u32 %r9, [%rd4];" + STORE,
    "apart": """
      setp.lt.u32 %p1, %r20, 16;
      @%p1 bra $L_lower;
      shfl.sync.bfly.b32 %r9|%p2, %r1, 1, 31, -1;
      bra.uni $L_end;
    $L_lower:
      shfl.sync.bfly.b32 %r9|%p2, %r1, 1, 31, -1;
    $L_end: """
    + STORE,
    "not_waited_for": """
      shl.b32 %r10, %r20, 4;
      cp.async.cg.shared.global.L2::256B [%r10], [%rd2], 16;
      cp.async.commit_group;
      ld.shared.u32 %r9, [%r10];
      cp.async.wait_group 0;"""
    + STORE,
}


@pytest.fixture(scope="module")
def library(build_cache: Path) -> ctypes.CDLL:
    ptx = HEADER + "".join(KERNEL.format(name=name, body=body) for name, body in BODIES.items())
    host = HERE / "instructions.cpp"
    library = ctypes.CDLL(str(assemble(ptx, lambda: {"instructions": ptx}, [host])))
    library.emulation_error_message.restype = ctypes.c_char_p
    return library


def execute(library: ctypes.CDLL, name: str, given: Tensor, out: Tensor | None = None) -> Tensor:
    """Return a warp's results for [32, 8] numbers; RuntimeError has the machine's message."""
    out = torch.zeros_like(given) if out is None else out.clone()
    kernel = ctypes.cast(getattr(library, name), ctypes.c_void_p)
    addresses = [ctypes.c_void_p(each.data_ptr()) for each in (given, out)]
    if library.run(kernel, *addresses, 32):
        raise RuntimeError(library.emulation_error_message().decode())
    return out


def test_rounding_is_to_nearest_for_bf16_and_downwards_where_asked(library):
    generator = torch.Generator().manual_seed(0)
    given = torch.randn(32, 8, generator=generator)
    given[0, 0] = torch.tensor(0x3F808000).to(torch.int32).view(torch.float32)  # a tie, to even
    given[1, 0] = torch.tensor(0x3F818000).to(torch.int32).view(torch.float32)
    given[2, :3] = torch.tensor([1.0, 1.0, -(2.0**-60)])  # lost in double
    out = execute(library, "rounding", given)
    assert torch.equal(out[:, 0], given[:, 0].bfloat16().float())
    for (a, b, c), value in zip(given[:, :3].tolist(), out[:, 1].tolist(), strict=True):
        exact = np.longdouble(a) * np.longdouble(b) + np.longdouble(c)
        assert value <= exact < np.nextafter(np.float32(value), np.float32(np.inf)), (a, b, c)


def test_integers_are_cut_and_shifted_as_a_gpu_does(library):
    values = [(0x80000001, 0xFFFFFFFE), (0x12345678, 0x9ABCDEF0)]
    given = torch.tensor(values, dtype=torch.int64).to(torch.int32).repeat(16, 4)
    out = execute(library, "integers", given).to(torch.int64) & 0xFFFFFFFF
    for row, (a, b) in zip(out[:2].tolist(), values, strict=True):
        signed = [each - (each >> 31 << 32) for each in (a, b)]
        assert row[0] == a * b >> 32
        assert row[1] == (signed[0] * signed[1] >> 32) & 0xFFFFFFFF
        assert row[2] == (0xFFFFFFFF if a >> 31 else 0)
        assert row[3] == (b << 8 | a >> 24) & 0xFFFFFFFF
        assert row[4:6] == [b, a]


def test_bytes_are_picked_by_number_or_give_their_sign(library):
    values = torch.tensor([0x80FF7F01, 0x12345688], dtype=torch.int64).to(torch.int32)
    out = execute(library, "bytes", values.repeat(32, 4)).to(torch.int64) & 0xFFFFFFFF
    assert out[0, :4].tolist() == [0x56887F01, 0x123480FF, 0xFF00FF80, 0xFFFFFF88]


def test_lanes_exchange_what_they_hold(library):
    given = torch.arange(32, dtype=torch.int32).repeat_interleave(8).reshape(32, 8) * 10
    lanes = torch.arange(32)
    assert torch.equal(execute(library, "butterfly", given)[:, 0], given[lanes ^ 5, 0])
    negative = given - 100  # as unsigned, greater than all others
    assert (execute(library, "greatest", negative)[:, 0] == -10).all()
    shifted = torch.where(lanes < 3, -1, given[lanes - 3, 0])
    assert torch.equal(execute(library, "up", given)[:, 0], shifted.to(torch.int32))
    assert torch.equal(execute(library, "of_lane", given)[:, 0], given[21, 0].expand(32))
    own = torch.where(lanes % 16 < 10, given[:, 0], -1)
    assert torch.equal(execute(library, "of_lane_in_half", given)[:, 0], own.to(torch.int32))


def test_the_tensor_core_product_has_the_documented_layout(library):
    """The PTX ISA lists the registers: row and column of each, by its formulas."""
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(16, 16, generator=generator).bfloat16()
    b = torch.randn(16, 8, generator=generator).bfloat16()
    c = torch.randn(16, 8, generator=generator)
    given, before = torch.zeros(32, 16, dtype=torch.bfloat16), torch.zeros(32, 8)
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range(8):
            row = group if i < 2 or 4 <= i < 6 else group + 8
            given[lane, i] = a[row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)]
        for i in range(4):
            given[lane, 8 + i] = b[thread * 2 + (i & 1) + (8 if i >= 2 else 0), group]
            before[lane, i] = c[group + (8 if i >= 2 else 0), thread * 2 + (i & 1)]
    out = execute(library, "product", given.view(torch.float32), before)
    expected = c.double() + a.double() @ b.double()
    for lane in range(32):
        for i in range(4):
            row, column = (lane >> 2) + (8 if i >= 2 else 0), lane % 4 * 2 + (i & 1)
            assert out[lane, i].item() == pytest.approx(
                expected[row, column].item(), abs=KERNEL_ONE_TERM
            )


@pytest.mark.parametrize(
    ("name", "message"),
    {
        "misaligned": "access of 8 bytes at .* is misaligned",
        "shared_end": "access of 8 bytes at 1024 of 1024 bytes of shared memory",
        "read_only": "is written and read by ld.global.nc in one launch",
        "apart": "lanes of one warp meet at ptx:",
    }.items(),
)
def test_what_a_gpu_traps_on_or_gets_wrong_is_an_error(library, name, message):
    with pytest.raises(RuntimeError, match=message):
        execute(library, name, torch.ones(32, 8))


def test_a_copy_that_no_thread_waits_for_has_not_arrived(library, monkeypatch):
    monkeypatch.setenv("EMULATION_LAZY_COPIES", "1")
    assert not (execute(library, "not_waited_for", torch.ones(32, 8))[:, 0] == 1).any()


def test_an_unknown_instruction_or_kernel_is_refused():
    body = "tanh.approx.f32 %f1, %f2;"
    ptx = HEADER + KERNEL.format(name="unknown", body=body)
    with pytest.raises(RuntimeError, match="tanh_approx"):
        assemble(ptx, lambda: {"unknown": ptx}, [HERE / "instructions.cpp"])
    with pytest.raises(ValueError, match="Line 19: operand 'table'"):
        translate(HEADER + KERNEL.format(name="unknown", body="mov.u32 %r1, table;"))
    with pytest.raises(ValueError, match="one parameter of bytes"):
        translate(HEADER + ".visible .entry two(.param .u32 a, .param .u32 b) { ret; }")


# ---- the kernel


def decoder_from_ptx(checkpoint, dtype, arch, change=None, **options) -> KernelDecoder:
    """A decoder whose library consists of what nvcc compiles for `arch`."""
    options = {"num_slots": 4, "max_positions": 160} | options
    with instead_of_emulation(arch, change=change):
        return KernelDecoder(checkpoint, DecoderSizes(device=CPU, dtype=dtype, **options))


def frames(decoder, sampling: Sampling):
    """Return codes and logits of three frames of three streams."""
    for slot, seed in ((2, 5), (0, 6), (3, 7)):
        k.start(decoder, slot, sampling, seed=seed, positions=7 + seed)
    taps: dict[str, Tensor] = {}
    result = decoder.step([2, 0, 3], 3, taps=taps)
    assert result.num_frames == (3, 3, 3)
    return result.codes, [taps[name].nan_to_num(neginf=0) for name in ("talker", "predictor")]


CASES = [
    pytest.param("sm_90a", torch.bfloat16, None, "small", id="sm_90a-bf16", marks=pytest.mark.ci),
    pytest.param("sm_90a", torch.float32, None, "small", id="sm_90a-f32", marks=slow),
    *(
        pytest.param(arch, torch.bfloat16, "int8", "projected", id=f"{arch}-int8", marks=slow)
        for arch in kernel_build.ARCHITECTURES
    ),
    pytest.param("sm_90a", torch.bfloat16, "int8-talker", "wide", id="wide", marks=slow),
    pytest.param("sm_120", torch.bfloat16, None, "wide", id="sm_120-wide", marks=slow),
]


@needs_nvcc
@pytest.mark.parametrize(("arch", "dtype", "weights", "shape"), CASES)
def test_frames_are_those_of_the_sources(arch, dtype, weights, shape):
    checkpoint = k.checkpoint(shape, weights)
    emulation = KernelDecoder(checkpoint, DecoderSizes(4, 160, device=CPU, dtype=dtype))
    ptx = decoder_from_ptx(checkpoint, dtype, arch)
    small = arch in ("sm_86", "sm_89", "sm_120")  # with 99 KB of shared memory in a block
    assert ptx.library.description.num_threads == kernel_build.GPU_THREADS // (2 if small else 1)
    for sampling in (Sampling.greedy(), Sampling()):
        (codes, logits), (expected, others) = frames(ptx, sampling), frames(emulation, sampling)
        np.testing.assert_array_equal(codes, expected)
        limit = KERNEL_LOGITS_F32 if dtype == torch.float32 else PTX_LOGITS_BF16
        for ours, theirs in zip(logits, others, strict=True):
            assert (ours - theirs).abs().max() < limit


FAULTS = {
    "an address four bytes on": (r"(ld\.shared\.v4\.u32 [^;]*\[%r\d+)\]", r"\1+4]", "misaligned"),
    "past shared memory": (r"(st\.shared\.u32 +\t*\[%r\d+)\+\d+", r"\1+232448", "shared memory"),
    "activations by the read-only path": (
        "ld.global.cg.v4.f32",
        "ld.global.nc.v4.f32",
        "nc in one",
    ),
    "registers of a product exchanged": (
        r"(mma\.sync[^{]*\{[^}]*\}, )\{(%r\d+), *(%r\d+), *(%r\d+), *(%r\d+)\}",
        r"\1{\2, \4, \3, \5}",
        None,
    ),
}


@slow
@needs_nvcc
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault):
    pattern, replacement, message = FAULTS[fault]
    checkpoint = k.checkpoint()
    right = decoder_from_ptx(checkpoint, torch.bfloat16, "sm_90a")
    wrong = decoder_from_ptx(checkpoint, torch.bfloat16, "sm_90a", (pattern, replacement))
    expected = frames(right, Sampling.greedy())[0]
    if message:
        with pytest.raises(GenerationError, match=message):
            frames(wrong, Sampling.greedy())
    else:
        assert not np.array_equal(frames(wrong, Sampling.greedy())[0], expected)


@slow
@needs_nvcc
@pytest.mark.parametrize("name", ["random-0.6b", "random-1.7b"])
def test_a_frame_of_the_released_shapes_on_a_whole_gpu(monkeypatch, name):
    """Every block and thread of an H200: 132 of 512, one talker layer, all of the predictor; after
    a prompt for six teams of blocks, of two chunks.
    """
    monkeypatch.setenv("EMULATION_SMS", "132")
    config = parse_model_config(model_config(name))
    stack = replace(config.talker.stack, num_layers=1)
    talker = replace(config.talker, stack=stack, text_vocab_size=64)
    checkpoint = k.random_checkpoint(replace(config, talker=talker))
    checkpoint.talker = {name: w.bfloat16() for name, w in checkpoint.talker.items()}
    sizes = {"num_slots": 1, "max_positions": 96}
    ptx = decoder_from_ptx(checkpoint, torch.bfloat16, "sm_90a", **sizes)
    ptx.launcher.timeout_seconds = 3600  # seconds for one barrier: 67,584 threads share a core
    reference = PlainDecoder(checkpoint, DecoderSizes(device=CPU, dtype=torch.float32, **sizes))
    forced = torch.randint(0, 2048, (1, 1, 16), generator=torch.Generator().manual_seed(9))
    for decoder in (ptx, reference):
        k.start(decoder, 0, Sampling.greedy(), seed=5, positions=90)
    ours, theirs = ptx.step([0], 1, forced), reference.step([0], 1, forced)
    np.testing.assert_array_equal(ours.codes, theirs.codes)


@slow
@needs_nvcc
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_was_compiled_has_no_race_and_no_overrun(sanitizer, dtype):
    config = k.sanitized_config(talker_head_dim=128)
    target = kernel_build.Target("sm_90a", dtype, int8=INT8_STACKS["int8-talker"])
    source, flags = SANITIZED, [f"-fsanitize={sanitizer}"]
    options = k.SANITIZED_ENVIRONMENT | {"EMULATION_SMS": "3"}

    def run(seed: int, change: tuple[str, str] | None = None):
        program = build(config, target, program=source, sanitize=flags, change=change)
        environment = os.environ | options | {"EMULATION_SEED": str(seed)}
        return subprocess.run([program], env=environment, capture_output=True, text=True)

    clean = [run(seed) for seed in range(4)]
    assert {(each.returncode, each.stderr) for each in clean} == {(0, "")}
    assert len({each.stdout for each in clean}) == 1
    if sanitizer == "thread":  # a planted fault must be reported
        relaxed = ("ld.acquire.gpu", "ld.relaxed.gpu")
        assert any("data race" in run(seed, relaxed).stderr for seed in range(4))
