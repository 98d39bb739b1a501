"""Misspelt names of options in Python: the error names the nearest of all options."""

import pytest

from qwen_megakernel import TTSEngine
from qwen_megakernel.errors import UsageError, check_choice
from qwen_megakernel.sheen.engine import SheenEngine
from qwen_megakernel.speech_options import SpeechOptions


@pytest.mark.parametrize("engine", [TTSEngine, SheenEngine])
@pytest.mark.parametrize(("name", "meant"), [("slots", "num_slots"), ("threads", "num_threads")])
def test_an_option_of_an_engine_is_corrected_before_a_model_is_looked_for(engine, name, meant):
    with pytest.raises(UsageError, match=f"no option {name}") as caught:
        engine.from_pretrained("no-such-model", **{name: 4})
    assert caught.value.hint == f'Did you mean "{meant}"?' and "warmup" in caught.value.why


def test_an_option_of_speech_is_corrected():
    with pytest.raises(UsageError, match="no option sped, voise") as caught:
        SpeechOptions().override(sped=2, voise="demo")
    assert caught.value.hint == 'Did you mean "speed"? Did you mean "voice"?'
    assert "lexicon" in caught.value.why
    with pytest.raises(UsageError) as caught:
        SpeechOptions().override(nothing_like_it=2)
    assert caught.value.hint == ""


def test_a_value_is_corrected():
    with pytest.raises(UsageError) as caught:
        check_choice("backend", "kernal", ("kernel", "cpu"))
    assert caught.value.hint == 'Did you mean "kernel"?'
