"""benchmarks/measures/vocoder.py: every vocoder at every length of chunk."""

import json

from benchmarks import measure


def test_each_vocoder_has_a_row_for_each_length_of_chunk(cache_folder, tmp_path):
    file = tmp_path / "result.json"
    words = ["--model", "tiny-random", "--threads", "1", "--runs", "1", "--chunks", "1", "3"]
    assert measure.main(["vocoder", *words, "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    cases = [(row["vocoder"], row["chunk_frames"]) for row in found["rows"]]
    assert cases == [(name, n) for n in (1, 3) for name in ("torch", "direct", "native")]
    assert all(
        0 < row["ms_per_frame"]["best"] <= row["ms_per_frame"]["p95"] for row in found["rows"]
    )
    assert (found["threads"], found["streams"]) == (1, 1)
