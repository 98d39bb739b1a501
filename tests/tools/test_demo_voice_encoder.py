"""The demonstration voice's codec encoder: what it learns from, and what it hears."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from fixtures import module_fixture, module_value, or_skip
from tiny_speech import tiny_engine
from tolerances import FUNDAMENTAL_RADIANS, HEARD_PITCH_SEMITONES, HEARD_SOUNDS, PITCH_CODES, PULSES

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.checkpoint.loading import DEMO_VOICE
from qwen_megakernel.cloning.codec_encoder import CodecEncoder
from qwen_megakernel.cloning.voice_library import VoiceLibrary
from tools.demo_voice import features, listening
from tools.demo_voice.codebooks import Codebooks
from tools.demo_voice.features import FRAME_SECONDS, NO_PITCH, PHASES, ROWS_PER_FRAME
from tools.demo_voice.recipe import SAMPLES_PER_FRAME

TEXT = "Your table for two is ready. Can you tell me where it is?"


recordings = module_value(lambda: or_skip(listening.Listening, 1))
engine = module_fixture(lambda: tiny_engine(DEMO_VOICE, device="cpu"))


def test_recordings_differ_and_keep_their_words(recordings):
    heard = [recordings(TEXT) for _ in range(6)]
    for each in heard:
        num_frames = len(each.pitch)
        assert each.features.shape == (num_frames, features.NUM_FEATURES)
        assert each.sound.shape == (num_frames * SAMPLES_PER_FRAME,)
        assert each.sound.any() and np.array_equal(each.sound, each.sound.clip(-1, 1))
    assert len({len(each.pitch) for each in heard}) > 3  # tempo
    silent = (heard[0].features == features.silence()).all(1)
    assert silent.any() and not silent.all()


@pytest.mark.parametrize("hertz", [70, 100.5, 130])
def test_a_frame_of_pitch_begins_where_the_one_before_ends(hertz):
    f0 = np.full(12 * ROWS_PER_FRAME, hertz)
    phase = 0.4 + np.concatenate([[0], np.cumsum(f0) * FRAME_SECONDS / ROWS_PER_FRAME])
    codes = listening._pitch_codes(phase, f0, np.ones(len(f0), bool))
    parts = [features.unpack_pitch(int(code)) for code in codes]
    for (start, count, _), (following, *_) in pairwise(parts):
        assert (start + count - following + 1 / (2 * PHASES)) % 1 < 1 / PHASES
    assert features.decode_pitch(codes).mean() == pytest.approx(hertz, rel=PITCH_CODES)
    silent = listening._pitch_codes(phase, f0, np.zeros(len(f0), bool))
    assert (silent == NO_PITCH).all()


def test_pulses_lie_where_the_phase_is_whole():
    phase = 0.25 + np.cumsum(np.full(200, 0.5))
    where, periods = listening._pulses(phase)
    edges = np.arange(200) * 80  # samples of 5 ms at 16 kHz
    found = np.interp(where, edges, phase)
    assert np.abs(found - np.round(found)).max() < PULSES
    assert np.abs(periods - 160).max() < PULSES


def test_the_phase_is_that_of_the_fundamental_upside_down_too(recordings, monkeypatch):
    monkeypatch.setattr(listening, "PLAIN_SHARE", 1.0)
    monkeypatch.setattr(listening, "HIGH_SHARE", 0.0)
    monkeypatch.setattr(listening, "SHARES", (1.0, 0.0, 0.0))
    heard = [recordings(TEXT) for _ in range(8)]
    assert {np.sign((each.sound**3).sum()) for each in heard} == {-1, 1}
    found = np.array([_fundamental(each) for each in heard])
    turns = np.angle(found / found[0])
    assert np.abs(turns).max() < FUNDAMENTAL_RADIANS


def _fundamental(heard: listening.Heard) -> complex:
    """Return the fundamental, turned back by the codes' phase."""
    share = np.arange(SAMPLES_PER_FRAME) / SAMPLES_PER_FRAME
    frames = heard.sound.reshape(-1, SAMPLES_PER_FRAME) * np.hanning(SAMPLES_PER_FRAME)
    return sum(
        frame @ np.exp(-2j * np.pi * features.phase(int(code), share))
        for frame, code in zip(frames, heard.pitch, strict=True)
        if code < NO_PITCH
    )


@pytest.mark.ci
def test_its_codes_are_those_of_the_official_encoder(official_model, engine):
    samples = engine.synthesize(TEXT, seed=1).audio
    loaded = loading.load(loading.resolve(DEMO_VOICE))
    ours = CodecEncoder(loaded.codec_config, loaded.load_prefix("encoder.")).encode(samples)
    codec = official_model(DEMO_VOICE).model.speech_tokenizer
    assert np.array_equal(ours, codec.encode(samples, sr=24000).audio_codes[0].numpy())


def test_it_hears_the_voices_own_speech(engine):
    """The sounds of most frames, and the melody."""
    library, books = VoiceLibrary(loading.load(loading.resolve(DEMO_VOICE))), Codebooks.load()
    speech = engine.synthesize(TEXT, seed=1)
    heard = library.encode(speech.audio, speech.sample_rate)[: len(speech.codes)]
    said = speech.codes[: len(heard)]
    distance = np.linalg.norm(books.latents(heard[:, :-1]) - books.latents(said[:, :-1]), axis=1)
    assert np.mean(distance < books.unit / 2) > HEARD_SOUNDS
    ours, theirs = (features.decode_pitch(codes[:, -1]) for codes in (heard, said))
    both = (ours > 0) & (theirs > 0)
    assert both.sum() > len(both) / 3
    away = 12 * np.abs(np.log2(ours[both] / theirs[both]))
    assert np.median(away) < HEARD_PITCH_SEMITONES
    shuffled = torch.randperm(len(heard), generator=torch.Generator().manual_seed(0)).numpy()
    wrong = books.latents(heard[shuffled, :-1]) - books.latents(said[:, :-1])
    assert np.mean(np.linalg.norm(wrong, axis=1) < books.unit / 2) < HEARD_SOUNDS / 2
