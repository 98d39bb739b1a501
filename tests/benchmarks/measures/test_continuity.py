"""benchmarks/measures/continuity.py, at toy size."""

import json
import time

import pytest

from benchmarks import measure
from benchmarks.measures import continuity
from qwen_megakernel.engine.conversation import Turn


@pytest.mark.parametrize("delay_s", [0, 2])
def test_a_second_sentence_that_waits_for_the_first_ones_words_is_late(
    tmp_path, capsys, monkeypatch, delay_s
):
    monkeypatch.setattr(continuity, "SECONDS", (0.3, 8.0))
    find = Turn._find
    monkeypatch.setattr(Turn, "_find", lambda *args: (time.sleep(delay_s), find(*args))[1])
    path = tmp_path / "continuity.json"
    words = ["--model", "tiny-random-base", "--backend", "cpu", "--runs", "1"]
    code = measure.main(["continuity", *words, "--json", str(path), "--idle", "0"])
    found = json.loads(path.read_text())
    figures = {name: figure["max"] for name, figure in found["summary"].items()}
    late = {name: max(0, figures[name] - 1000) for name in ("off_ms", "context_ms")}
    assert figures["off_ms"] > 0 and found["machine"]["cores"] and found["backend"] == "cpu"
    assert figures["context_ms"] > 1000 * delay_s
    assert figures["later_ms"] == late["context_ms"] - late["off_ms"]
    assert code == (1 if figures["later_ms"] > 10 else 0)
    assert ("later_ms: p95 is above 10" in capsys.readouterr().err) == bool(code)
    assert code or not delay_s
