"""The watermark of an engine: every sample it streams, whatever the request, and nothing else."""

import numpy as np
import pytest
from tiny_speech import TEXT, tiny_engine
from tolerances import PCM16_STEP

from qwen_megakernel import TTSEngine
from qwen_megakernel.audio import to_float32, to_int16
from qwen_megakernel.errors import UsageError
from qwen_megakernel.marking import MarkKey
from qwen_megakernel.sound.mark_detector import find_marks
from qwen_megakernel.sound.watermark import Watermark

KEY = MarkKey(bytes(range(32)), operator=258)
VOICE = {"voice": "aiden", "seed": 1}


def samples(tts: TTSEngine, text: str, **options) -> np.ndarray:
    with tts.stream(text, **VOICE, **options) as stream:
        return np.concatenate([chunk.samples for chunk in stream])


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (TEXT, {}),
        (TEXT, {"chunk_frames": 3}),
        (TEXT, {"speed": 1.5, "sample_rate": 8000}),
        (f"{TEXT} [pause 300ms] {TEXT}", {"text_format": "pauses"}),
    ],
    ids=str,
)
def test_every_sample_gets_the_mark_and_codes_stay(text: str, options: dict):
    with tiny_engine(max_frames=8) as plain_tts, tiny_engine(max_frames=8, mark=KEY) as marking_tts:
        plain = samples(plain_tts, text, **options)
        marked = samples(marking_tts, text, **options)
    by_hand = Watermark(KEY, options.get("sample_rate", 24000)).push(to_float32(plain))
    # A chain's float samples are rounded once with the mark, here also once before it.
    assert np.abs(to_int16(by_hand).astype(int) - marked).max() <= PCM16_STEP
    assert not np.array_equal(plain, marked)


def test_a_stream_of_five_seconds_names_its_operator():
    with tiny_engine(max_frames=70, mark=KEY) as tts:
        speech = tts.synthesize(TEXT, **VOICE)
    (found,) = find_marks(speech.audio, speech.sample_rate, KEY.secret)
    assert found.operator == KEY.operator


def test_a_bad_key_is_refused_before_a_model_is_found(tmp_path):
    with pytest.raises(UsageError, match="Cannot read the key"):
        TTSEngine.from_pretrained("no/such-model", mark=tmp_path / "none.key")
    for value in (True, False, 258, KEY.secret):
        with pytest.raises(UsageError, match=r"^mark is .*; it must be a Marking, "):
            TTSEngine.from_pretrained("no/such-model", mark=value)
