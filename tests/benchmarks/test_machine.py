"""benchmarks/machine.py: every fact of a result's machine, from planted files of Linux."""

import resource
import time

import pytest

from benchmarks import machine
from benchmarks.machine import read_bandwidth  # the real one, because conftest.py plants another
from qwen_megakernel.cli import doctor

ZEN_5 = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC
flags\t\t: fpu avx avx2 avx512f avx_vnni avx512_bf16 avx512_vnni avx512_bitalg
"""
XEON = """\
processor\t: 0
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8480+
flags\t\t: fpu avx2 avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8
"""
GRAVITON = """\
processor\t: 0
Features\t: fp asimd aes bf16
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""


@pytest.fixture
def proc(tmp_path):
    """Return proc(cpuinfo="..."), which plants files below proc and returns their root."""
    (tmp_path / "proc").mkdir()

    def plant(**files):
        for name, text in files.items():
            (tmp_path / "proc" / name).write_text(text)
        return tmp_path

    return plant


@pytest.mark.parametrize(
    ("cpuinfo", "name", "sets"),
    [
        (ZEN_5, "AMD EPYC (family 26, model 2)", ["avx2", "avx512f", "avx512_vnni", "avx512_bf16"]),
        (
            XEON,
            "Intel(R) Xeon(R) Platinum 8480+ (family 6, model 143)",
            ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx"],
        ),
        (GRAVITON, "aarch64 (implementer 0x41, part 0xd40)", ["neon"]),
        ("processor\t: 0\nflags\t\t: fpu sse2\n", "aarch64", []),
    ],
    ids=["zen 5", "xeon", "graviton", "old"],
)
def test_the_cpu_and_its_instruction_sets(monkeypatch, proc, cpuinfo, name, sets):
    monkeypatch.setattr(doctor.platform, "processor", lambda: "aarch64")
    found = machine.facts(proc(cpuinfo=cpuinfo + cpuinfo.replace(": 0\n", ": 1\n", 1)))
    assert (found["processor"], found["instruction_sets"]) == (name, sets)
    assert found["online_cores"] == 2 and found["cores"] >= 1


def test_without_the_files_of_linux_nothing_is_recorded(proc):
    root = proc()
    found = machine.facts(root)
    assert found["instruction_sets"] is None and found["online_cores"] is None
    found = machine.Conditions(5, root).facts()
    assert found["load_before_run"] is None and found["stolen_share"] is None


def test_the_run_waits_for_the_load_to_fall_but_not_for_ever(monkeypatch, proc, capsys):
    root = proc(cpuinfo=ZEN_5, loadavg="0.51 2.00 3.00 1/87 25267\n")
    falling = iter(["0.51", "0.50", "0.40"])
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        proc(loadavg=f"{next(falling)} 2.00 3.00 1/87 25267\n")

    monkeypatch.setattr(time, "sleep", sleep)
    # One core: half a load is calm.
    assert machine.Conditions(60, root).facts()["load_before_run"] == 0.5 and len(naps) == 2
    assert "load average is 0.51; waiting 60 s at most" in capsys.readouterr().err
    proc(loadavg="7.25 2.00 3.00 1/87 25267\n")
    assert machine.Conditions(0, root).facts()["load_before_run"] == 7.25 and len(naps) == 2
    assert not capsys.readouterr().err


def test_stolen_time_is_a_share_of_what_was_wanted_since_the_run_began(proc):
    # user nice system idle iowait irq softirq steal guest guest_nice
    root = proc(stat="cpu  1000 10 100 5000 50 1 2 900 7 7\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    conditions = machine.Conditions(0, root)
    assert conditions.facts()["stolen_share"] == 0
    proc(stat="cpu  1060 12 120 9000 90 4 7 910 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert conditions.facts()["stolen_share"] == 10 / (60 + 2 + 20 + 3 + 5 + 10)


def test_memory_is_read_in_another_process_and_as_fast_as_memory_is():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert 0.1 < read_bandwidth(2) < 10_000
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < machine.READ_BYTES / 2
    assert read_bandwidth(0) is None  # a failure there does not end the run
