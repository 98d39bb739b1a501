"""measure.py processes converts a model, and measures processes that map it or pack it."""

import pytest

from benchmarks import cpu_page
from benchmarks.measures import processes
from qwen_megakernel.errors import QwenTTSError


@pytest.mark.ci
def test_mapped_and_packed_weights_are_measured_by_turns(measured, monkeypatch):
    words = ["processes", "--model", "tiny-random", "--weights", "int8", "--runs", "1"]
    code, found = measured(*words, "--vocoder-weights", "float16", "--max-frames", "12")
    assert code == 0
    assert found["settings"]["convert_s"] > 0 and found["settings"]["convert_peak_mb"] > 50
    rows = found["rows"]
    cases = [(row["form"], row["processes"]) for row in rows]
    assert cases == [("packed", 1), ("mapped", 1), ("packed", 2), ("mapped", 2)]
    assert all(row[name]["p50"] > 0 for row in rows for name in processes.FIGURES)
    for row in rows:
        assert row["private_mb"]["p50"] < row["pss_mb"]["p50"] <= row["resident_mb"]["p50"]
    monkeypatch.setattr(cpu_page, "load_results", lambda pattern: [found | {"file": pattern}])
    table = "\n".join(cpu_page.processes_table())
    assert "| int8, vocoder float16 | mapped | 2 |" in table and "| int8 | packed | 1 |" in table


def test_a_process_that_fails_is_no_row(capfd):
    with pytest.raises(QwenTTSError, match="before it had spoken"):
        processes.together(1, "/no/model", None, 5)
