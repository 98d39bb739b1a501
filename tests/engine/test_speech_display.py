"""How an engine and a speech show themselves, and how a speech is kept and compared."""

import base64
import copy
import io
import pickle
import re

import numpy as np
import pytest
import soundfile
from tiny_speech import tiny_engine

from qwen_megakernel import audio
from qwen_megakernel.marking import COMMENT


def test_an_engine_and_a_speech_are_one_line():
    with tiny_engine("tiny-random", num_slots=2) as engine:
        speech = engine.synthesize("Hello.", seed=7, max_frames=2)
        shown = f"{engine.files.name}, {engine.backend} on {engine.device}, {engine.dtype_name}"
        assert repr(engine) == f"TTSEngine({shown}, num_slots=2)"
    assert repr(speech) == "Speech(0.16 s, 24000 Hz, length, seed 7)"


def test_a_speech_is_a_player_in_a_notebook():
    with tiny_engine("tiny-random") as engine:
        speech = engine.synthesize("Hello.", seed=7, max_frames=2)
    html = speech._repr_html_()
    data = re.search('src="data:audio/wav;base64,([^"]+)"', html)
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(data[1])), dtype="int16")
    assert rate == 24000 and len(samples) == len(speech.audio) and html.endswith(repr(speech))
    assert np.array_equal(samples, audio.to_int16(speech.audio))
    assert soundfile.SoundFile(io.BytesIO(base64.b64decode(data[1]))).comment == COMMENT


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
@pytest.mark.parametrize(
    "options",
    [{}, {"text_format": "ssml"}, {"text_format": "pauses"}, {"text_format": "script"}],
    ids=str,
)
def test_a_speech_may_go_to_another_process(copied, options):
    text = "aiden: One two. [pause 100ms] Three." if len(options) else "One two. Three."
    with tiny_engine("tiny-random") as engine:
        speech = engine.synthesize(text, seed=7, max_frames=30, **options)
    same = copied(speech)
    assert same.words == speech.words and same.segments == speech.segments and speech.words
    assert np.array_equal(same.audio, speech.audio) and np.array_equal(same.codes, speech.codes)
    assert speech == speech and speech != same and len({speech, same}) == 2
