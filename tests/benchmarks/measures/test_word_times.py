"""benchmarks/measures/word_times.py: compared with sound whose words have known places."""

from ctypes import util

import pytest
from spelling_voice import RATE, spell
from tiny_speech import tiny_engine
from tolerances import nearly

from benchmarks.measures.word_times import Error, missed, table_rows
from qwen_megakernel.text.reading.spoken import Piece


def test_each_word_that_has_an_exact_time_has_an_error():
    text = "sonat filo tasi"
    spelled = spell(text, lead_s=0.5)
    pieces = (Piece(text, 0, len(text), is_kept=True),)
    begins = [begin for begin, _ in spelled.word_times]
    exact = {0: begins[0], 11: begins[2] + 1.0}  # the last word is planted a second too late
    with tiny_engine() as tts:
        assert tts.sample_rate == RATE
        first, last = missed(tts, text, pieces, spelled.samples, exact)
    assert (first.index, last.index) == (0, 2)
    assert first.found_ms < 100 and 900 < last.found_ms < 1100
    assert first.by_letters_ms < 100


def test_rows_are_by_the_place_of_a_word():
    errors = [Error(index, 100.0 * index, 10.0 * index) for index in range(10)]
    rows = {row["position"]: row for row in table_rows("drawn", errors)}
    assert {name: row["words"] for name, row in rows.items()} == {
        "all": 10,
        "first": 1,
        "2 to 4": 3,
        "5 to 8": 4,
        "9 and later": 2,
    }
    assert rows["2 to 4"]["found_ms"]["p50"] == nearly(20.0)
    assert rows["all"]["by_letters_ms"]["p95"] == nearly(900.0)


@pytest.mark.ci
@pytest.mark.skipif(util.find_library("flite") is None, reason="flite is not installed")
def test_the_times_of_the_demonstration_voice_are_within_the_limits(measured):
    code, found = measured("word-times", "--backend", "cpu", "--every", "30", "--quiet")
    assert code == 0
    rows = {(row["speech"], row["position"]): row for row in found["rows"]}
    for speech in ("reference codes", "drawn"):
        row = rows[speech, "all"]
        assert row["words"] > 30
        assert row["found_ms"]["p50"] < row["by_letters_ms"]["p50"]
        assert row["found_ms"]["p95"] < row["by_letters_ms"]["p95"]
