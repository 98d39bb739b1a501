"""What is measured of a vocoder, and how its first layers begin."""

import numpy as np
import pytest
import torch
from fixtures import or_skip
from tolerances import (
    DECODED_WAVE,
    GLIDE_SHARE,
    LEVEL_DECIBELS,
    LEVEL_LUFS,
    LEVEL_SAMPLE,
    NEARLY_EXACT,
    OCTAVE_SEMITONES,
)

from qwen_megakernel.checkpoint.loading import DEMO_VOICE_FOLDER
from tools.demo_voice import codebooks, evaluate, features, quality, recipe, texts, vocoder_start

RATE = recipe.SAMPLE_RATE


def test_levels_are_those_of_a_known_sound():
    time = np.arange(2 * RATE) / RATE
    sound = (0.1 * np.sqrt(2) * np.sin(2 * np.pi * 997 * time)).astype(np.float32)
    found = quality.levels(sound)
    assert found["loudness"] == pytest.approx(-20, abs=LEVEL_LUFS)  # BS.1770 of a sine near 1 kHz
    assert found["peak"] == pytest.approx(0.1414, abs=LEVEL_SAMPLE)
    assert found["clipped"] == 0 and abs(found["offset"]) < LEVEL_SAMPLE
    assert found["quietest"] == pytest.approx(-20, abs=LEVEL_DECIBELS)
    sound[:RATE] = 0.01
    sound[0] = 1
    found = quality.levels(sound)
    assert found["clipped"] == 1 and found["offset"] == pytest.approx(0.005, abs=LEVEL_SAMPLE)
    assert found["quietest"] == pytest.approx(-40, abs=LEVEL_DECIBELS)


def test_the_pitch_of_a_glide_is_found():
    time = np.arange(2 * RATE) / RATE
    hertz = 90 + 30 * time
    phase = 2 * np.pi * np.cumsum(hertz) / RATE
    sound = sum(np.sin(k * phase) / k for k in range(1, 12)) * 0.2
    found = quality.pitch(sound)[20:-20]
    wanted = hertz[:: quality.PITCH_HOP][20:][: len(found)]
    assert np.abs(found / wanted - 1).max() < GLIDE_SHARE


def test_a_melody_is_compared_in_tones_and_where_the_teacher_is_voiced():
    wanted = 100 * 2 ** (0.3 * np.sin(np.arange(200) / 9))
    is_voiced = np.arange(200) % 50 > 10
    same = features.compare_melodies(np.where(is_voiced, wanted, 50), wanted, is_voiced)
    assert same == pytest.approx(
        {"correlation": 1, "median_error": 0, "range": 1}, abs=NEARLY_EXACT
    )
    octave = features.compare_melodies(2 * np.sqrt(wanted * 100), wanted, is_voiced)
    assert octave["correlation"] == pytest.approx(1, abs=NEARLY_EXACT) and octave[
        "range"
    ] == pytest.approx(0.5, abs=NEARLY_EXACT)
    assert octave["median_error"] == pytest.approx(12, abs=OCTAVE_SEMITONES)
    flat = features.compare_melodies(np.full(200, 100.0), wanted, is_voiced)
    assert flat["correlation"] == 0 and flat["range"] == 0


def test_a_reading_is_heard_with_its_melody_and_its_questions():
    rng = np.random.default_rng(0)
    books = torch.from_numpy(rng.standard_normal((2, 256, 8)).astype(np.float32)) * 20
    size = torch.ones(8)
    reader = object.__new__(evaluate.Reader)
    reader._codebooks = codebooks.Codebooks(0 * size, torch.eye(8), books, size)
    rising = np.linspace(80, 125, 40)[:, None] * np.ones(16)
    up, down = (
        features.encode_pitch(hertz, np.ones(40, bool))[:, None] for hertz in (rising, rising[::-1])
    )
    envelope = rng.integers(0, 256, (40, 2))
    reference = np.concatenate([envelope, up], axis=1)

    def summary(codes: np.ndarray) -> dict[str, float]:
        pitches = reader._pitches(codes, reference)
        said = evaluate.Reading("written", "Is it?", codes, True, 0.0, 1.0, pitches)
        found = evaluate.summary([said])
        return found["melody"] | {"questions_rise": found["questions_rise"]}

    slow = summary(np.repeat(reference, 2, axis=0))
    assert slow["correlation"] > 0.98 and slow["questions_rise"] == 1
    falling = summary(np.concatenate([envelope, down], axis=1))
    assert falling["correlation"] < -0.95 and falling["questions_rise"] == 0


def test_the_same_sound_is_alike_and_noise_is_not():
    rng = np.random.default_rng(0)
    sound = rng.standard_normal(RATE).astype(np.float32) * np.linspace(0.01, 0.3, RATE)
    assert quality.alike(sound, sound)["mel"] == 0
    assert quality.alike(np.zeros_like(sound), sound)["mel"] > 1


def test_a_checkpoints_vocoder_is_read_with_its_own_codes():
    vocoder = quality.load_vocoder(DEMO_VOICE_FOLDER)
    codes = np.zeros((3, recipe.NUM_CODEBOOKS), np.int64)
    assert len(vocoder.decode(codes)) == 3 * recipe.SAMPLES_PER_FRAME


def test_the_shipped_vocoder_makes_the_sound_of_its_codes():
    from tools.demo_voice.speech import Speaker

    vocoder = quality.load_vocoder(DEMO_VOICE_FOLDER)
    speaker = or_skip(Speaker, codebooks.SHIPPED)
    distances = []
    for text in texts.written_for_development()[:4]:
        codes, wanted = speaker.pair(text)
        found = vocoder.decode(codes.astype(np.int64))
        distances.append(np.abs(found - wanted).mean() / np.abs(wanted).mean())
    assert np.mean(distances) < DECODED_WAVE, distances


@pytest.mark.ci
def test_the_first_layers_learn_the_phase(official_package):
    from tools.demo_voice import train_vocoder

    rng = np.random.default_rng(0)
    frames = rng.standard_normal((600, features.NUM_FEATURES)).astype(np.float32)
    fitted = codebooks.fit(frames, num_books=2, num_components=24)
    pitch = rng.integers(0, features.NO_PITCH, len(frames))
    codes = torch.from_numpy(np.concatenate([fitted.encode(frames), pitch[:, None]], axis=1))
    books = train_vocoder.initial_books(fitted)
    decoder = train_vocoder.new_decoder(books, seed=0)
    before = {name: value.clone() for name, value in decoder.state_dict().items()}
    errors = vocoder_start.teach(decoder, fitted, list(codes.long().split(60)), 60, seed=0)
    assert np.mean(errors[:3]) > 0.9 and np.mean(errors[-5:]) < 0.85, errors
    changed = [
        name for name, value in decoder.state_dict().items() if (value != before[name]).any()
    ]
    assert "decoder.1.block.1.conv.weight" in changed
    assert not any(name.startswith(("decoder.2.", "decoder.6.")) for name in changed)


def test_targets_hold_the_phase_of_each_code_and_the_envelope():
    books = torch.zeros(1, 256, 2)
    books[0, 1] = torch.tensor([1.0, 0.0])
    components = torch.zeros(features.NUM_FEATURES, 2)
    components[0, 0] = components[1, 1] = 1
    size = torch.ones(features.NUM_FEATURES)
    targets = vocoder_start.Targets(codebooks.Codebooks(0 * size, components, books, size))
    code = features.pack_pitch(1, 24, 0)
    rows = targets(torch.tensor([[1, code], [0, features.NO_PITCH]]))
    assert rows.shape == (2, 32, 5 + features.NUM_VALUES)
    angle = torch.atan2(rows[0, :, 1], rows[0, :, 0]) / (2 * np.pi) % 1
    first = features.phase(code, np.array([0.5 / 32]))[0]
    assert float(angle[0]) == pytest.approx(first, abs=NEARLY_EXACT)
    assert not rows[1, :, :5].any() and (rows[0, :, 4] == 1).all()
    assert rows[0, 0, 5] > rows[0, 31, 5]  # the first subframe's first value is the one that is set
