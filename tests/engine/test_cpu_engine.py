"""Engines on the native CPU decoder: what one stream, or one engine, must not do to another."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from qwen_megakernel import Speech, TTSEngine
from qwen_megakernel.errors import GenerationError

TEXT = "One of these streams is going to fail."


@pytest.fixture(scope="module")
def two_slots():
    with TTSEngine.from_pretrained(
        "tiny-random", backend="cpu", num_slots=2, max_frames=64, warmup=False
    ) as engine:
        yield engine


def test_a_stream_of_nan_ends_with_its_error_and_its_neighbour_goes_on(two_slots, monkeypatch):
    decoder = two_slots._loop.stages.decoder
    prefill, beside = decoder.prefill, []

    def broken_prefill(slot, given, sampling, *, seed, **options):
        if seed == 13:
            given = replace(given, embeds=given.embeds * torch.nan)
        prefill(slot, given, sampling, seed=seed, **options)

    step = decoder.step

    def watched_step(slots, num_frames):
        beside.append(len(slots))
        return step(slots, num_frames)

    alone = Speech.collect(two_slots.stream(TEXT, seed=7, max_frames=20))
    monkeypatch.setattr(decoder, "prefill", broken_prefill)
    monkeypatch.setattr(decoder, "step", watched_step)
    streams = [two_slots.stream(TEXT, seed=seed, max_frames=20) for seed in (7, 13)]
    healthy = Speech.collect(streams[0])
    with pytest.raises(GenerationError, match="codebook 0 are not finite"):
        list(streams[1])
    assert 2 in beside
    np.testing.assert_array_equal(healthy.audio, alone.audio)
