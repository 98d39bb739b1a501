"""benchmarks/measures/speed.py: memory and load time, at toy size."""

import pytest

from benchmarks.measures import speed


def test_memory_has_its_row(measured):
    words = ["memory", "--model", "tiny-random", "--backend", "torch", "--streams", "2"]
    code, found = measured(*words, "--max-frames", "3")
    assert code == 0 and found["settings"] == {"streams": 2, "max_frames": 3}
    (row,) = found["rows"]
    assert row["streams"] == 2 and 0 < row["load_s"] < 60
    assert row["peak_memory_mb"]["host"] > 100


@pytest.mark.ci
def test_bandwidth_counts_weights_by_part(measured, monkeypatch):
    """A code predictor in float32 reads twice the bytes of one in bfloat16."""
    monkeypatch.setattr(speed, "read_bandwidth", lambda device: 10.0)
    sizes = {}
    for dtype in ("bfloat16", "float32", "talker=bfloat16,predictor=float32"):
        words = ["bandwidth", "--model", "tiny-random", "--backend", "torch", "--dtype", dtype]
        code, found = measured(*words, "--runs", "1", "--warmup", "0", "--max-frames", "3")
        assert code == 0 and found["dtype"] == dtype
        sizes[dtype] = found["weight_bytes_per_frame"]
    assert sizes["float32"] == 2 * sizes["bfloat16"]
    assert sizes["bfloat16"] < sizes["talker=bfloat16,predictor=float32"] < sizes["float32"]
