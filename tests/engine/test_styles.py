"""A voice with styles: each speaks as a voice of that recording alone, in a request and in SSML."""

from pathlib import Path

import numpy as np
import pytest
from fixtures import module_fixture
from live_server import serving
from speech_socket import session, speak
from tiny_speech import fed, tiny_engine

from qwen_megakernel import TTSEngine, Voice
from qwen_megakernel.cloning.mixing import mix
from qwen_megakernel.errors import MarkupError, UnknownVoice, UsageError

WIDTH, GROUPS = 128, 16
TEXT, MORE = "Your table is ready.", "We will meet you at the hotel."
OPTIONS = {"seed": 3}


def recorded(style: str, seed: int, transcript: str | None = None) -> Voice:
    """A voice as of one recording: random values, which a random model takes."""
    rng = np.random.default_rng(seed)
    codes = None if transcript is None else rng.integers(0, 64, (5 + seed, GROUPS), dtype=np.int32)
    return Voice(style, rng.standard_normal(WIDTH).astype(np.float32), codes, transcript)


STYLES = {
    "happy": recorded("happy", 1, "What a day it is!"),
    "neutral": recorded("neutral", 2, "It is cold today, and we are late for the last train."),
    "sad": recorded("sad", 3),  # an x-vector alone
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voices")
    Voice.of_styles("anna", STYLES.values()).save(folder / "anna.voice.safetensors")
    for name, style in (("ben", "sad"), ("eve", "happy")):
        Voice(name, STYLES[style].x_vector).save(folder / f"{name}.voice.safetensors")
    return folder


tts = module_fixture(
    lambda folder: tiny_engine("tiny-random-base", dtype="float32", max_frames=60, voices=folder)
)


@pytest.mark.parametrize("style", [None, *STYLES])
@pytest.mark.parametrize("feed", ["auto", "full"])
def test_a_style_speaks_as_a_voice_of_its_recording_alone(tts, style, feed):
    styled = tts.synthesize(TEXT, voice="anna", style=style, text_feed=feed, **OPTIONS)
    alone = tts.synthesize(TEXT, voice=STYLES[style or "neutral"], text_feed=feed, **OPTIONS)
    assert styled.codes.tolist() == alone.codes.tolist()
    assert styled.audio.tobytes() == alone.audio.tobytes()


def test_styles_differ(tts):
    said = {
        tts.synthesize(TEXT, voice="anna", style=style, **OPTIONS).audio.tobytes()
        for style in STYLES
    }
    assert len(said) == len(STYLES)


def two_parts(tts: TTSEngine, *pieces: str, **options: object) -> tuple[list, list]:
    """The codes of a marked text's first part, and those of its second, after a pause."""
    stream = fed(tts, *pieces, seed=3, text_format="ssml", **options)
    [first] = [chunk.frame_index for chunk in stream if chunk.pause_s]
    return stream.codes[:first].tolist(), stream.codes[first:].tolist()


@pytest.mark.parametrize("style", STYLES)
def test_an_element_changes_the_style_of_its_text(tts, style):
    """Each part has the codes of the same part in the voice of its recording alone, however the
    text is cut into pieces: its draws depend on the part's number, so each text has two parts.
    """
    pause = '<break time="100ms"/>'
    first, _ = two_parts(tts, f"{TEXT}{pause}{MORE}", voice=STYLES["sad"])
    _, second = two_parts(tts, f"{TEXT}{pause}{MORE}", voice=STYLES[style])
    marked = f'{TEXT}{pause}<mstts:express-as style="{style}">{MORE}</mstts:express-as>'
    for pieces in ([marked], [marked[:30], marked[30:60], marked[60:]], list(marked)):
        assert two_parts(tts, *pieces, voice="anna", style="sad") == (first, second)
    assert (
        tts.synthesize(marked, voice="anna", style="sad", seed=3, text_format="ssml").codes.tolist()
        == first + second
    )


def test_markup_names_the_place_of_an_unknown_style(tts):
    text = 'Hello.\n <mstts:express-as style="angry" styledegree="2">No!</mstts:express-as>'
    for voice, what in (
        ("anna", "The style of voice 'anna' is 'angry'; known: neutral, happy, sad."),
        (
            None,
            "style is 'angry'; the model's own voice is part of the checkpoint and has no styles.",
        ),
    ):
        with pytest.raises(MarkupError) as caught:
            tts.stream(text, voice=voice, text_format="ssml")
        assert caught.value.what == f"SSML, line 2, column 2: {what}"
    with pytest.raises(MarkupError, match="<mstts:express-as> has no style"):
        tts.stream("<mstts:express-as>No!</mstts:express-as>", voice="anna", text_format="ssml")
    with tts.stream(text.replace("angry", "happy"), voice="anna", text_format="ssml") as stream:
        assert "styledegree of <mstts:express-as>" in stream.text.warnings[0]


def test_an_unknown_style_lists_those_that_exist(tts):
    with pytest.raises(UsageError, match=r"'anna' is 'hapy'; known: neutral, happy, sad") as e:
        tts.stream(TEXT, voice="anna", style="hapy")
    assert e.value.hint == 'Did you mean "happy"?'
    with pytest.raises(UsageError, match=r"'alone' is 'happy'; known: neutral."):
        tts.stream(TEXT, voice=Voice("alone", STYLES["sad"].x_vector), style="happy")
    with pytest.raises(UsageError, match="model's own voice is part of the checkpoint"):
        tts.stream(TEXT, style="happy")
    with pytest.raises(UnknownVoice):
        tts.stream(TEXT, voice="bert", style="happy")


# ---- mixes and other voices in a text ------------------------------------------------------------


def test_a_sum_of_names_is_a_mix_and_a_file_of_that_name_wins(tts, folder):
    def codes(voice):
        return tts.synthesize(TEXT, voice=voice, **OPTIONS).codes.tolist()

    mixed = codes("ben(2)+eve")
    ben, eve = (Voice.load(folder / f"{name}.voice.safetensors") for name in ("ben", "eve"))
    assert mixed == codes(mix("x", [(ben, 2), (eve, 1)])) != codes("ben+eve")
    (folder / "ben(2)+eve.voice.safetensors").write_bytes(
        (folder / "ben.voice.safetensors").read_bytes()
    )
    assert codes("ben(2)+eve") == codes("ben")
    with pytest.raises(UsageError, match="'anna' cannot be mixed: it speaks in context"):
        tts.stream(TEXT, voice="anna+ben")
    with pytest.raises(UnknownVoice, match='"bert"'):
        tts.stream(TEXT, voice="ben+bert")


@pytest.mark.parametrize("voice", ["eve", "anna"])  # an x-vector alone, and one in context
def test_a_voice_in_a_text_speaks_as_alone(tts, voice):
    pause = '<break time="100ms"/>'
    first, _ = two_parts(tts, f"{TEXT}{pause}{MORE}", voice="ben")
    _, second = two_parts(tts, f"{TEXT}{pause}{MORE}", voice=voice)
    marked = f'{TEXT}{pause}<voice name="{voice}" gender="female">{MORE}</voice>'
    for pieces in ([marked], list(marked)):
        assert two_parts(tts, *pieces, voice="ben") == (first, second)


@pytest.mark.parametrize("name", ["bert", "../anna.voice.safetensors", "ben+x.voice.safetensors"])
def test_a_text_names_known_voices_and_opens_no_file(tts, folder, monkeypatch, name):
    monkeypatch.chdir(folder)
    text = f'Hello.\n<voice name="{name}">No!</voice>'
    with pytest.raises(MarkupError, match=r"SSML, line 2, column 1: Unknown voice"):
        tts.stream(text, voice="ben", text_format="ssml")
    chunks = []
    with pytest.raises(MarkupError, match="line 2, column 1"):
        for chunk in fed(tts, text, voice="ben", text_format="ssml"):
            chunks.append(chunk)
    assert chunks  # the speech before the error


def test_clients_name_styles_mixes_and_x_vectors(tts):
    with serving(tts) as live:

        def audio(**fields):
            answer = live.speak(TEXT, seed=3, response_format="pcm", stream=False, **fields)
            assert answer.status_code == 200, answer.text
            return np.frombuffer(answer.content, "<i2").tobytes()

        def ours(voice, **options):
            chunks = tts.stream(TEXT, voice=voice, seed=3, **options)
            return b"".join(chunk.pcm16 for chunk in chunks)

        assert audio(voice="anna", style="happy") == ours("anna", style="happy")
        assert audio(voice="ben+eve(3)") == ours("ben+eve(3)")
        x_vector = STYLES["sad"].x_vector
        assert audio(voice=None, speaker_embedding=x_vector.tolist()) == ours("ben")
        for fields, said in (
            ({"voice": "anna", "style": "angry"}, "known: neutral, happy, sad."),
            ({"voice": "ben+nobody"}, 'Unknown voice \\"nobody\\"'),
            ({"voice": "ben+alloy"}, "Voice 'alloy' cannot be mixed: the model has no such voice"),
            ({"speaker_embedding": [1.0, 2.0]}, "'speaker_embedding' is 2-dim"),
            ({"speaker_embedding": [1.0] * 5000}, "speaker_embedding"),
            ({"speaker_embedding": [1.0] * 127 + [1e39]}, "the number 1e+39, which is too large"),
            ({"speaker_embedding": [1.0], "voice": "ben"}, "speaker_embedding and voice are both"),
            ({"speaker_embedding": [1.0], "ref_audio": "a"}, "speaker_embedding and ref_audio are"),
            ({"speaker_embedding": ["a"]}, "speaker_embedding"),
        ):
            answer = live.speak(TEXT, **fields)
            assert answer.status_code == 400 and said in answer.text, answer.text


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"voice": "anna", "style": "sad"}, TEXT),
        (  # with a seed that draws no end token while the end of the text is awaited
            {"voice": "ben", "text_format": "script", "seed": 28},
            f"anna (happy): {TEXT}\neve: {MORE}",
        ),
    ],
)
async def test_a_websocket_has_styles_and_casts(tts, config, text):
    pieces = [text[:9], text[9:]]
    with serving(tts) as live:
        async with session(live, OPTIONS | config) as socket:
            events, audio = await speak(socket, *pieces)
    assert [each["type"] for each in events] == ["audio.start", "audio.done", "session.done"]
    assert audio == b"".join(chunk.pcm16 for chunk in fed(tts, *pieces, **OPTIONS | config))
    if "style" in config:
        alone = tts.stream(text, voice=STYLES["sad"], text_feed="stepwise", **OPTIONS)
        assert audio == b"".join(chunk.pcm16 for chunk in alone)
