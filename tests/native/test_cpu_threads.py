"""How many threads compute: the rule, its limits, who is left alone, and how threads wait."""

import threading

import pytest
import torch
from commands import run

from qwen_megakernel import TTSEngine
from qwen_megakernel.errors import UsageError
from qwen_megakernel.native import cpu_threads

# Stops a program where it imports torch, with exit code 0 if threads will wait passively then.
AT_TORCH = """
import os, runpy, sys
class Watch:
    def find_spec(name, path=None, target=None):
        if name == "torch":
            os._exit(0 if os.environ.get("OMP_WAIT_POLICY") == "PASSIVE" else 1)
sys.meta_path.insert(0, Watch)
sys.path.insert(0, "")
sys.argv = sys.argv[1:]
if sys.argv[0] == "-m":
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
os._exit(2)  # it never imported torch
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
    [(4e6, 8, None, 1), (5e6, 8, None, 2), (1.6e9, 8, None, 8), (1.6e9, 1, None, 1), (1, 8, 3, 3)],
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


@pytest.mark.parametrize(("granted", "says"), [(0.5, True), (1.9, True), (2.0, False)])
def test_a_quota_below_two_cores_is_warned_of_at_start(monkeypatch, caplog, granted, says):
    monkeypatch.setattr(cpu_threads, "quota", lambda root=None: granted)
    with TTSEngine.from_pretrained("tiny-random", backend="cpu", max_frames=64, warmup=False):
        pass
    assert says == (f"This container may use {granted} cores; " in caplog.text)


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


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "qwen_megakernel", "speak", "Hello.", *MODEL, "--stdout"),
        ("-m", "qwen_megakernel", "serve", *MODEL, "--port", "0"),
        ("-m", "qwen_megakernel", "doctor"),
        ("demo_tts.py", "Hello.", *MODEL),
        ("demo_pipeline.py", "--text", "Hello.", *MODEL),
        ("benchmark.py", *MODEL),
        ("test_e2e.py", *MODEL),
        ("validate_kernel.py", *MODEL),
        ("benchmarks/measure.py", "rtf", *MODEL),
        ("benchmarks/measure_rtf.py", *MODEL),
        ("examples/offline_agent.py", *MODEL),
        ("tools/long_audio_test.py", *MODEL),
        ("tools/precision_table.py",),
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_every_command_lets_threads_wait_passively(monkeypatch, command):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    ended = run("-c", AT_TORCH, *command)
    assert ended.returncode == 0, ended.stderr
