"""benchmarks/measures/peers.py: if the official package fails, the other rows remain."""

import json

import pytest

from benchmarks import measure
from benchmarks.measures import peers


def test_what_the_official_package_breaks_does_not_take_our_rows_along(monkeypatch, tmp_path):
    def official_ms(*_):
        raise RuntimeError("another transformers")

    monkeypatch.setattr(peers, "official_ms", official_ms)
    monkeypatch.setattr(peers, "decoder_ms", lambda *_: [2.0, 4.0])
    file = tmp_path / "result.json"
    words = ["--model", "tiny-random", "--device", "cpu", "--frames", "4", "--json", str(file)]
    with pytest.raises(RuntimeError):
        measure.main(["peers", *words])
    rows = json.loads(file.read_text())["rows"]
    ours = [("cpu", 1), ("graph", 1), ("torch", 1)]
    assert [(row["system"], row["times_the_best"]) for row in rows] == ours
