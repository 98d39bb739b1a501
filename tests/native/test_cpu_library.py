"""Native code for a CPU: the instruction set that it is compiled for, and its loading."""

import pytest
import torch
from commands import run

from qwen_megakernel.decoders.backends import choose_backend, load_decoder
from qwen_megakernel.errors import BuildError, GenerationError, OutOfMemory, SetupError
from qwen_megakernel.native import cpu_library
from qwen_megakernel.records import Prefill
from qwen_megakernel.speech_options import Sampling

ZEN_3 = "flags\t\t: fpu fma sse2 avx avx2 f16c vaes"
ZEN_4 = f"{ZEN_3} avx512f avx512dq avx512bw avx512vl avx512_vnni"


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", ZEN_4, ["avx512_vnni", "avx512", "avx2", "plain"]),
        ("x86_64", ZEN_4.replace(" avx512_vnni", ""), ["avx512", "avx2", "plain"]),
        ("x86_64", ZEN_3, ["avx2", "plain"]),
        ("x86_64", "flags\t\t: fpu sse2", ["plain"]),
        ("aarch64", "Features\t: asimd", ["neon", "plain"]),
        ("riscv64", "isa\t: rv64gc", ["plain"]),
    ],
)
def test_the_best_instruction_set_is_the_first(tmp_path, machine, flags, expected):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{flags}\n")
    assert cpu_library.supported_sets(cpuinfo, machine) == expected
    assert cpu_library.supported_sets(tmp_path / "none", "x86_64") == ["plain"]


def test_a_set_that_this_cpu_lacks_is_refused(monkeypatch):
    monkeypatch.setenv(cpu_library.FORCED, "sve2")
    with pytest.raises(SetupError, match="'sve2'; this CPU runs"):
        cpu_library.choose_set()


def test_what_build_made_is_used_where_there_is_no_compiler(monkeypatch, tmp_path):
    name = cpu_library.choose_set()
    path = cpu_library.library_for(name)

    def no_compiler():
        raise BuildError("No C++ compiler")

    monkeypatch.setattr(cpu_library, "find_compiler", no_compiler)
    assert cpu_library.library_for(name) == path
    assert cpu_library.open_library().qwen_cpu_instruction_set().decode() == name
    monkeypatch.setenv("QWEN_MEGAKERNEL_BUILD_CACHE", str(tmp_path))
    with pytest.raises(BuildError, match="No C"):
        cpu_library.library_for(name)


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (cpu_library.OUT_OF_MEMORY, OutOfMemory, r"A step does not fit into memory\.\nFewer\."),
        (cpu_library.NO_THREADS, GenerationError, "A step: the system refuses a thread"),
        (cpu_library.UNFORESEEN, GenerationError, "native code returned status 4"),
        (cpu_library.BAD_CODE, GenerationError, "native code returned status 3"),
    ],
)
def test_a_status_is_reported_as_what_it_is(status, error, words):
    cpu_library.check_status(cpu_library.DONE, "A step", "Fewer.")
    with pytest.raises(error, match=words):
        cpu_library.check_status(status, "A step", "Fewer.")


# The threads only load the library: a thread of PyTorch at the exit could end the process.
LOADING_AT_EXIT = """
import ctypes, threading, time, torch
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.decoders.cpu.decoder import CpuDecoder, _Source
from qwen_megakernel.decoders.cpu.packing import pack
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.native import cpu_library

class Owner:
    pass

collected, left = Owner(), Owner()
for name, owner in (("collected", collected), ("left", left)):
    cpu_library.destroy_with(owner, print, name)
del collected, owner
checkpoint = loading.load(loading.resolve("demo-voice"))
sizes = DecoderSizes(1, 1280, torch.device("cpu"), torch.float32, max_frames=256)
decoder = CpuDecoder(checkpoint, sizes, 1)
(packer, memory), library = pack(checkpoint, decoder.pool), decoder._library
source = _Source(checkpoint, packer.matrices, decoder.embeddings, sizes)
pools = [cpu_library.CpuPool(library, 4) for _ in range(2)]
loaded = []

def load(pool):
    while True:
        handle = ctypes.c_void_p()
        library.qwen_cpu_decoder_create(
            ctypes.c_void_p(pool.handle), ctypes.byref(source.model), ctypes.byref(handle)
        )
        library.qwen_cpu_decoder_destroy(handle)
        loaded.append(1)

for pool in pools:
    threading.Thread(target=load, args=(pool,), daemon=True).start()
while len(loaded) < 4:
    time.sleep(0.01)
"""


def test_a_program_ends_while_its_models_are_being_loaded():
    done = run("-c", LOADING_AT_EXIT)
    assert (done.returncode, done.stdout) == (0, "collected\n"), done.stderr


@pytest.mark.ci
@pytest.mark.parametrize("name", cpu_library.supported_sets())
def test_each_set_of_this_cpu_compiles_and_draws_the_same_codes(monkeypatch, load_checkpoint, name):
    monkeypatch.setenv(cpu_library.FORCED, name)
    checkpoint = load_checkpoint("tiny-random")
    hidden = checkpoint.config.talker.stack.hidden_size
    rows = torch.randn(60, hidden, generator=torch.Generator().manual_seed(0))
    codes = []
    for backend in ("cpu", "torch"):
        decoder, runs = load_decoder(checkpoint, choose_backend(backend, "cpu"), max_frames=50)
        decoder.prefill(0, Prefill(rows, rows[:5], rows[0]), Sampling(), seed=1, part=0)
        codes.append(decoder.step([0], 12).codes.tolist())
        assert backend == "torch" or runs.why.endswith(name)
    assert codes[0] == codes[1]
