"""Engines on the native CPU decoder: no stream and no engine affects another."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from fixtures import module_fixture
from spies import watch
from tolerances import PCM16

from qwen_megakernel import Speech, TTSEngine
from qwen_megakernel.cloning.voice_library import VoiceLibrary
from qwen_megakernel.errors import GenerationError, OutOfMemory, UnsupportedModel, UsageError
from qwen_megakernel.vocoder.vocoder import Vocoder

pytestmark = pytest.mark.own_backend

TEXT = "One of these streams is going to fail."

two_slots = module_fixture(
    lambda: TTSEngine.from_pretrained(
        "tiny-random", backend="cpu", num_slots=2, max_frames=64, warmup=False
    )
)


def test_a_stream_of_nan_ends_with_its_error_and_its_neighbour_goes_on(two_slots, monkeypatch):
    decoder = two_slots._loop.stages.decoder
    prefill, beside = decoder.prefill, []

    def broken_prefill(slot, given, sampling, *, seed, **options):
        if seed == 13:
            given = replace(given, embeds=given.embeds * torch.nan)
        prefill(slot, given, sampling, seed=seed, **options)

    alone = Speech.collect(two_slots.stream(TEXT, seed=7, max_frames=20))
    monkeypatch.setattr(decoder, "prefill", broken_prefill)
    watch(monkeypatch, decoder, "launch", lambda slots, _: beside.append(len(slots)))
    streams = [two_slots.stream(TEXT, seed=seed, max_frames=20) for seed in (7, 13)]
    healthy = Speech.collect(streams[0])
    with pytest.raises(GenerationError, match="codebook 0 are not finite"):
        list(streams[1])
    assert 2 in beside
    np.testing.assert_array_equal(healthy.audio, alone.audio)


def test_two_engines_speak_at_once_as_each_does_alone():
    """Each has its own pool and memory; streams of both run at the same time."""
    options = OPTIONS | {"backend": "cpu", "num_slots": 2, "num_threads": 2}

    def speak(engine, seed):
        return Speech.collect(engine.stream(TEXT, seed=seed, max_frames=30))

    with (
        TTSEngine.from_pretrained("tiny-random", **options) as one,
        TTSEngine.from_pretrained("tiny-random", **options) as other,
    ):
        wanted = [(engine, seed) for seed in (3, 4) for engine in (one, other)]
        alone = [speak(*each) for each in wanted]
        with ThreadPoolExecutor(4) as threads:
            together = list(threads.map(speak, *zip(*wanted, strict=True)))
    for ours, theirs in zip(together, alone, strict=True):
        np.testing.assert_array_equal(ours.codes, theirs.codes)
        np.testing.assert_array_equal(ours.audio, theirs.audio)


def test_a_voice_is_made_with_one_thread_of_pytorch(monkeypatch):
    """Threads of its pool would spin on the cores of the streams that are speaking."""
    seen = []

    def counted(*given, **options):
        seen.append(torch.get_num_threads())
        raise UsageError("It is too short.")

    monkeypatch.setattr(VoiceLibrary, "create", counted)
    of_caller = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for backend in ("cpu", "torch"):
            options = OPTIONS | {"backend": backend}
            with (
                TTSEngine.from_pretrained("tiny-random-base", **options) as tts,
                pytest.raises(UsageError, match="too short"),
            ):
                tts.create_voice(np.zeros(24000, np.float32), rate=24000)
        assert seen == [1, 3] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(of_caller)


def plant(monkeypatch, name, error):
    def refuse(*given, **options):
        raise error

    monkeypatch.setattr(name, refuse)


DECODER = "qwen_megakernel.decoders.cpu.decoder.CpuDecoder.__init__"
VOCODER = "qwen_megakernel.tts_engine.CpuVocoder"
OPTIONS = {"max_frames": 64, "warmup": False, "device": "cpu"}


def test_a_vocoder_that_cannot_be_made_is_replaced_under_auto_alone(monkeypatch, caplog):
    plant(monkeypatch, VOCODER, UnsupportedModel("It has 7 heads."))
    with TTSEngine.from_pretrained("tiny-random", backend="auto", **OPTIONS) as engine:
        assert engine.backend == "cpu" and type(engine._loop.stages.vocoder) is Vocoder
        assert engine.why.endswith("; the vocoder by PyTorch: It has 7 heads.")
        assert "The vocoder is PyTorch's instead" in caplog.text
        fallen_back = engine.synthesize(TEXT, seed=7, max_frames=8)
    with pytest.raises(UnsupportedModel, match="7 heads"):
        TTSEngine.from_pretrained("tiny-random", backend="cpu", **OPTIONS)
    monkeypatch.undo()
    with TTSEngine.from_pretrained("tiny-random", backend="auto", **OPTIONS) as engine:
        assert "PyTorch" not in engine.why
        speech = engine.synthesize(TEXT, seed=7, max_frames=8)
    np.testing.assert_array_equal(fallen_back.codes, speech.codes)
    assert np.abs(fallen_back.audio - speech.audio).max() <= PCM16


@pytest.mark.parametrize("name", [DECODER, VOCODER])
@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_too_little_memory_is_an_error_whoever_chose_the_backend(monkeypatch, name, backend):
    plant(monkeypatch, name, OutOfMemory("It does not fit.", hint="Fewer slots."))
    with pytest.raises(OutOfMemory, match="does not fit"):
        TTSEngine.from_pretrained("tiny-random", backend=backend, **OPTIONS)
