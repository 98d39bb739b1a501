"""Text that a model cannot read gives one warning, from Python and over HTTP."""

import sys
from urllib.parse import unquote

import pipelines
import pytest
import regex
import wyoming_client
from fixtures import module_fixture
from live_server import serving, sse
from speech_socket import session, speak
from wyoming.audio import AudioStop
from wyoming.tts import Synthesize

from qwen_megakernel import TTSEngine
from qwen_megakernel.errors import EmptyText, TextTooLong
from qwen_megakernel.text.unreadable import TextWatch, script_of

# Scripts whose names differ between Unicode's table and its names of letters.
OTHERWISE = {"CJK": "Han", "HENTAIGANA": "Hiragana", "CANADIAN": "Canadian_Aboriginal"}
OTHERWISE |= {"EGYPTIAN": "Egyptian_Hieroglyphs", "ANATOLIAN": "Anatolian_Hieroglyphs"}
OTHERWISE |= {"MEROITIC HIEROGLYPHIC": "Meroitic_Hieroglyphs"}

RELEASED = ["chinese", "english", "german", "japanese", "korean", "russian"]
CHINESE = "the text has Chinese characters (你好), which this model does not read; it knows english"
GEORGIAN = CHINESE.replace("Chinese characters (你好)", "Georgian letters (აბგ)")
MARKUP = (
    "the text has markup (<speak>), which is not obeyed but read aloud; text_format ssml obeys it"
)
PAUSE = "text_format pauses obeys [pause 1.5s] and [pause 500ms]"

demo = module_fixture(lambda: TTSEngine.from_pretrained("demo-voice", backend="cpu", warmup=False))


@pytest.mark.parametrize("word", ["abcde" * 40, "iVBORw0KGgo=" * 17, "ж" * 200])
def test_a_word_that_is_none_is_named_once(word):
    watch = TextWatch(None)
    assert watch.look(f"Short words, and {word[:199]}") == []
    (warning,) = watch.look(f"Look: {word} and on")
    assert f"{len(word)} characters without a space ({word[:10]}...)" in warning
    assert watch.look(word) == []
    assert TextWatch(None).look("我" * 300) == []  # written without spaces


@pytest.mark.parametrize(
    ("languages", "text", "warnings"),
    [
        (["english"], "你好", [CHINESE]),
        (["english"], "<speak>Hello.</speak>", [MARKUP]),
        (["english"], "Say 你好<speak> 你", [CHINESE.replace("你好", "你好你"), MARKUP]),
        (None, "你好 <speak>", [MARKUP]),
        (None, "Wait [pause 1.5s] <speak>", [PAUSE, MARKUP]),
        (None, "Wait [Pause abc] now, [pauses] and [see 2].", [PAUSE]),
        (RELEASED, "你好, こんにちは, 안녕, привет, café, Straße", []),
        (["english"], "“It’s 3 < 5”, café – naïve: 5 µm, 20 °C, €3 … <ok> 🙂 x<sub", []),
        (["english"], "აბგ", ["Georgian letters (აბგ)"]),
        (RELEASED, "բարև ಕನ್ನಡ አማርኛ", ["Armenian letters (բարև", "Kannada letters", "Ethiopic"]),
        (["english"], "ᐊᐃ ខ្មែរ ᏣᎳᎩ", ["Canadian letters", "Khmer letters", "Cherokee letters"]),
        (["english"], "ﬁ ª ⁿ Ａ 𝐀 ℝ µ \u2126 ː ㏒", []),  # Latin, or signs without a script
        (["chinese"], "ㄅㄆㄇ", []),
        (RELEASED, "α-particles and नमस्ते", ["Greek letters (α)", "Devanagari letters (नमस"]),
    ],
)
def test_foreign_scripts_and_markup_are_named(languages, text, warnings):
    found = TextWatch(languages).look(text)
    assert len(found) == len(warnings)
    assert all(expected in warning for warning, expected in zip(found, warnings, strict=True))


STYLED = "Ｈｅｌｌｏ １ 𝐦𝐲 𝟏"


@pytest.mark.parametrize(
    ("languages", "is_read", "named"),
    [(["english"], False, 1), (["english"], True, 0), (RELEASED, False, 0), (None, False, 0)],
)
def test_letters_in_another_style_are_named_where_nothing_makes_them_plain(
    languages, is_read, named
):
    found = TextWatch(languages, is_read=is_read).look(f"Say: {STYLED} ℋ")
    assert len(found) == named
    for warning in found:
        assert warning.startswith("the text has full-width or styled letters (Ｈｅｌｌｏ１𝐦𝐲𝟏ℋ), ")
        assert warning.endswith("it knows english; normalize on makes plain letters of them")


def test_letters_in_another_style_are_heard_named_or_refused(demo):
    for normalize in ("off", "on"):
        with demo.stream(f"Say {STYLED}", normalize=normalize, max_frames=1) as stream:
            assert len(stream.text.warnings) == (normalize == "off")
    with demo.stream(STYLED, normalize="on", max_frames=1) as stream:
        assert stream.text.spoken == "Hello one my one"
    with pytest.raises(EmptyText, match=r"no letter that this model reads(.|\n)*normalize on"):
        demo.stream(STYLED, normalize="off")


def test_the_script_of_every_letter_is_that_of_unicodes_own_table():
    found: dict[str | None, list[str]] = {}
    for char in map(chr, range(sys.maxunicode + 1)):
        if char.isalpha():
            found.setdefault(script_of(char), []).append(char)
    without = found.pop(None)
    assert len(found) > 140
    for script, chars in found.items():
        name = OTHERWISE.get(script, script.title())
        assert all(map(regex.compile(rf"\p{{Script={name}}}").match, chars)), script
    for name in [
        "Armenian",
        "Cyrillic",
        "Ethiopic",
        "Georgian",
        "Hebrew",
        "Kannada",
        "Khmer",
        "Thai",
    ]:
        pattern = regex.compile(rf"\p{{Script={name}}}")
        assert len(found[name.upper()]) >= 10 * sum(map(bool, map(pattern.match, without))), name


def test_a_tag_may_come_in_pieces_and_is_named_once():
    watch = TextWatch(["english"])
    pieces = ["Hello <bre", "ak time=", "'1s'/> and ", "<break/>", " 你", "好"]
    found = [warning for piece in pieces for warning in watch.look(piece)]
    assert [warning.split(" (")[1][:8] for warning in found] == ["<break t", "你), whic"]


@pytest.mark.parametrize(
    ("text", "text_format"),
    [("你好", "plain"), (" შენ! ", "plain"), ("<speak>你好</speak>", "ssml")],
)
def test_a_text_without_a_letter_that_the_model_reads_is_refused(demo, text, text_format):
    with pytest.raises(EmptyText, match="no letter that this model reads"):
        demo.stream(text, text_format=text_format)
    lexicon = {"你好": "nee how", "შენ": "shen"}
    with demo.stream(text, text_format=text_format, lexicon=lexicon, max_frames=1) as stream:
        assert stream.text.spoken
    with demo.stream(text_open=True, text_format=text_format) as stream:
        for char in text:
            stream.feed(char)
        stream.end_text()
        with pytest.raises(EmptyText, match="no letter that this model reads"):
            next(stream)


def test_an_open_text_is_spoken_from_the_first_letter_that_the_model_reads(demo):
    with demo.stream(text_open=True, max_frames=1) as stream:
        for piece in ("... 你", "好", ", Anna is here"):
            assert not stream._state.text.parts
            stream.feed(piece)
        assert len(next(stream).samples)
        stream.end_text()


def test_an_open_text_that_is_too_long_before_its_first_letter_can_still_end(demo):
    with demo.stream(text_open=True) as stream:
        stream.feed("你")
        with pytest.raises(TextTooLong):
            stream.feed("好" * 20_000)
        stream.end_text()
        with pytest.raises(EmptyText, match='Text "你" has no letter'):
            next(stream)


def test_a_misspelt_pause_is_named_where_pauses_are_obeyed(demo):
    text = "Well [pause 10ms] then [pause abc]."
    with demo.stream(text, text_format="pauses", max_frames=1) as stream:
        assert len(stream.text.warnings) == 1 and "[pause abc]" in stream.text.warnings[0]


def test_the_engine_warns_of_whole_and_of_fed_text(demo, caplog):
    with demo.stream("<speak>你好</speak>", max_frames=1) as stream:
        assert stream.text.warnings == [CHINESE, MARKUP]
    assert caplog.messages == [text[0].upper() + text[1:] + "." for text in (CHINESE, MARKUP)]
    with demo.stream(text_open=True, max_frames=1) as stream:
        stream.feed("Hello ")
        assert stream.text.warnings == []
        stream.feed("你好")
        assert stream.text.warnings == [CHINESE]
    with demo.stream(text_open=True, text_format="ssml", max_frames=1) as stream:
        stream.feed("<speak>Hello 你好")
        assert stream.text.warnings == [CHINESE]


async def test_wyoming_tells_its_clients_at_the_end(demo, caplog):
    async with wyoming_client.connected(demo) as client:
        for text, warnings in (("Hello.", None), ("<speak>აბგ", [GEORGIAN, MARKUP])):
            event = Synthesize(text).event()
            await client.write_event(event)
            *_, end = await wyoming_client.events_until(client, AudioStop)
            assert end.data.get("warnings") == warnings
    assert [text for text in caplog.messages if "Georgian" in text] == [f"The{GEORGIAN[3:]}."]


@pytest.mark.parametrize("mode", [pipelines.SENTENCE, pipelines.TOKEN], ids=str)
async def test_pipecat_logs_it_and_hands_it_to_who_listens(demo, caplog, mode):
    heard = []
    service = pipelines.service(demo, mode)

    @service.event_handler("on_speech_ended")
    async def on_speech_ended(service, context_id, stream):
        heard.append(stream.text.warnings)

    async with pipelines.Run(service) as run:
        await run.turn("<speak>", "აბგ there.", stops=1)
    assert sorted(heard[0]) == sorted([GEORGIAN, MARKUP])
    assert caplog.messages.count(f"The{GEORGIAN[3:]}.") == 1


async def test_the_server_warns_its_clients(demo):
    with serving(demo) as live:
        cold = live.speak("Hello.", voice="demo", max_new_tokens=3, temperature=0.1)
        assert cold.headers["x-warning"].startswith("temperature is 0.1, less than half of")
        answer = live.speak("你好 there", voice="demo", max_new_tokens=3, stream=False)
        warning = unquote(answer.headers["x-warning"])
        assert warning.startswith("the text has Chinese characters (你")
        events = sse(
            live.speak("你好 there", voice="demo", max_new_tokens=3, stream_format="sse").text
        )
        assert events[-1]["warnings"] == [CHINESE]
        assert "x-warning" not in live.speak("Hello.", voice="demo", max_new_tokens=3).headers
        async with session(live, {"voice": "demo", "max_new_tokens": 3}) as socket:
            (start, done, _), _ = await speak(socket, "你好 there. ", "<speak>")
        assert CHINESE in start["warnings"] and done["warnings"] == [CHINESE, MARKUP]
