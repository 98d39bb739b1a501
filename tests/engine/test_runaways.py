"""Speech that does not end by itself is stopped with a reason, whatever its chunks."""

from dataclasses import replace

import pytest
import torch
from tiny_speech import TEXT, VOICE

from qwen_megakernel import TTSEngine
from qwen_megakernel.engine import runaway_guard


class Planted:
    """A decoder that never ends and draws what `codes` returns; all else is the real decoder."""

    def __init__(self, decoder, codes):
        self._decoder, self._codes, self._frame = decoder, codes, 0

    def __getattr__(self, name):
        return getattr(self._decoder, name)

    def launch(self, slots, num_frames):
        result = self._decoder.step(slots, num_frames)
        for index in range(num_frames):
            result.codes[:, index] = self._codes(self._frame + index)
        self._frame += num_frames
        planted = type(result)(result.codes, (num_frames,) * len(slots), (False,) * len(slots))
        return lambda: planted


@pytest.fixture
def runaway(tts, monkeypatch):
    def plant(codes):
        stages = tts._loop.stages
        planted = replace(stages, decoder=Planted(stages.decoder, codes))
        monkeypatch.setattr(tts._loop, "stages", planted)

    return plant


@pytest.mark.parametrize("chunk_frames", [1, 4, 10])
def test_a_repeating_runaway_is_cut_at_the_same_frame_in_any_chunks(tts, runaway, chunk_frames):
    runaway(lambda frame: 5 + frame % 3)
    speech = tts.synthesize(TEXT * 9, voice=VOICE, split="off", chunk_frames=chunk_frames, seed=1)
    assert speech.finish_reason == "repeat"
    assert len(speech.codes) == runaway_guard.REPEAT_FRAMES - 1
    assert len(speech.audio) == len(speech.codes) * 1920


def test_a_runaway_that_varies_is_cut_by_its_texts_budget(tts, runaway):
    runaway(lambda frame: (frame * 7919) % 2000)
    speech = tts.synthesize("Hi.", voice=VOICE, seed=1)
    num_tokens = len(tts._tokenizer.encode("Hi.").body)
    assert speech.finish_reason == "length"
    budget = runaway_guard.SPARE_FRAMES + runaway_guard.FRAMES_PER_TEXT_TOKEN * num_tokens
    assert len(speech.codes) == budget


def test_a_silent_runaway_is_cut_at_the_same_frame_for_every_chunking(tts, runaway, monkeypatch):
    vocoder, step = tts._loop.stages.vocoder, tts._loop.stages.vocoder.step
    monkeypatch.setattr(vocoder, "step", lambda *given: torch.zeros_like(step(*given)))
    lengths = []
    for chunk_frames in (1, 7, 10):
        runaway(lambda frame: (frame * 7919) % 2000)
        speech = tts.synthesize(TEXT, voice=VOICE, seed=1, chunk_frames=chunk_frames)
        assert speech.finish_reason == "silence"
        lengths.append(len(speech.codes))
    assert lengths == [runaway_guard.SILENT_FRAMES - 1] * 3


def plant(loaded, **tensors):
    """A copy of a checkpoint in which some tensors are changed by a function."""
    changed = {"talker": dict(loaded.talker), "codec_decoder": dict(loaded.codec_decoder)}
    for where, changes in tensors.items():
        for name, change in changes.items():
            changed[where][name] = change(changed[where][name].clone())
    return replace(loaded, **changed)


EOS = 2150  # codec_eos_token_id of tiny-random and of every release


def without_eos(head):
    head[EOS] = 0  # no longer the best of 2048 random logits
    return head


@pytest.mark.parametrize(
    ("reason", "tensors"),
    [
        ("length", {"talker": {"codec_head.weight": without_eos}}),
        # All logits equal: greedy decoding holds code 0 for ever.
        ("repeat", {"talker": {"codec_head.weight": torch.zeros_like}}),
        (
            "silence",
            {
                "talker": {"codec_head.weight": without_eos},
                "codec_decoder": {
                    "decoder.6.conv.weight": torch.zeros_like,
                    "decoder.6.conv.bias": torch.zeros_like,
                },
            },
        ),
    ],
)
def test_a_runaway_checkpoint_is_stopped_for_its_reason(load_checkpoint, reason, tensors):
    loaded = plant(load_checkpoint("tiny-random"), **tensors)
    with TTSEngine(loaded, backend="torch", warmup=False) as engine:
        greedy = {"do_sample": False, "subtalker_do_sample": False, "repetition_penalty": 1.0}
        text = "Hi there." if reason == "length" else TEXT * 3
        speech = engine.synthesize(text, voice=VOICE, seed=1, split="off", **greedy)
        num_tokens = len(engine._tokenizer.encode(text).body)
    assert speech.finish_reason == reason
    assert len(speech.audio) == len(speech.codes) * 1920
    expected = {
        "length": runaway_guard.SPARE_FRAMES + runaway_guard.FRAMES_PER_TEXT_TOKEN * num_tokens,
        "repeat": runaway_guard.REPEAT_FRAMES - 1,
        "silence": runaway_guard.SILENT_FRAMES - 1,
    }
    assert len(speech.codes) == expected[reason]
