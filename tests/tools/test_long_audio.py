"""The long-audio test: its figures are those of the codes, and decay shows."""

import importlib.util
import json
from types import SimpleNamespace

import numpy as np
import pytest
from commands import run
from tolerances import HEALTHY_ENTROPY_DROP, nearly

from benchmarks import common
from tools import long_audio_test as tool


def speech(codes, reason="eos"):
    return SimpleNamespace(
        codes=codes,
        finish_reason=reason,
        seed=1,
        audio=np.zeros(len(codes) * 1920),
        sample_rate=24000,
        timings={"total": 1500.0},
    )


def test_a_healthy_and_a_decaying_utterance_differ():
    codes = np.stack([np.arange(200) % 64] * 16, axis=1)
    healthy = tool.examine("short", "Hello.", speech(codes))
    assert (healthy["steps"], healthy["duration_s"], healthy["cb0_repeat"]) == (200, 16.0, 0.0)
    assert abs(healthy["entropy_drop_bits"]) < HEALTHY_ENTROPY_DROP
    codes[100:] = 7
    decaying = tool.examine("long", "Hello.", speech(codes, "length"))
    assert decaying["cb0_repeat"] == 99 / 199
    assert decaying["entropy_drop_bits"] > 5
    rows = tool.table([healthy, decaying]).splitlines()
    assert "| yes | 16.0 s | 0.0 % |" in rows[2] and "| no (length) |" in rows[3]


def test_the_texts_grow_past_the_seeds_longest():
    lengths = [len(text) for text in tool.TEXTS.values()]
    assert lengths == sorted(lengths) and lengths[0] < 30 and lengths[-1] > 721


@pytest.mark.ci
def test_it_runs_and_draws(tmp_path):
    figures, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    plot = ("--plot", picture) if importlib.util.find_spec("matplotlib") else ()
    options = (
        "--model",
        "tiny-random",
        "--seed",
        3,
        "--max-frames",
        8,
        "--json",
        figures,
        "--idle",
        0,
    )
    done = run("tools/long_audio_test.py", *options, *plot)
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())
    rows = found["rows"]
    assert found["schema"] == common.SCHEMA and found["machine"]["load_before_run"] is not None
    assert len(rows) == 5 and done.stdout.count("\n|") == 6
    for row in rows:
        assert 0 < row["steps"] <= 8 and row["duration_s"] == nearly(row["steps"] * 0.08)
        assert row["finish_reason"] == "eos" or row["steps"] == 8
    assert not plot or picture.read_bytes().startswith(b"\x89PNG")
