"""The number of threads that compute: the rule, its limits, other threads, and how threads wait."""

import math
import threading

import numpy as np
import pytest
import torch
from commands import AS_PROGRAM, run
from programs import ROOT, imports, programs

from qwen_megakernel import TTSEngine
from qwen_megakernel.cli import running
from qwen_megakernel.errors import UsageError
from qwen_megakernel.native import cpu_threads

# Stops a program where it imports torch, and shows whether threads will wait passively.
PASSIVE, BUSY, NEVER = 10, 11, 12
AT_TORCH = f"""
import os, sys
class Watch:
    def find_spec(name, path=None, target=None):
        if name == "torch":
            os._exit({PASSIVE} if os.environ.get("OMP_WAIT_POLICY") == "PASSIVE" else {BUSY})
sys.meta_path.insert(0, Watch)
{AS_PROGRAM}
os._exit({NEVER})
"""
MODEL = ("--model", "demo-voice")


@pytest.fixture
def many_cores(monkeypatch):
    """PyTorch computes with four threads here, and the machine has eight cores."""
    monkeypatch.setattr(cpu_threads, "available_cores", lambda: 8)
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("num_bytes", "threads"),
    [(0, 1), (20e6, 1), (2**28, 1), (2**28 + 1, 2), (3.3e9, 4)],
    ids=["nothing", "demo-voice", "as much as one reads", "a little more", "0.6B"],
)
def test_threads_follow_the_bytes_of_a_frame(many_cores, num_bytes, threads):
    assert cpu_threads.choose(num_bytes) == threads


def test_the_cores_limit_the_rule_and_the_caller_is_warned_above_them(many_cores, caplog):
    cpu_threads.available_cores = lambda: 3
    assert cpu_threads.choose(3.3e9) == 3
    assert cpu_threads.choose(3.3e9, asked=2) == 2 and not caplog.messages
    assert cpu_threads.choose(20e6, asked=5) == 5 and "5 threads share 3 cores" in caplog.text
    with pytest.raises(UsageError, match=r"num_threads is 0; it must be 1 or more\."):
        cpu_threads.choose(3.3e9, asked=0)
    assert type(cpu_threads.choose(20e6, asked=np.int64(2))) is int


@pytest.mark.parametrize("asked", ["2", 1.5, math.nan, True])
@pytest.mark.parametrize("choose", [cpu_threads.choose, cpu_threads.choose_native])
def test_a_number_of_threads_that_is_none_is_refused(choose, asked):
    with pytest.raises(UsageError, match=rf"num_threads is {asked!r}; it must be a whole number\."):
        choose(1, asked)


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/", {}, 8),
        ("0::/", {"cpu.max": "max 100000\n"}, 8),
        ("0::/", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/a/b", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
        ("0::/seen/from/outside", {"cpu.max": "400000 100000\n"}, 4),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "200000"}, 2),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "-1"}, 8),
        ("4:memory:/a", {"cpu.max": "100000 100000"}, 8),
    ],
)
def test_a_containers_quota_limits_the_cores(tmp_path, monkeypatch, group, files, cores):
    monkeypatch.setattr(cpu_threads.os, "sched_getaffinity", lambda process: range(8))
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name in [name for name in files if name.endswith("quota_us")]:
        files[name.replace("quota", "period")] = "100000"
    for name, text in ({"proc/self/cgroup": f"{group}\n"} | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_threads.available_cores(tmp_path) == cores


@pytest.mark.parametrize(
    ("weights", "cores", "asked", "threads"),
    [(5e6, 8, None, 1), (17e6, 8, None, 2), (1.6e9, 8, None, 8), (1.6e9, 1, None, 1), (1, 8, 3, 3)],
)
def test_native_code_takes_the_cores_that_help(monkeypatch, weights, cores, asked, threads):
    monkeypatch.setattr(cpu_threads, "available_cores", lambda: cores)
    assert cpu_threads.choose_native(int(weights), asked) == threads


def test_too_many_threads_are_refused_below_one_and_warned_of_once(caplog):
    with pytest.raises(UsageError, match=r"num_threads is 0; it must be 1 or more\."):
        cpu_threads.choose_native(1, asked=0)
    with TTSEngine.from_pretrained(
        "tiny-random", backend="cpu", num_threads=99, max_frames=64, warmup=False
    ) as tts:
        assert (tts.num_threads, tts._loop.stages.decoder.num_threads) == (99, 99)
    assert len([each for each in caplog.messages if "99 threads share" in each]) == 1


@pytest.mark.parametrize("test", ["first", "second"])
def test_every_test_begins_with_one_thread(test):
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)


@pytest.mark.parametrize(("granted", "says"), [(0.5, True), (1.9, True), (2.0, False)])
def test_a_quota_below_two_cores_is_warned_of_at_start(monkeypatch, caplog, granted, says):
    monkeypatch.setattr(cpu_threads, "quota", lambda root=None: granted)
    with TTSEngine.from_pretrained("tiny-random", backend="cpu", max_frames=64, warmup=False):
        pass
    assert says == (f"This container may use {granted} cores; " in caplog.text)


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_the_line_that_names_the_backend_says_how_many_threads_and_cores(
    many_cores, run_here, monkeypatch, backend
):
    speak = ("-m", "qwen_megakernel", "speak", "Hello.", *MODEL, "--max-frames", 2, "--stdout")
    monkeypatch.setattr(running, "write_output", lambda data: None)
    for words, threads in (((), 1), (("--threads", 3), 3)):
        done = run_here(*speak, "--backend", backend, *words)
        assert done.returncode == 0, done.stderr
        assert f"backend {backend} (" in done.stderr
        assert f"threads: {threads} (cores: 8)" in done.stderr
    assert "1 for demo-voice)" in " ".join(
        run_here("-m", "qwen_megakernel", "speak", "--help").stdout.split()
    )


@pytest.mark.parametrize(("asked", "threads"), [(None, 1), (3, 3)])
def test_an_engine_limits_its_own_thread_alone(many_cores, asked, threads):
    with TTSEngine.from_pretrained("demo-voice", backend="torch", num_threads=asked) as tts:
        assert tts.num_threads == threads
        assert torch.get_num_threads() == 4
        found = []
        late = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        late.start()
        late.join()
        assert found == [4]


# Arguments with which a program imports torch, for programs that do not import it at once.
COMMANDS = [
    ("qwen_megakernel/__main__.py", "speak", "Hello.", *MODEL, "--stdout"),
    ("qwen_megakernel/__main__.py", "serve", *MODEL, "--port", "0"),
    ("qwen_megakernel/__main__.py", "doctor"),
    ("demo_tts.py", "Hello.", *MODEL),
    ("demo_pipeline.py", "--text", "Hello.", *MODEL),
    ("benchmark.py", *MODEL),
    ("test_e2e.py", *MODEL),
    ("benchmarks/measure.py", "rtf", *MODEL),
    *((f"benchmarks/measure_{name}.py", *MODEL) for name in ("ttfc", "rtf", "tok_s", "e2e")),
    ("benchmarks/load_test/__main__.py", "--url", "http://127.0.0.1:9", "--rps", "1"),
    ("examples/offline_agent.py", *MODEL),
    ("examples/telephone_stream.py", *MODEL),
    ("tools/long_audio_test.py", *MODEL),
    ("tests/support/truths.py", "--record", "nowhere"),
    ("tests/house/measures.py",),
]
WITHOUT_TORCH = {
    "benchmarks/machine.py",  # imports torch to describe the machine of a result file
    "tools/gpu_check/run.py",  # each of its steps is a program of its own
    "tools/kernel_study/ptxas_table.py",  # compiles, and computes nothing
    "tools/kernel_study/mutate_kernel.py",  # the same; its mutants are tested in other programs
    "deploy/ray_serve.py",  # Ray runs it; the engine is built later, in a replica
}
PROGRAMS = {str(path.relative_to(ROOT)): path for path in programs()}
AT_ONCE = [name for name, path in PROGRAMS.items() if imports(path, "torch", lazily=False)]


def test_the_commands_are_all_that_import_torch_later():
    lazily = {name for name, path in PROGRAMS.items() if imports(path, "torch", lazily=True)}
    assert len(AT_ONCE) >= 20
    assert {command[0] for command in COMMANDS} == lazily - {*AT_ONCE} - WITHOUT_TORCH


@pytest.mark.parametrize(
    "command", [(name,) for name in AT_ONCE] + COMMANDS, ids=lambda command: " ".join(command[:2])
)
def test_every_command_lets_threads_wait_passively(monkeypatch, command):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    name, *arguments = command
    if name.endswith("__main__.py"):
        folder = name.removesuffix("/__main__.py")
        name, arguments = "-m", [folder.replace("/", "."), *arguments]
    ended = run("-c", AT_TORCH, name, *arguments)
    assert ended.returncode == PASSIVE, ended.stderr
