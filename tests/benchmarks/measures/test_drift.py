"""benchmarks/measures/drift.py finds planted drifts, here and over HTTP."""

import numpy as np
import pytest
from fake_engine import FakeEngine
from live_server import serving
from tolerances import (
    DRIFT_OF_OTHERS,
    EDGE_OF_SPEECH,
    EDGE_OF_SPEECH_DB,
    PLANTED_DRIFT,
    X_VECTOR_F32,
    nearly,
)

from benchmarks import measure
from benchmarks.measures import drift
from qwen_megakernel.audio import to_int16
from qwen_megakernel.engine import drift_guard

TEXT = "What is said here does not matter, because the sound is given."


def speech(faster=1.0, higher=0.0, louder=0.0):
    """Return 4 s of a humming voice with syllables, changed in one way."""
    time = np.arange(round(4 * 24000 / faster)) / 24000
    hertz = 130 * 2 ** (higher / 12)
    hum = sum(np.sin(2 * np.pi * n * hertz * time) / n for n in range(1, 9))
    syllables = 0.5 - 0.5 * np.cos(2 * np.pi * 4 * faster * time)
    return to_int16(0.1 * 10 ** (louder / 20) * hum * syllables)


@pytest.mark.parametrize(
    ("change", "name", "expected"),
    [
        ({"faster": 1.1}, "rate_percent", -100 / 11),
        ({"higher": 2.0}, "pitch_semitones", 2.0),
        ({"louder": 3.0}, "loudness_db", 3.0),
    ],
)
def test_a_planted_drift_is_found_and_no_other(change, name, expected):
    passages = [drift_guard.Figures.of(TEXT, speech(), 24000) for _ in drift.PASSAGES]
    passages.append(drift_guard.Figures.of(TEXT, speech(**change), 24000))
    found = {each: drift.drifts(passages)[-1][each] for each in drift.LIMITS}
    assert abs(found.pop(name) - expected) < PLANTED_DRIFT[name]
    assert all(abs(each) < DRIFT_OF_OTHERS for each in found.values())


def test_silence_around_speech_changes_nothing():
    padded = np.concatenate([np.zeros(9600, np.int16), speech(), np.zeros(24000, np.int16)])
    plain, other = (drift_guard.Figures.of(TEXT, each, 24000) for each in (speech(), padded))
    assert abs(other.seconds_per_sound / plain.seconds_per_sound - 1) < EDGE_OF_SPEECH
    assert abs(other.loudness_db - plain.loudness_db) < EDGE_OF_SPEECH_DB


def test_a_server_is_asked_for_a_conversation(measured, capsys):
    with serving(engine := FakeEngine(rtf=0.0001)) as live:
        words = ["--url", live.url, "--seconds", "30", "--continuity", "context"]
        words += ["--voice", "vivian", "--request", '{"seed": 5}']
        code, found = measured("drift", *words)
    assert found["url"] == live.url and len(found["rows"]) >= 3
    talks = {id(stream.conversation) for stream in engine.streams}
    assert len(talks) == 1 and engine.streams[0].conversation is not None
    assert {stream.seed for stream in engine.streams} == {5}
    assert code == (1 if "is above" in capsys.readouterr().err else 0)


def test_the_speaker_encoder_compares_our_own_voice(measured, capsys, monkeypatch):
    monkeypatch.setattr(drift_guard, "MIN_SPEECH_S", 0.5)  # random weights say no more
    words = ["--model", "tiny-random-base", "--backend", "torch", "--seconds", "1"]
    _, result = measured("drift", *words, "--max-frames", "30", "--seed", "1")
    found = [row["identity"] for row in result["rows"] if "identity" in row]
    assert found[0] == nearly(1.0)
    assert all(each <= 1 + X_VECTOR_F32 for each in found)
    assert "identity" in capsys.readouterr().out


def test_a_server_that_does_not_answer_is_named(capsys):
    code = measure.main(["drift", "--url", "http://127.0.0.1:9", "--seconds", "1"])
    assert code != 0
    assert "http://127.0.0.1:9 did not speak" in capsys.readouterr().err


def test_the_band_is_compared_with_every_pair_of_texts(measured, monkeypatch):
    said = iter([speech(), speech(faster=1.1), speech(louder=9.0)])
    monkeypatch.setattr(drift, "to_int16", lambda _: next(said))
    _, found = measured("drift-band", "--backend", "torch", "--texts", "3")
    rows = {row["figure"]: row for row in found["rows"]}
    assert found["pairs"] == 3
    low, high = rows["loudness_db"]["one_in_1000_beyond"]
    assert -low == nearly(high) and abs(high - 9) < PLANTED_DRIFT["loudness_db"]
    assert rows["loudness_db"]["share_outside"] == nearly(2 / 3)
    assert rows["pitch_semitones"]["share_outside"] == 0
