"""benchmarks/measures/latency.py: an idle engine is what it measures; what it has, it writes."""

import json
from types import SimpleNamespace

import pytest

from benchmarks import measure
from benchmarks.measures import latency


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
    assert latency.first_chunks(OneAtATime(), 4) == [8.0] * 4


class Stopped(Exception):
    """The measurement has run out of time."""


def stop(*_):
    raise Stopped


def first_stage(*_):
    yield "tokenise", [1.0]
    raise Stopped


@pytest.mark.parametrize(
    ("name", "last", "stopped", "options", "rows"),
    [
        ("first-sound", "stages", first_stage, [], 5),
        ("texts", "system_voice", stop, ["--max-frames", "4"], 6),
    ],
    ids=["first_sound", "texts"],
)
def test_what_was_measured_before_the_end_is_written(
    name, last, stopped, options, rows, monkeypatch, tmp_path
):
    monkeypatch.setattr(latency, last, stopped)
    if name == "first-sound":
        monkeypatch.setattr(latency, "first_chunks", lambda tts, repeats: [1.0] * repeats)
    file = tmp_path / "result.json"
    words = [name, "--model", "tiny-random", "--backend", "torch", "--json", str(file)]
    with pytest.raises(Stopped):
        measure.main([*words, "--runs", "1", *options])
    found = json.loads(file.read_text())
    assert len(found["rows"]) == rows and found["commit"]
