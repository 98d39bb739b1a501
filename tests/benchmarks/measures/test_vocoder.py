"""benchmarks/measures/vocoder.py: every vocoder at every length of chunk, and float16's errors."""

import pytest
from spies import watch

from benchmarks import measure, precision_page
from qwen_megakernel.choices import VOCODER_WEIGHTS
from qwen_megakernel.decoders.cpu.decoder import CpuDecoder
from qwen_megakernel.vocoder.cpu.vocoder import CpuVocoder


@pytest.mark.ci
def test_the_frames_of_each_chunk_are_drawn_before_it_is_decoded(cache_folder, monkeypatch):
    """As in a speech, the vocoder must read its weights from memory, not from a cache."""
    events = []
    watch(monkeypatch, CpuDecoder, "step", lambda *_: events.append("draw"))
    watch(monkeypatch, CpuVocoder, "step", lambda _, codes, states: events.append(codes.shape[1]))
    words = ["--model", "tiny-random", "--threads", "1", "--runs", "1", "--chunks", "3"]
    assert measure.main(["vocoder", *words]) == 0
    decoded = [index for index, event in enumerate(events) if event == 3]
    assert len(decoded) == 2 * 3  # 3 calls of "direct" and of "native"; only one of each counts
    assert all(events[index - 3 : index] == ["draw"] * 3 for index in decoded)


@pytest.mark.ci
def test_each_vocoder_has_a_row_for_each_length_of_chunk(cache_folder, measured):
    words = ["--model", "tiny-random", "--threads", "1", "--runs", "1", "--chunks", "1", "3"]
    code, found = measured("vocoder", *words)
    assert code == 0
    cases = [(row["vocoder"], row["chunk_frames"]) for row in found["rows"]]
    assert cases == [(name, n) for n in (1, 3) for name in ("torch", "direct", "native")]
    times = [row["ms_per_frame"] for row in found["rows"]]
    assert all(0 < each["best"] <= each["p95"] for each in times)
    assert (found["threads"], found["streams"], found["weights"]) == (1, 1, "stored")
    assert found["read_bandwidth_gb_s"]["p50"] > 0


@pytest.mark.ci
def test_float16_takes_half_the_memory_and_costs_precision(cache_folder, measured, monkeypatch):
    code, found = measured("vocoder-precision", "--model", "tiny-random", "--max-frames", "9")
    assert code == 0
    full, half = found["rows"]
    assert (full["weights"], half["weights"]) == VOCODER_WEIGHTS and found["frames"] == 9
    assert full["packed_mb"] == 2 * half["packed_mb"]
    assert full["signal_to_noise_db"] > 100 > half["signal_to_noise_db"] > 30
    assert full["largest_error"] < half["largest_error"]
    monkeypatch.setattr(precision_page, "load_results", lambda pattern: [found])
    assert "| tiny-random (random weights) | float16 |" in "\n".join(precision_page.vocoders())
