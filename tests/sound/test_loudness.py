"""The loudness of a whole speech, checked with the standard's own tones."""

import sys

import numpy as np
import pytest
from tolerances import LIMITED, LOUDNESS_LU
from waveforms import tone, voice_like

from qwen_megakernel.errors import MissingPackageError, UsageError
from qwen_megakernel.sound.loudness import at_loudness, check_loudness

RATE = 24000


@pytest.mark.parametrize("target", [-40, -23, -16])
def test_a_tone_has_the_level_that_the_standard_gives_it(target: float):
    """EBU Tech 3341: 1 kHz at -23 dBFS in both channels has -23 LUFS; one channel has 3 LU less."""
    heard = at_loudness(tone(5, RATE, hertz=997, level=10**-1.5), RATE, target)
    peak = 20 * np.log10(np.abs(heard).max())
    assert peak == pytest.approx(target + 3, abs=LOUDNESS_LU)


def test_what_would_clip_is_turned_down():
    speech = voice_like(3, RATE)
    heard = at_loudness(speech, RATE, -5)
    assert len(heard) == len(speech)
    assert np.abs(heard).max() <= LIMITED


@pytest.mark.parametrize(
    "samples", [np.zeros(RATE, np.float32), tone(0.1, RATE, level=0.1), np.empty(0, np.float32)]
)
def test_what_has_no_loudness_stays_as_it_is(samples: np.ndarray):
    assert np.array_equal(at_loudness(samples, RATE, -16), samples)


@pytest.mark.parametrize("loudness", [0, -41, float("nan"), "loud", None])
def test_what_can_never_work_is_refused(loudness: object):
    with pytest.raises(UsageError, match="loudness is"):
        check_loudness(loudness)


def test_without_its_package_it_is_refused_with_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "loudness", None)
    with pytest.raises(MissingPackageError) as refused:
        check_loudness(-16)
    assert "[loudness]" in refused.value.hint
