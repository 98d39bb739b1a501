"""Text that a model cannot read gives one warning, from Python and over HTTP."""

import pytest
from live_server import serving, sse
from speech_socket import session, speak

from qwen_megakernel import TTSEngine
from qwen_megakernel.text.unreadable import TextWatch

RELEASED = ["chinese", "english", "german", "japanese", "korean", "russian"]
CHINESE = "the text has Chinese characters (你好), which this model does not read; it knows english"
MARKUP = "the text has markup (<speak>), which is not obeyed but read aloud"


@pytest.fixture(scope="module")
def demo():
    with TTSEngine.from_pretrained("demo-voice", backend="torch", warmup=False) as tts:
        yield tts


@pytest.mark.parametrize(
    ("languages", "text", "warnings"),
    [
        (["english"], "你好", [CHINESE]),
        (["english"], "<speak>Hello.</speak>", [MARKUP]),
        (["english"], "Say 你好<speak> 你", [CHINESE.replace("你好", "你好你"), MARKUP]),
        (None, "你好 <speak>", [MARKUP]),
        (RELEASED, "你好, こんにちは, 안녕, привет, café, Straße", []),
        (["english"], "“It’s 3 < 5”, café – naïve: 5 µm, 20 °C, €3 … <ok> 🙂 x<sub", []),
        (RELEASED, "α-particles and नमस्ते", ["Greek letters (α)", "Devanagari letters (नमस"]),
    ],
)
def test_foreign_scripts_and_markup_are_named(languages, text, warnings):
    found = TextWatch(languages).look(text)
    assert len(found) == len(warnings)
    assert all(expected in warning for warning, expected in zip(found, warnings, strict=True))


def test_a_tag_may_come_in_pieces_and_is_named_once():
    watch = TextWatch(["english"])
    pieces = ["Hello <bre", "ak time=", "'1s'/> and ", "<break/>", " 你", "好"]
    found = [warning for piece in pieces for warning in watch.look(piece)]
    assert [warning.split(" (")[1][:8] for warning in found] == ["<break t", "你), whic"]


def test_the_engine_warns_of_whole_and_of_fed_text(demo, caplog):
    with demo.stream("<speak>你好</speak>", max_frames=1) as stream:
        assert stream.warnings == [CHINESE, MARKUP]
    assert caplog.messages == [text[0].upper() + text[1:] + "." for text in (CHINESE, MARKUP)]
    with demo.stream(text_open=True, max_frames=1) as stream:
        stream.feed("Hello ")
        assert stream.warnings == []
        stream.feed("你好")
        assert stream.warnings == [CHINESE]


async def test_the_server_warns_its_clients(demo):
    with serving(demo) as live:
        cold = live.speak("Hello.", voice="demo", max_new_tokens=3, temperature=0.1)
        assert cold.headers["x-warning"].startswith("temperature is 0.1, less than half of")
        answer = live.speak("你好 there", voice="demo", max_new_tokens=3, stream=False)
        assert answer.headers["x-warning"].startswith("the text has Chinese characters (\\u4f60")
        events = sse(
            live.speak("你好 there", voice="demo", max_new_tokens=3, stream_format="sse").text
        )
        assert events[-1]["warnings"] == [CHINESE]
        assert "x-warning" not in live.speak("Hello.", voice="demo", max_new_tokens=3).headers
        async with session(live, {"voice": "demo", "max_new_tokens": 3}) as socket:
            (start, done, _), _ = await speak(socket, "你好 there. ", "<speak>")
        assert CHINESE in start["warnings"] and done["warnings"] == [CHINESE, MARKUP]
