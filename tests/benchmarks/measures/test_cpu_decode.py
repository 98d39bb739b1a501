"""benchmarks/measures/cpu_decode.py at toy size: the result has every row, with its figures."""

import pytest
from spies import results_of

from benchmarks.measures import cpu_decode


@pytest.mark.ci
def test_every_decoder_and_number_of_streams_has_a_row(measured, capsys, monkeypatch):
    measure = cpu_decode.Made.prompt_ms

    def length_of(made, length, turn):  # at toy size a longer prompt may take no longer
        assert measure(made, length, turn) > 0
        return float(length)

    monkeypatch.setattr(cpu_decode.Made, "prompt_ms", length_of)
    words = ["--models", "tiny-random", "--weights", "stored", "int8", "--rounds", "2"]
    _, result = measured("cpu-decode", *words)
    rows = result["rows"]
    found = [(row["weights"], row["backend"], row["streams"]) for row in rows]
    ours = [("cpu", 1), ("cpu", 2), ("cpu", 4), ("cpu", 8), ("torch", 1)]
    assert found == [(form, *each) for form in ("stored", "int8") for each in ours]
    assert len(capsys.readouterr().out.splitlines()) == 10
    for row in rows:
        speed, floor = row["read_bandwidth_gb_s"]["p50"], row["floor_ms_per_frame"]
        assert 0 < floor == 1e3 * row["weight_bytes_per_frame"] / (speed * 1e9)
        assert row["times_the_floor"] == row["ms_per_frame"]["p50"] / floor
        if row["streams"] == 1:
            assert (row["prompt_10_ms"]["p50"], row["prompt_110_ms"]["p50"]) == (10, 110)
            assert 0 < row["load_s"] < row["load_and_first_frame_s"]
    stored, int8 = rows[0], rows[5]
    assert (
        int8["weight_bytes_per_frame"] < 0.7 * stored["weight_bytes_per_frame"]
    )  # heads stay float32


def test_no_prompt_begins_as_one_before_it_did(load_checkpoint, monkeypatch):
    made = cpu_decode.Made("cpu", load_checkpoint("tiny-random"), None, 2, 1)
    kept = results_of(monkeypatch, made.decoder._prefixes, "find")
    for turn in range(2):
        for length in cpu_decode.PROMPTS:
            made.prompt_ms(length, turn)
    assert list(map(len, kept)) == [0, 0, 0, 0]


def test_both_backends_of_a_cpu_speak_by_turns(measured):
    _, found = measured("cpu-speech", "--model", "tiny-random", "--max-frames", "3", "--runs", "2")
    rows = found["rows"]
    assert [row["backend"] for row in rows] == ["cpu", "torch"]
    assert all(row[name]["p50"] > 0 for row in rows for name in cpu_decode.SPEECH)


def test_a_stream_that_ends_is_no_measurement(load_checkpoint):
    made = cpu_decode.Made("torch", load_checkpoint("tiny-random"), None, 1, 1)
    made.decoder.step = lambda *given: type("Ended", (), {"ended": (True,)})
    with pytest.raises(SystemExit, match="nothing to measure"):
        made.frame_ms(1)
