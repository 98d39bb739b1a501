"""flite as the demonstration voice's teacher: values, times, and its own sound of them."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile
from fixtures import or_skip
from tolerances import FLITE_END_SECONDS, FLITE_ENERGY_SHARE

from tools.demo_voice.flite import HOP_SECONDS, NUM_CEPSTRUM, NUM_VOICED, RATE, VOICES, Flite

TEXT = "Well, your table for 2 is ready. Can you tell me where it is?"


@pytest.fixture(scope="module", params=VOICES[:2])
def flite(request: pytest.FixtureRequest) -> Flite:
    return or_skip(Flite, request.param)


def test_the_values_have_a_row_every_five_milliseconds_and_phonemes_in_order(flite):
    spoken = flite(TEXT)
    num_rows = len(spoken.f0)
    assert spoken.cepstrum.shape == (num_rows, NUM_CEPSTRUM)
    assert spoken.voiced.shape == (num_rows, NUM_VOICED)
    ends = [segment.end for segment in spoken.segments]
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(num_rows * HOP_SECONDS, abs=FLITE_END_SECONDS)
    is_pitched = spoken.f0 > 0
    assert 0.3 < is_pitched.mean() < 0.9
    assert spoken.f0[is_pitched].min() > 50 and spoken.f0.max() < 300


def test_a_pitch_that_the_smoothing_makes_infinite_is_none():
    flite = or_skip(Flite.shared, "rms")
    spoken = flite("If there is a bridge in the car, we learned to swim.")
    assert np.isfinite(spoken.f0).all() and spoken.f0.max() < 300


def test_every_phoneme_names_its_word_and_every_word_its_place_in_the_text(flite):
    spoken = flite(TEXT)
    names = [TEXT[start:].split()[0].strip(",.?") for start in spoken.word_starts]
    assert names == [word.strip(",.?") for word in TEXT.split()]
    words = [segment.word for segment in spoken.segments if not segment.is_pause]
    assert words == sorted(words) and set(words) == set(range(len(names)))
    number = [s.name for s in spoken.segments if s.word == names.index("2") and not s.is_pause]
    assert number == ["t", "uw"]


def test_its_sound_of_the_values_is_what_the_program_writes(flite, tmp_path):
    program = shutil.which("flite")
    if program is None:
        pytest.skip("the program flite is not installed")
    voice = next(name for name in VOICES if Flite.shared(name)._voice == flite._voice)
    path = Path(tmp_path) / "said.wav"
    subprocess.run([program, "-voice", voice, "-t", TEXT, "-o", path], check=True)
    theirs, rate = soundfile.read(path, dtype="float32")
    spoken = flite(TEXT)
    ours = flite.sound(spoken.f0, spoken.cepstrum, spoken.voiced)
    assert rate == RATE and len(ours) == len(theirs)
    # The noise in both is drawn anew, so energies are compared, in windows of 20 ms.
    size = RATE // 50
    cut = len(ours) // size * size
    loud = [np.log10(s[:cut].reshape(-1, size).std(1) + 1e-3) for s in (ours, theirs)]
    assert np.corrcoef(loud)[0, 1] > 0.98
    assert ours.std() == pytest.approx(theirs.std(), rel=FLITE_ENERGY_SHARE)


def test_there_is_nothing_to_hear_in_marks_alone(flite):
    assert flite("...") is None


def test_an_unknown_voice_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="rms, slt, awb"):
        Flite("kal")
