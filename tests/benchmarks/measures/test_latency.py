"""benchmarks/measures/latency.py measures an idle engine, and writes each row at once."""

import json
import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from commands import write_program

from benchmarks import cpu_page, measure, page_parts
from benchmarks.measures import latency


class OneAtATime:
    """An engine that notices a request made before the previous one was read to its end."""

    default_voice = None

    def __init__(self):
        self.left = 0

    def stream(self, *_, **__):
        assert not self.left, "the engine is still at work"
        self.left = 3
        return self._chunks()

    def _chunks(self):
        while self.left:
            self.left -= 1
            yield SimpleNamespace(t_ms=10.0 - self.left)


def test_first_chunks_are_those_of_an_idle_engine():
    assert latency.first_chunks(OneAtATime(), 4) == [8.0] * 4


class Stopped(Exception):
    """The error of a measurement that has run out of time."""


def first_stage(*_):
    yield "tokenise", [1.0]
    raise Stopped


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "last", "stopped", "options", "rows"),
    [
        ("first-sound", "stages", first_stage, [], 5),
        ("texts", "system_voice", Mock(side_effect=Stopped), ["--max-frames", "4"], 9),
    ],
    ids=["first_sound", "texts"],
)
def test_what_was_measured_is_written(name, last, stopped, options, rows, monkeypatch, tmp_path):
    monkeypatch.setattr(latency, last, stopped)
    if name == "first-sound":
        monkeypatch.setattr(latency, "first_chunks", lambda tts, repeats: [1.0] * repeats)
    file = tmp_path / "result.json"
    words = [name, "--model", "tiny-random", "--backend", "torch", "--json", str(file)]
    with pytest.raises(Stopped):
        measure.main([*words, "--runs", "1", *options])
    found = json.loads(file.read_text())
    assert len(found["rows"]) == rows and found["commit"]


ESPEAK = """#!/bin/sh
printf 'RIFF....WAVEfmt \\020\\0\\0\\0\\1\\0\\1\\0\\042\\126\\0\\0........data....'
head -c 44100 /dev/zero
"""  # a second of silence at 22050 Hz


@pytest.mark.ci
@pytest.mark.parametrize("dtype", ["float32", "talker=bfloat16,predictor=float32"])
def test_texts_have_a_row_of_every_length_packet_and_system(dtype, monkeypatch, tmp_path, measured):
    write_program(tmp_path / "espeak-ng", ESPEAK)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    words = ["texts", "--model", "tiny-random", "--backend", "torch", "--dtype", dtype]
    code, found = measured(*words, "--runs", "1", "--max-frames", "6")
    assert code == 0 and (found["dtype"], found["backend"]) == (dtype, "torch")
    assert found["load_s"] > 0 and found["peak_memory_mb"]["host"] > 100
    rows = {(r["system"], r["text"], r["first_frames"]): r for r in found["rows"]}
    ours = {("torch", text, first) for text in latency.TEXTS for first in (1, 3, "whole")}
    assert set(rows) == ours | {("espeak-ng", text, "whole") for text in latency.TEXTS}
    assert len(rows) == len(found["rows"])
    for (system, _, first), row in rows.items():
        p50 = {name: figures["p50"] for name, figures in row.items() if isinstance(figures, dict)}
        assert min(p50.values()) > 0 and p50["first_chunk_ms"] <= p50["total_ms"]
        if system == "espeak-ng":
            assert p50["audio_s"] == 1 and p50["rtf"] == p50["total_ms"] / 1000
            continue
        assert set(cpu_page.TEXT_FIGURES) <= set(p50)
        assert p50["frames"] <= 6 and round(p50["audio_s"] / 0.08) == p50["frames"]
        assert p50["decode_ms"] + p50["vocoder_ms"] <= p50["total_ms"]
        waited = p50["first_chunk_ms"] / p50["total_ms"]
        if first != 3:  # in one piece, the first chunk is also the last
            assert waited > 0.9 if first == "whole" else waited < 1


def test_the_texts_are_as_long_as_those_that_they_are_compared_with():
    assert [len(text) for text in latency.TEXTS.values()] == [12, 63, 256]


def test_the_page_shows_every_row(monkeypatch):
    spread = dict.fromkeys(("mean", "p50", "p95"), 2.5)
    figures = dict.fromkeys(cpu_page.TEXT_FIGURES, spread)
    row = {"system": "torch", "text": "short", "first_frames": "whole"} | figures
    voice = {"system": "espeak-ng", "text": "short", "first_frames": None, "rtf": spread}
    result = page_parts.load_result("benchmark_cpu_random-0.6b-base.json")
    name, other = "texts_cpu_0.6b_by_part.json", "texts_cpu_0.6b_zzz.json"
    result |= {"rows": [row, voice], "load_s": 3.0, "backend": "torch", "file": name}
    second = result | {"file": other, "model": "random-1.7b"}
    monkeypatch.setattr(cpu_page, "load_results", lambda pattern: [result, second])
    lines = cpu_page.texts_tables()
    ours, theirs = (line for line in lines if "| short | whole | 2.50 |" in line)
    assert theirs == ours.replace("0.6b-base", "1.7b")
    assert ours.count(" 2.50 ") == len(cpu_page.TEXT_FIGURES)
    name_and_dtype = "| random-0.6b-base | torch, float32 |"
    assert ours.startswith(name_and_dtype)
    assert sum(line.startswith(f"{name_and_dtype} 3.0 s |") for line in lines) == 1
    assert sum("| espeak-ng " in line for line in lines) == 1  # although it is in both files
    note = " ".join(lines[2:6])
    assert "A speech is cut after" in note
    assert "30 frames (2.4 s) with 0.6b" in note and "20 frames (1.6 s) with 1.7b" in note


@pytest.mark.ci
def test_first_sound_has_a_row_of_every_stage(measured):
    words = ["first-sound", "--model", "tiny-random", "--backend", "torch", "--runs", "1"]
    code, found = measured(*words)
    rows = found["rows"]
    stages = ["request 1 cold", "request 1", "request 10", "first_chunk", "tokenise", "prompt"]
    stages += [f"prefill {count}" for count in latency.PROMPT_POSITIONS]
    stages += ["first frame", *(f"vocoder {frames}" for frames in (1, 2, 4, 10))]
    assert code == 0 and [row["stage"] for row in rows] == stages
    assert min(row["ms"]["p50"] for row in rows) > 0
