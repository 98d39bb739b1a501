"""benchmarks/measures/continuity.py, at toy size."""

import time

import pytest

from benchmarks.measures import continuity
from qwen_megakernel.engine.conversation import Turn


@pytest.mark.ci
@pytest.mark.parametrize("delay_s", [0, 2])
def test_a_sentence_that_waits_for_the_words_before_is_late(measured, capsys, monkeypatch, delay_s):
    monkeypatch.setattr(continuity, "SECONDS", (0.3, 8.0))
    find = Turn._find
    monkeypatch.setattr(Turn, "_find", lambda *args: (time.sleep(delay_s), find(*args))[1])
    words = ["--model", "tiny-random-base", "--backend", "cpu", "--runs", "1"]
    code, found = measured("continuity", *words)
    figures = {name: figure["max"] for name, figure in found["summary"].items()}
    late = {name: max(0, figures[f"at_once_{name}_ms"] - 1000) for name in ("off", "context")}
    assert figures["off_ms"] > 0 and found["machine"]["cores"] and found["backend"] == "cpu"
    assert figures["heard_later_ms"] == late["context"] - late["off"]
    assert figures["later_ms"] == figures["context_ms"] - figures["off_ms"]
    assert figures["at_once_context_ms"] > 1000 * delay_s
    assert figures["context_ms"] > 1000 * delay_s - continuity.COMES_MS
    missed = capsys.readouterr().err
    assert ("heard_later_ms: p95 is above 10" in missed) == (figures["heard_later_ms"] > 10)
    assert code == (1 if "is above" in missed else 0)
    assert code or not delay_s
