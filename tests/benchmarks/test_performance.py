"""docs/performance.md is what its generator makes of the committed results, a GPU's included."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import performance

ROOT = Path(__file__).parents[2]


def test_the_page_is_generated_from_the_result_files():
    command = [sys.executable, "benchmarks/performance.py", "--check"]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == 0, (
        "run python benchmarks/performance.py"
    )


RESULT = {
    "commit": "abc",
    "created": "2027-01-01",
    "emulation": False,
    "device": {"name": "NVIDIA H200", "driver_version": "600.1"},
    "steps": {
        "frame_times": {
            "status": "ok",
            "result": {
                "copy_gb_per_s": 4000.0,
                "rows": [
                    {
                        "model": "random-0.6b-base",
                        "streams": 1,
                        "ms_per_frame": 1.2,
                        "mb_per_frame": 3320.0,
                        "share_of_copy": 0.69,
                    }
                ],
            },
        },
        "peers": {
            "status": "ok",
            "result": {
                "rows": [
                    {"model": "m", "system": "qwen-tts", "why_not": "It is not installed."},
                    {
                        "model": "m",
                        "system": "graph",
                        "ms_per_frame": {"p50": 4.5},
                        "times_the_best": 3.75,
                    },
                ]
            },
        },
        "memory": {
            "status": "ok",
            "result": {
                "rows": [
                    {
                        "model": "m",
                        "streams": 8,
                        "load_s": 5.0,
                        "peak_memory_mb": {"host": 11.0, "gpu": 22.0, "device": 33.0},
                    }
                ]
            },
        },
        "million": {"status": "short", "result": {"launches": 412_000, "goal": 1_000_000}},
        "tests": {"status": "timeout", "result": None},
    },
}


@pytest.fixture
def results(tmp_path, monkeypatch):
    for folder, emulation in (("gpu_h200", False), ("gpu_emulation", True)):
        (tmp_path / folder).mkdir()
        found = RESULT | {"emulation": emulation, "commit": "emulated" if emulation else "abc"}
        (tmp_path / folder / "result.json").write_text(json.dumps(found))
    monkeypatch.setattr(performance, "RESULTS", tmp_path)


def test_a_gpus_frames_stand_beside_their_floor_and_goal(results):
    page = performance.page()
    # 3320 MB at the 4000 GB/s of the same run are 0.83 ms.
    assert "| random-0.6b-base | 1 | 1.200 | 0.830 | 1.446 | 69 % | 1.560 | 1.150 |" in page
    assert "`gpu_h200/result.json`: commit abc, driver 600.1" in page
    assert (
        "million short (412000 of 1000000 launches), tests timeout" in page
        and "Nothing yet" not in page
    )


def test_memory_is_that_of_a_model_on_the_host_and_on_the_gpu(results):
    assert "| m | 8 | 5.000 | 11.0 | 22.0 | 33.0 |" in performance.page()


def test_what_was_not_measured_is_a_dash_and_emulation_is_not_shown(results):
    page = performance.page()
    assert "| m | qwen-tts | – | – |" in page and "| m | graph | 4.500 | 3.750 |" in page
    assert "emulated" not in page


def test_without_a_gpus_result_the_page_tells_the_commands(tmp_path, monkeypatch):
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    page = performance.page()
    assert "tools/gpu_check.sh --set listeners" in page and "no GPU was at hand" in page


def test_the_plot_is_drawn(results, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "floors.png"
    performance.plot(str(path))
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000
