"""benchmarks/measures/load.py: which bytes complete a chunk, and small runs from end to end."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from commands import run
from tolerances import nearly

from benchmarks import common
from benchmarks.load_test.speech_client import Heard
from benchmarks.measures import load
from benchmarks.measures.paced_engine import FRAME_SAMPLES, handed_over
from qwen_megakernel.errors import SetupError

ROOT = Path(__file__).parents[3]


def chunk(num_frames, handed_over_s):
    samples = np.zeros(num_frames * FRAME_SAMPLES, np.int16)
    samples[:4] = np.array([int(handed_over_s * 1e9)]).view(np.int16)
    return samples.tobytes()


def test_a_chunk_has_arrived_when_its_last_byte_has():
    """The network divides chunks of 1, 2, 4, 8, 10, 10 and 3 frames at any place."""
    sizes = [1, 2, 4, 8, 10, 10, 3]
    data = b"".join(chunk(size, 100 + index) for index, size in enumerate(sizes))
    cuts = [0, 10, 2 * FRAME_SAMPLES, 5 * FRAME_SAMPLES, 30 * FRAME_SAMPLES + 1, len(data)]
    heard = Heard(planned=0.0)
    for index, (start, end) in enumerate(pairwise(cuts)):
        heard.pieces.append(data[start:end])
        heard.arrivals.append(200.0 + index)
    found = list(load.chunks_of(heard))
    assert [given for given, _, _ in found] == nearly([100 + i for i in range(7)])
    # Frames: pieces end at 1, 2.5 and a little behind 15; chunks end at 1, 3, 7, 15, 25, 35, 38.
    assert [at for _, at, _ in found] == [201, 203, 203, 203, 204, 204, 204]
    assert [ms for _, _, ms in found] == [80.0 * size for size in sizes]
    assert handed_over(data) == 100


@pytest.mark.ci
def test_the_cost_of_the_server_is_measured_and_held_against_its_limits(tmp_path):
    result = tmp_path / "result.json"
    amount = ("--requests", 4, "--streams", 2, "--crowd", 4, "--frames", 20)
    done = run("benchmarks/measure.py", "server", *amount, "--json", result, "--idle", 0, PATH="")
    assert done.returncode in (0, 1) and result.exists(), done.stderr
    found = json.loads(result.read_text())
    summary, limits = found["summary"], found["limits"]
    assert found["schema"] == common.SCHEMA
    assert summary["first_byte_overhead_ms"]["count"] == 4
    assert summary["chunk_overhead_ms"]["count"] == 2 * 5  # chunks of 1, 2, 4, 8 and 5 frames
    assert summary["underruns_added"]["count"] == 4
    assert all(figures["p50"] >= 0 for figures in summary.values())
    missed = [name for name, (key, most) in limits.items() if summary[name][key] > most]
    assert done.returncode == bool(missed) and all(name in done.stderr for name in missed)


@pytest.mark.ci
def test_the_result_file_is_written_after_every_load(run_here, monkeypatch, tmp_path):
    written = []

    def write_json(path, found):
        assert found["threads"] == 1
        written.append([(row["rps"], row["busy"]) for row in found["rows"]])

    monkeypatch.setattr(common, "write_json", write_json)
    loads = ("--rps", "8,12", "--duration", "0.3", "--max-frames", "2", "--streams", "2")
    loads += ("--busy", "0", "1", "--threads", "1")
    script = ("benchmarks/measure.py", "open-loop", "--model", "tiny-random", "--backend", "torch")
    assert run_here(*script, *loads, "--json", tmp_path / "result.json").returncode == 0
    rows = [(8.0, 0), (12.0, 0), (8.0, 1), (12.0, 1)]
    assert written == [rows[:count] for count in range(1, 5)]


def test_no_load_is_a_mistake_of_the_command_line(run_here):
    done = run_here("benchmarks/measure.py", "open-loop")
    assert done.returncode == 2 and "--listeners" in done.stderr


def test_a_server_that_does_not_start_is_named():
    with (
        pytest.raises(SetupError, match="ended before it listened"),
        load.Server(load.serve_model, "/no/model"),
    ):
        pass
