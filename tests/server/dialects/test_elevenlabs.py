"""ElevenLabs' dialect: its HTTP routes, its WebSockets, and the times of letters."""

import asyncio
import base64
import io
import json

import pytest
import soundfile
from dialect_clients import ELEVENLABS, audio_of, dialect, letters_of, listen, tell
from fake_engine import STORY, ExactTimes, FakeEngine
from live_server import serving
from spies import results_of
from tiny_speech import tiny_engine
from tolerances import MP3_BIT_RATE, ROUNDED_S, ROUNDED_STEP_S
from waiting import wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus

ROUTE = "/v1/text-to-speech/vivian"
SINGLE = ELEVENLABS.replace("multi-stream-input", "stream-input")


def is_final(message: dict) -> bool:
    return message.get("isFinal") is True


def post(live, path="", text=STORY, output_format="pcm_24000", **body):
    url = f"{ROUTE}{path}?output_format={output_format}"
    return live.client.post(url, json={"text": text} | body)


def assert_times(text, starts, ends, seconds, written=STORY):
    """Check that the letters are the text, and that their times rise and lie inside the audio."""
    assert text == written
    assert starts == sorted(starts) and ends == sorted(ends) and starts[0] >= 0
    assert all(start <= end for start, end in zip(starts, ends, strict=True))
    assert ends[-1] <= seconds + ROUNDED_S


# ---- HTTP ----------------------------------------------------------------------------------------


def audio(live, path: str, **body) -> bytes:
    content = post(live, path, **body).content
    if "timestamps" not in path:
        return content
    lines = [json.loads(line) for line in content.splitlines()]
    return b"".join(base64.b64decode(line["audio_base64"]) for line in lines)


PATHS = ("", "/stream", "/with-timestamps", "/stream/with-timestamps")


@pytest.mark.parametrize("path", PATHS)
def test_audio_is_all_of_the_speech(live, engine, path):
    assert audio(live, path, seed=3) == engine.streams[0].sent
    assert engine.streams[0].request.seed == 3


def test_audio_is_that_of_our_own_endpoint_with_the_same_seed():
    with tiny_engine() as tts, serving(tts) as live:
        own = live.speak("Once upon a time.", voice="vivian", seed=3, response_format="pcm").content
        for path in PATHS:
            assert audio(live, path, text="Once upon a time.", seed=3) == own


@pytest.mark.parametrize("path", ["/with-timestamps", "/stream/with-timestamps"])
@pytest.mark.parametrize("kind", ["alignment", "normalized_alignment"])
def test_letters_have_times_inside_the_audio(live, path, kind):
    answer = post(live, path)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert len(lines) == 1 or path.startswith("/stream")
    text, starts, ends, sound = "", [], [], b""
    for line in lines:
        sound += base64.b64decode(line["audio_base64"])
        timed = line[kind] or {}
        text += "".join(timed.get("characters", ()))
        starts += timed.get("character_start_times_seconds", ())
        ends += timed.get("character_end_times_seconds", ())
    assert_times(text, starts, ends, len(sound) / 48000)


def test_letters_of_the_spoken_text_are_those_of_read_numbers(live):
    facts = post(live, "/with-timestamps", "It is 5 now.", apply_text_normalization="on").json()
    assert "".join(facts["alignment"]["characters"]) == "It is 5 now."
    assert "".join(facts["normalized_alignment"]["characters"]) == "It is five now."


@pytest.mark.parametrize(
    ("name", "kind", "rate"),
    [
        ("mp3_22050_32", "MP3", 22050),
        ("mp3_44100_192", "MP3", 44100),
        ("wav_16000", "WAV", 16000),
        ("opus_48000_32", "OGG", 48000),
    ],
)
@pytest.mark.parametrize("path", ["", "/stream"])
def test_an_output_format_has_its_rate(live, path, name, kind, rate):
    answer = post(live, path, output_format=name)
    assert answer.status_code == 200
    with soundfile.SoundFile(io.BytesIO(answer.content)) as file:
        assert (file.format, file.samplerate) == (kind, rate)


def test_an_mp3_has_the_bit_rate_that_its_name_says(live):
    seconds = len(post(live).content) / 48000
    for kbits in (32, 128, 192):
        size = len(post(live, output_format=f"mp3_44100_{kbits}").content)
        assert 8 * size / seconds / 1000 == pytest.approx(kbits, rel=MP3_BIT_RATE)


@pytest.mark.parametrize("kind", ["ulaw", "alaw"])
def test_telephone_formats_have_a_byte_for_each_sample(live, kind):
    own = live.speak(STORY, voice="vivian", response_format=kind)
    assert len(post(live, output_format=f"{kind}_8000").content) == len(own.content)


def test_fields_reach_the_engine(live, engine):
    settings = {"speed": 1.2, "stability": 0.3}
    body = {"seed": 11, "language_code": "en", "voice_settings": settings, "previous_text": "So."}
    assert post(live, **body, enable_ssml_parsing=True).status_code == 200
    stream = engine.streams[-1]
    assert (stream.request.seed, stream.request.language) == (11, "en")
    assert stream.request.sound.speed == 1.2 and stream.text_format == "ssml"


def test_a_warning_names_a_field_without_a_meaning_once(live, caplog):
    settings = {"voice_settings": {"style": 0.1, "stability": 0.5}, "previous_text": "Well."}
    for _ in range(2):
        assert post(live, **settings).status_code == 200
    warnings = [each for each in caplog.messages if each.startswith("elevenlabs: ignored")]
    assert len(warnings) == 1
    assert warnings[0].endswith(": previous_text, stability, style")


def test_lists_of_voices_and_models_have_the_vendors_form(live):
    for path in ("/v1/voices", "/v2/voices"):
        voices = live.client.get(path).json()["voices"]
        assert [each["voice_id"] for each in voices] == ["aiden", "vivian"]
    assert live.client.get("/v1/models").json()["object"] == "list"
    (model,) = live.client.get("/v1/models", headers={"xi-api-key": "k"}).json()
    assert model["model_id"] == "hum" and model["can_do_text_to_speech"]


@pytest.mark.parametrize(
    ("path", "body", "status", "what"),
    [
        (ROUTE, {}, 400, "text is missing"),
        (ROUTE, {"input": "Hi"}, 400, "Did you mean `text` by `input`?"),
        (ROUTE, {"text": 7}, 400, "text is 7; it must be a string"),
        (ROUTE, {"text": "Hi", "seed": -1}, 400, "seed is -1"),
        (ROUTE, {"text": "a" * 5000}, 413, "5000 characters"),
        (ROUTE, {"text": "  "}, 400, ""),
        (ROUTE, {"text": "Hi", "voice_settings": {"speed": 9}}, 400, "voice_settings.speed is 9"),
        (ROUTE, {"text": "Hi", "voice_settings": 5}, 400, "is 5; it must be an object."),
        (ROUTE + "?output_format=mp3_1_1", {"text": "Hi"}, 400, "It makes: mp3_22050_32"),
        (ROUTE + "?output_format=", {"text": "Hi"}, 400, "output_format is empty, which"),
        ("/v1/text-to-speech/21m00", {"text": "Hi"}, 400, "--voice-alias ID=NAME"),
        ("/v1/text-to-speech/alloy", {"text": "Hi"}, 400, "--voice-alias ID=NAME"),
        (ROUTE + "/nothing", {"text": "Hi"}, 404, "has no"),
    ],
)
def test_an_error_has_the_vendors_form(live, path, body, status, what):
    answer = live.client.post(path, json=body)
    (facts,) = answer.json().values()
    assert answer.status_code == status and set(facts) == {"status", "message"}
    assert what in facts["message"] and facts["message"].count("Start the server") <= 1


def test_an_error_within_a_stream_is_its_last_line():
    with serving(FakeEngine(fail_after=8)) as live:
        lines = post(live, "/stream/with-timestamps").text.splitlines()
        assert json.loads(lines[-1])["detail"]["message"] == "planted" and len(lines) > 1


# ---- WebSockets ----------------------------------------------------------------------------------


async def say(socket, name, *pieces, close=True):
    """Send a text as Pipecat's client does."""
    await tell(socket, text=" ", context_id=name, voice_settings={"stability": 0.5})
    for piece in pieces:
        await tell(socket, text=piece, context_id=name)
    await tell(socket, context_id=name, flush=True)
    if close:
        await tell(socket, context_id=name, close_context=True)


async def test_a_context_is_spoken_and_closed_with_times(live, engine):
    async with dialect(live, ELEVENLABS) as socket:
        first, rest = STORY[:40], STORY[40:]
        await tell(socket, text=first, context_id="a")
        heard = await listen(socket, lambda each: each["alignment"])  # before the text is complete
        await tell(socket, text=rest, context_id="a", flush=True)
        await tell(socket, context_id="a", close_context=True)
        heard += await listen(socket, is_final)
    assert {each["contextId"] for each in heard} == {"a"}
    assert audio_of(heard) == engine.streams[0].sent
    for key in ("alignment", "normalizedAlignment"):
        text, starts, ends = letters_of(heard, key)
        assert_times(text, starts, ends, len(audio_of(heard)) / 48)
    assert sum(each.get("alignment") is not None for each in heard) > 1


async def test_times_of_words_are_our_own(live, monkeypatch):
    # Not those of another request: when a time becomes final, it depends on the chunks so far.
    taken = results_of(monkeypatch, ExactTimes, "take")
    async with dialect(live, ELEVENLABS) as socket:
        await say(socket, "a", STORY)
        text, starts, ends = letters_of(await listen(socket, is_final))
    own, place = [word for words, *_ in taken for word in words], 0
    for word in own:
        place = text.index(word.word, place)
        assert starts[place] / 1000 == pytest.approx(word.start, abs=ROUNDED_STEP_S)
        place += len(word.word)
        assert ends[place - 1] / 1000 == pytest.approx(word.end, abs=ROUNDED_STEP_S)
    assert [word.word for word in own] == STORY.split()


async def test_text_after_a_flush_is_a_new_stream_whose_times_go_on(live, engine):
    async with dialect(live, ELEVENLABS) as socket:
        await say(socket, "a", STORY, close=False)
        await say(socket, "a", "And more. ")
        heard = await listen(socket, is_final)
    assert [stream.text.spoken for stream in engine.streams] == [STORY, "And more. "]
    assert audio_of(heard) == engine.streams[0].sent + engine.streams[1].sent
    text, starts, ends = letters_of(heard)
    assert_times(text, starts, ends, len(audio_of(heard)) / 48, STORY + "And more. ")
    second = len(engine.streams[0].sent) / 48
    assert starts[len(STORY)] / 1000 == pytest.approx(second / 1000, abs=ROUNDED_STEP_S)


async def test_a_client_that_asks_for_sync_alignment_gets_times_of_the_context(live):
    async with dialect(live, ELEVENLABS + "&sync_alignment=true") as socket:
        await say(socket, "a", STORY, close=False)
        await say(socket, "a", STORY)
        heard = await listen(socket, is_final)
    assert_times(*letters_of(heard, counts_on=True), len(audio_of(heard)) / 48, STORY * 2)


async def test_contexts_are_independent(live, engine):
    async with dialect(live, ELEVENLABS) as socket:
        for name in "abc":
            await say(socket, name, f"This is {name}, who speaks. ")
        ends = 0

        def is_third_end(message):
            nonlocal ends
            ends += is_final(message)
            return ends == 3

        heard = await listen(socket, is_third_end)
    for stream in engine.streams:
        name = stream.text.spoken[8]
        assert audio_of([each for each in heard if each["contextId"] == name]) == stream.sent


async def test_a_single_input_ends_with_empty_text_and_closes(live, engine):
    async with dialect(live, SINGLE) as socket:
        await tell(socket, text=" ", voice_settings={"speed": 1.1}, xi_api_key="k")
        await tell(socket, text=STORY, try_trigger_generation=True)
        await tell(socket, text="")
        heard = await listen(socket, is_final)
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd.code == 1000
    assert audio_of(heard) == engine.streams[0].sent and "contextId" not in heard[0]
    assert engine.streams[0].request.sound.speed == 1.1


async def test_a_context_that_is_closed_without_a_flush_stops_at_once():
    with serving(FakeEngine(rtf=1.0, num_slots=1)) as live:
        async with dialect(live, ELEVENLABS) as socket:
            await tell(socket, text=STORY * 3, context_id="a")
            await listen(socket, lambda message: message["audio"])
            await tell(socket, context_id="a", close_context=True)
            await asyncio.to_thread(wait_until, lambda: not live.engine.speaking)
            assert live.engine.streams[0].num_frames < 20
            await listen(socket, is_final)


async def test_a_context_that_is_closed_twice_stops_at_once():
    """Pipecat closes a context when all text was sent, and again when its user interrupts."""
    with serving(FakeEngine(rtf=1.0, num_slots=1)) as live:
        async with dialect(live, ELEVENLABS) as socket:
            await say(socket, "a", STORY * 3)
            await listen(socket, lambda message: message["audio"])
            await tell(socket, context_id="a", close_context=True)
            await asyncio.to_thread(wait_until, lambda: not live.engine.speaking)
            assert live.engine.streams[0].num_frames < 20
            live.engine.rtf = 0.001
            await say(socket, "b", "And now?")
            heard = await listen(socket, lambda each: is_final(each) and each["contextId"] == "b")
        ours = [each for each in heard if each["contextId"] == "b"]
        assert audio_of(ours) == live.engine.streams[1].sent


async def test_a_name_that_is_used_again_waits_for_its_first_context():
    with serving(FakeEngine(rtf=0.05)) as live:
        async with dialect(live, ELEVENLABS) as socket:
            await say(socket, "a", STORY)
            await say(socket, "a", "And more. ")
            first = await listen(socket, is_final)
            second = await listen(socket, is_final)
        streams = live.engine.streams
        assert audio_of(first) == streams[0].sent and audio_of(second) == streams[1].sent
        assert letters_of(second)[1][0] == 0  # times of its own


async def test_a_name_that_is_closed_again_ends_its_earlier_contexts_too():
    with serving(FakeEngine(rtf=1.0)) as live:
        async with dialect(live, ELEVENLABS) as socket:
            for _ in range(2):
                await say(socket, "a", STORY * 3)
            await listen(socket, lambda message: message["audio"])
            await tell(socket, context_id="a", close_context=True)
            heard = [await listen(socket, is_final) for _ in range(2)]
            assert not live.engine.speaking and len(live.engine.streams) == 1
        assert not audio_of(heard[1])


async def test_closing_the_socket_speaks_what_is_left(live, engine):
    async with dialect(live, ELEVENLABS) as socket:
        await tell(socket, text=STORY, context_id="a")
        await tell(socket, close_socket=True)
        heard = await listen(socket, is_final)
        with pytest.raises(ConnectionClosed):
            await socket.recv()
    assert audio_of(heard) == engine.streams[0].sent


@pytest.mark.parametrize(
    ("path", "status", "what"),
    [
        (ELEVENLABS.replace("vivian", "nobody"), 400, "Unknown voice"),
        (ELEVENLABS.replace("pcm_24000", "wav_24000"), 400, "output_format is wav_24000"),
        (ELEVENLABS + "&seed=x", 400, "seed is"),
    ],
)
async def test_a_connection_with_wrong_settings_is_refused(live, path, status, what):
    with pytest.raises(InvalidStatus) as refused:
        async with dialect(live, path):
            pass
    assert refused.value.response.status_code == status
    assert what in json.loads(refused.value.response.body)["detail"]["message"]


async def test_a_second_context_of_one_name_is_refused_and_the_first_unharmed(live, engine):
    async with dialect(live, ELEVENLABS) as socket:
        await tell(socket, text=STORY, context_id="a", voice_settings={"speed": 1.0})
        await tell(socket, text="Other.", context_id="a", voice_settings={"speed": 2.0})
        heard = await listen(socket, lambda message: "error" in message)
        assert "exists with other settings" in heard[-1]["message"]
        assert heard[-1]["contextId"] == "a" and heard[-1]["code"] == 1008
        await tell(socket, context_id="a", flush=True)
        await tell(socket, context_id="a", close_context=True)
        heard += await listen(socket, is_final)
    assert audio_of(heard) == engine.streams[0].sent and len(engine.streams) == 1
