"""Frames of flite's speech: pitch codes, the sound of frames, their times, and utterances."""

import dataclasses
import itertools

import numpy as np
import pytest
from fixtures import module_value, or_skip
from tolerances import (
    BAND_DECIBELS,
    ENVELOPE_SHARE,
    FRAME_PITCH_HZ,
    FRAME_PITCH_MEAN_HZ,
    FUNDAMENTAL,
    LOUD_SAMPLE,
    NEARLY_EXACT,
    NUM_PULSES,
    PULSE_GAP_SHARE,
    PULSE_PERIOD_SAMPLES,
    SILENCE,
)

from tools.demo_voice import codebooks, features, recipe, shards
from tools.demo_voice.flite import HOP_SECONDS, RATE, Flite, Segment, Spoken
from tools.demo_voice.speech import Speaker

TEXT = "Your table is ready."
ROWS = features.ROWS_PER_FRAME


flite = module_value(lambda: or_skip(Flite.shared))
synthesis = module_value(lambda flite: features.Synthesis(flite.filters))


def rows_of(flite: Flite, synthesis: features.Synthesis, text: str) -> features.Rows:
    spoken = flite(text)
    assert spoken is not None
    return features.analyse(spoken, text, synthesis)


# ---- pitch ---------------------------------------------------------------------------------------


def test_a_melody_comes_back_from_its_codes():
    time = np.arange(40 * ROWS) * HOP_SECONDS
    f0 = (100 + 20 * np.sin(2 * np.pi * 0.7 * time)).reshape(40, ROWS)
    codes = features.encode_pitch(f0, np.ones(40, bool))
    back = features.decode_pitch(codes)
    wanted = f0.reshape(40, features.SUBFRAMES, -1).mean(-1)
    assert np.corrcoef(back.ravel(), wanted.ravel())[0, 1] > 0.97
    assert abs((back - wanted).mean()) < FRAME_PITCH_MEAN_HZ
    assert np.abs(back - wanted).max() < FRAME_PITCH_HZ


def test_pulses_go_on_evenly_over_the_borders_of_frames():
    f0 = np.full((30, ROWS), 97.0)
    codes = features.encode_pitch(f0, np.ones(30, bool))
    where, periods = features.pulses(codes)
    gaps = np.diff(where)
    assert len(where) == pytest.approx(97 * 30 * features.FRAME_SECONDS, abs=NUM_PULSES)
    assert np.abs(gaps / (RATE / 97) - 1).max() < PULSE_GAP_SHARE
    assert np.abs(gaps - periods[1:]).max() < PULSE_PERIOD_SAMPLES


def test_a_frame_without_voice_has_no_pulse_and_starts_the_phase_again():
    is_voiced = np.array([True, False, True])
    codes = features.encode_pitch(np.full((3, ROWS), 100.0), is_voiced)
    assert codes[1] == features.NO_PITCH
    assert features.unpack_pitch(int(codes[2]))[0] == 0
    where, _ = features.pulses(codes)
    assert not ((where >= features.FRAME) & (where < 2 * features.FRAME)).any()


def test_every_code_says_what_it_was_made_of():
    assert features.NO_PITCH < 256
    phases, parts = range(features.PHASES), range(features.LEAST_PARTS, features.MOST_PARTS + 1)
    slopes = range(len(features.SLOPES_HZ))
    made = {
        features.pack_pitch(phase, part, slope): (phase, part, slope)
        for phase in phases
        for part in parts
        for slope in slopes
    }
    assert sorted(made) == list(range(features.NO_PITCH))
    for code, (phase, part, slope) in made.items():
        start, cycles, growth = features.unpack_pitch(code)
        assert (start, cycles) == pytest.approx((phase / 3, part / 3), abs=NEARLY_EXACT)
        wanted = features.SLOPES_HZ[slope] * features.FRAME_SECONDS
        assert growth == pytest.approx(wanted, abs=NEARLY_EXACT)


def test_the_vocoders_first_pitch_book_draws_the_fundamental_in_a_line():
    book = features.pitch_book(32)
    share = (np.arange(200) + 0.5) / 200
    codes = np.arange(features.NO_PITCH)
    waves = []
    for code in codes:
        waves.append(np.cos(2 * np.pi * features.phase(int(code), share)))
    drawn = book[codes] @ np.linalg.lstsq(book[codes], np.array(waves), rcond=None)[0]
    assert np.abs(drawn - waves).mean() < FUNDAMENTAL
    assert not book[features.NO_PITCH].any()


# ---- sound ---------------------------------------------------------------------------------------


def test_a_held_sound_has_flites_spectrum(flite, synthesis):
    spoken = flite(TEXT)
    row = int(next(s.end for s in spoken.segments if s.name == "l") / HOP_SECONDS) - 6
    number, pitch = 200, 24  # rows; thirds of periods in a frame: 100 Hz
    held = dataclasses.replace(
        spoken,
        f0=np.full(number, 100.0, np.float32),
        cepstrum=np.repeat(spoken.cepstrum[row : row + 1], number, axis=0),
        voiced=np.ones((number, 5), np.float32),
    )
    theirs = flite.sound(held.f0, held.cepstrum, held.voiced)
    values = synthesis.values(held)[:1]
    row = np.tile(values, features.SUBFRAMES)
    level = features.SLOPES_HZ.index(5.0)
    codes = np.full(12, features.pack_pitch(0, pitch, level), np.uint8)
    ours = synthesis.sound(np.repeat(row, 12, axis=0), codes)
    spectra = [
        _bands(theirs[RATE // 2 :][:4096], RATE) + 20 * np.log10(features.LOUDNESS),
        _bands(ours[recipe.SAMPLE_RATE // 2 :][:6144], recipe.SAMPLE_RATE),
    ]
    assert np.ptp(spectra[0]) > 40  # there are valleys to fill
    assert np.abs(spectra[0] - spectra[1]).max() < BAND_DECIBELS


def _bands(sound: np.ndarray, rate: int) -> np.ndarray:
    """Return decibels in 18 bands of 400 Hz; the windows of both rates last as long."""
    power = np.abs(np.fft.rfft(sound * np.hanning(len(sound)))) ** 2 / len(sound) ** 2
    hertz = np.arange(len(power)) * rate / len(sound)
    edges = np.arange(19) * 400 + 50
    return 10 * np.log10(
        [power[(hertz >= a) & (hertz < b)].sum() for a, b in itertools.pairwise(edges)]
    )


def test_silence_is_silent(synthesis):
    codes = np.full(3, features.NO_PITCH, np.uint8)
    assert synthesis.sound(np.repeat(features.silence(), 3, axis=0), codes).std() < SILENCE


def test_a_sentence_is_loud_enough_without_clipping_and_silent_around(flite, synthesis):
    frames = features.frames(rows_of(flite, synthesis, TEXT))
    sound = synthesis.sound(frames.features, frames.pitch)
    assert len(sound) == len(frames.pitch) * recipe.SAMPLES_PER_FRAME
    assert np.abs(sound).max() > LOUD_SAMPLE and not (np.abs(sound) >= 1).any()
    quiet = np.abs(sound) < 10 ** (-65 / 20)
    first, last = np.flatnonzero(~quiet)[[0, -1]]
    assert first <= 0.060 * recipe.SAMPLE_RATE
    assert len(sound) - last <= 0.120 * recipe.SAMPLE_RATE + recipe.SAMPLES_PER_FRAME


# ---- time ----------------------------------------------------------------------------------------


def spoken_at(*ends: float) -> Spoken:
    """Return a pause, then phonemes of words 0, 0, 1, 2, ..., with ends in seconds."""
    names = ["pau", *(f"p{i}" for i in range(len(ends) - 1))]
    words = [0, 0, *range(len(ends) - 2)]
    segments = [Segment(*item) for item in zip(names, ends, words, strict=True)]
    num_rows = round(ends[-1] / HOP_SECONDS)
    values = np.zeros((num_rows, features.NUM_CEPSTRUM), np.float32)
    starts = list(range(0, 5 * len(set(words)), 5))
    return Spoken(np.full(num_rows, 100.0), values, np.ones((num_rows, 5)), segments, starts)


def test_phonemes_begin_on_the_grid_in_order_and_none_is_lost():
    spoken = spoken_at(0.15, 0.171, 0.18, 0.3, 0.49, 0.9)
    places, words = features.place(spoken)
    assert len(places) % ROWS == 0 and (np.diff(places) > 0).all()
    onsets = [int(np.argmax(words == word)) for word in range(4)]
    grid = round(features.GRID_SECONDS / HOP_SECONDS)
    assert not any(row % grid for row in onsets)
    assert onsets[0] == round(features.LEAD_SECONDS / HOP_SECONDS)
    for word, begin in enumerate((0.15, 0.18, 0.3, 0.49)):
        assert places[onsets[word]] == pytest.approx(begin, abs=HOP_SECONDS)
        lag = onsets[word] - round((features.LEAD_SECONDS + begin - 0.15) / HOP_SECONDS)
        # Word 1 follows two phonemes that are shorter than the grid; word 2 is on time again.
        assert -(grid // 2) <= lag <= (3 * grid // 2 if word == 1 else grid // 2)
    tail = int((words[::-1] != shards.SILENCE).argmax())
    least = round(features.TAIL_SECONDS / HOP_SECONDS)
    assert least <= tail < least + ROWS


def test_a_question_rises_and_a_statement_falls(flite, synthesis):
    for mark, wanted in (("?", 1), (".", -1)):
        rows = rows_of(flite, synthesis, f"Is this the train to London{mark}")
        spoken = np.flatnonzero(rows.words != shards.SILENCE)
        end = rows.f0[spoken[-6:]].mean() - rows.f0[spoken].mean()
        assert wanted * end > 10, (mark, end)
    middle = rows_of(flite, synthesis, "Is it you? It is me.")
    last = np.flatnonzero(middle.words == 2)[-4:]
    assert middle.f0[last].mean() > middle.f0.mean() + 10


# ---- utterances ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def speaker(flite, synthesis, tmp_path_factory) -> Speaker:
    texts = (TEXT, "Is it ready?", "We will see you at nine.", "The children play outside.")
    frames = [features.frames(rows_of(flite, synthesis, text)).features for text in texts]
    data = np.concatenate([*frames, features.silence()])
    data = np.concatenate(
        [data + 0.1 * np.random.default_rng(i).standard_normal(data.shape) for i in range(6)]
    )
    fitted = codebooks.fit(data.astype(np.float32), num_components=24, num_books=3)
    path = tmp_path_factory.mktemp("codebooks") / "c.safetensors"
    fitted.save(path)
    return Speaker(path)


def test_a_text_without_sound_is_left_out(speaker):
    (spoken,) = speaker.utterances([("train", TEXT), ("train", "...")])
    assert spoken.text == TEXT and spoken.codes.shape == (len(spoken.words), 4)
    assert spoken.words[0] != shards.SILENCE or spoken.words[1] != shards.SILENCE


def test_the_codes_of_silence_are_those_of_a_silent_frame(speaker):
    silence = speaker._codebooks.silence
    frames = features.silence()
    assert silence.dtype == np.uint8 and len(silence) == 4
    np.testing.assert_array_equal(silence, speaker._codes(frames, np.array([features.NO_PITCH]))[0])
    assert not features.decode_pitch(silence[None, -1]).any()


def test_codes_hold_the_envelope_and_last_the_pitch(speaker, flite, synthesis):
    codes, sound = speaker.pair(TEXT)
    assert len(sound) == len(codes) * recipe.SAMPLES_PER_FRAME
    frames = features.frames(rows_of(flite, synthesis, TEXT))
    if len(frames.pitch) == len(codes):
        np.testing.assert_array_equal(codes[:, -1], frames.pitch)
        back = speaker._codebooks.decode(codes)
        assert (
            np.abs(back - frames.features).mean() < ENVELOPE_SHARE * np.abs(frames.features).mean()
        )
