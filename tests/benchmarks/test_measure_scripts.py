"""Scripts of benchmarks/: they measure what they say, and write down what they have."""

import argparse
import json
from types import SimpleNamespace

import pytest

from benchmarks import common, measure_first_sound, measure_peers, measure_texts
from qwen_megakernel.cli import options


class OneAtATime:
    """An engine that notices a request while the one before is not read to its end."""

    default_voice = None

    def __init__(self):
        self.left = 0

    def stream(self, *_, **__):
        assert not self.left, "the engine is still at work"
        self.left = 3
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return SimpleNamespace(t_ms=10.0 - self.left)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Cancels, and does not wait."""


def test_first_chunks_are_those_of_an_idle_engine():
    assert measure_first_sound.first_chunks(OneAtATime(), 4) == [8.0] * 4


def test_benchmarks_speak_with_an_engine_that_is_warm(monkeypatch):
    class Loaded(Exception):
        pass

    def load_engine(args, **engine_options):
        assert engine_options.get("warmup", True)
        raise Loaded

    monkeypatch.setattr(options, "engine_from_args", load_engine)
    with pytest.raises(Loaded):
        common.measure(argparse.Namespace())


class Stopped(Exception):
    """Whoever measures has run out of time."""


def stop(*_):
    raise Stopped


def first_stage(*_):
    yield "tokenise", [1.0]
    raise Stopped


@pytest.mark.parametrize(
    ("script", "last", "stopped", "rows"),
    [(measure_first_sound, "stages", first_stage, 5), (measure_texts, "system_voice", stop, 6)],
    ids=["first_sound", "texts"],
)
def test_what_was_measured_before_the_end_is_written(
    script, last, stopped, rows, monkeypatch, tmp_path
):
    monkeypatch.setattr(script, last, stopped)
    if script is measure_first_sound:
        monkeypatch.setattr(script, "first_chunks", lambda tts, repeats: [1.0] * repeats)
    args = common.model_parser("Measure.").parse_args(
        ["--model", "tiny-random", "--backend", "torch", "--json", str(tmp_path / "result.json")]
    )
    args.runs, args.max_frames = 1, 4
    with pytest.raises(Stopped):
        script.main(args)
    found = json.loads((tmp_path / "result.json").read_text())
    assert len(found["rows"]) == rows and found["commit"]


def test_the_result_file_is_written_after_every_load(run_here, monkeypatch, tmp_path):
    written = []

    def write_json(path, found):
        written.append([row["rps"] for row in found["rows"]])

    monkeypatch.setattr(common, "write_json", write_json)
    load = ("--rps", "8,12", "--duration", "0.3", "--max-frames", "2", "--streams", "2")
    script = ("benchmarks/measure_open_loop.py", "--model", "tiny-random", "--backend", "torch")
    assert run_here(*script, *load, "--json", tmp_path / "result.json").returncode == 0
    assert written == [[8.0], [8.0, 12.0]]


def test_what_the_official_package_breaks_does_not_take_our_rows_along(monkeypatch, tmp_path):
    def official_ms(*_):
        raise RuntimeError("another transformers")

    monkeypatch.setattr(measure_peers, "official_ms", official_ms)
    monkeypatch.setattr(measure_peers, "decoder_ms", lambda *_: [2.0, 4.0])
    file = tmp_path / "result.json"
    args = argparse.Namespace(
        model="tiny-random", device="cpu", dtype=None, frames=4, json=str(file)
    )
    with pytest.raises(RuntimeError):
        measure_peers.main(args)
    rows = json.loads(file.read_text())["rows"]
    assert [(row["system"], row["times_the_best"]) for row in rows] == [("graph", 1), ("torch", 1)]
