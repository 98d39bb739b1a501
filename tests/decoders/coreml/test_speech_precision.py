"""A 16-bit speech decoder is refused, and the page has the noise that was measured with one."""

import json

import pytest
import speech_decoder_noise
from tolerances import COREML_NOISE_DB

from qwen_megakernel.cli.main import main

FOUND = json.loads(speech_decoder_noise.RESULT.read_text())["signal_to_noise_db"]


def test_a_16_bit_speech_decoder_is_refused_before_a_file_is_read(capsys):
    command = ["export", "coreml", "no/such-model", "--to", "x", "--speech-precision", "float16"]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "speech_precision is 'float16'" in told and "docs/coreml.md" in told


def test_the_noise_was_measured_of_a_trained_codec_and_at_the_released_shapes():
    assert set(FOUND) == set(speech_decoder_noise.MODELS) >= {"demo-voice", "random-0.6b"}
    # float32 leaves less than a step of 16 bits; float16 leaves more noise than that everywhere.
    assert all(each["float32"] > 98 > each["float16"] for each in FOUND.values())


@pytest.mark.ci
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_the_noise_is_what_the_result_says(load_checkpoint, precision):
    measured = speech_decoder_noise.signal_to_noise(load_checkpoint("tiny-random"), precision)
    if precision == "float16":
        assert abs(measured - FOUND["tiny-random"]["float16"]) < COREML_NOISE_DB
    else:  # rounding, which differs between CPUs
        assert measured > 98
