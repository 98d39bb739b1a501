"""benchmarks/measures/marks.py, at toy size."""

import pytest

from benchmarks.measures.marks import missed


@pytest.mark.ci
def test_marks_are_found_and_figures_are_complete(measured):
    words = ("--model", "demo-voice", "--backend", "cpu", "--quiet", "--sentences", "9")
    sizes = ("--keys", "1", "--pieces", "1", "--long-pieces", "0", "--draws", "2")
    _, found = measured("marks", *words, *sizes)
    unmarked, *kept, operators = found["rows"]
    assert unmarked["searches"] == unmarked["files"] == 9 + 20
    assert unmarked["false_alarms"] == operators["confused"] == 0
    assert {row["what"] for row in kept} >= {"clean", "G.711, 8 kHz", "AAC 64 kbit/s"}
    assert all(row["found"] == row["operator_known"] == 1 for row in kept)
    assert all(row["rtf"] > 0 for row in found["changes"])


@pytest.mark.ci
def test_a_recogniser_hears_marked_speech(measured, capsys):
    pytest.importorskip("pocketsphinx")
    words = ("--model", "demo-voice", "--backend", "cpu", "--sentences", "3")
    code, found = measured("mark-words", *words)
    assert code in (0, 1)
    assert found["sentences"] == 3 and {*found["word_error_rate"]} == {"unmarked", "marked"}
    assert all(0 <= rate < 0.5 for rate in found["word_error_rate"].values())
    assert f"{found['word_error_rate']['marked']:.2%} of the words" in capsys.readouterr().out


def test_every_limit_is_missed_by_worse_figures():
    rows = [
        {"what": "clean", "speech": "flite", "seconds": 5, "found": 0.94},
        {"what": "noise", "speech": "flite", "seconds": 10, "found": 0.89},
        {"what": "unmarked", "false_alarms": 1},
        {"what": "operators", "confused": 1},
    ]
    changes = [{"speech": "flite", "signal_to_mark_db": 23.9, "pesq": 4.1}]
    assert len(missed(rows, changes)) == 6
