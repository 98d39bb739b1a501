"""Cartesia's dialect: its HTTP routes and its WebSocket."""

import asyncio
import base64
import io
import json
import math
import time

import numpy as np
import pytest
import soundfile
from dialect_clients import CARTESIA, RAW, audio_of, cartesia, dialect, listen, tell
from fake_engine import STORY, FakeEngine
from live_server import serving
from tiny_speech import tiny_engine
from tolerances import ROUNDED_S, ROUNDED_STEP_S, nearly
from waiting import wait_until


def is_done(message: dict) -> bool:
    return message["type"] == "done"


def post(live, path="/tts/bytes", text=STORY, **facts):
    return live.client.post(path, json=cartesia("", text, **facts))


async def speak(socket, name, *pieces, **facts):
    """Send a text as Pipecat's client does, and return all messages."""
    for piece in pieces:
        await tell(socket, **cartesia(name, piece, **{"continue": True, **facts}))
    await tell(socket, **cartesia(name, "", **{"continue": False, **facts}))
    return await listen(socket, is_done)


def words_of(messages):
    found = [each["word_timestamps"] for each in messages if each["type"] == "timestamps"]
    return tuple([one for each in found for one in each[key]] for key in ("words", "start", "end"))


def events_of(answer):
    lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


# ---- HTTP ----------------------------------------------------------------------------------------


def test_audio_is_that_of_our_own_endpoint_with_the_same_seed():
    with tiny_engine() as tts, serving(tts) as live:
        text = "Once upon a time."
        own = live.speak(text, voice="vivian", seed=3, response_format="pcm").content
        assert post(live, text=text, seed=3).content == own
        floats = post(live, text=text, seed=3, output_format=RAW | {"encoding": "pcm_f32le"})
        exactly = np.frombuffer(own, "<i2") / np.float32(32768)
        np.testing.assert_array_equal(np.frombuffer(floats.content, "<f4"), exactly)
        wav = {"container": "wav", "encoding": "pcm_f32le", "sample_rate": 24000}
        file = post(live, text=text, seed=3, output_format=wav).content
        np.testing.assert_array_equal(soundfile.read(io.BytesIO(file), dtype="float32")[0], exactly)
        events = events_of(post(live, "/tts/sse", text, seed=3))
        assert b"".join(base64.b64decode(each.get("data", "")) for each in events) == own


@pytest.mark.parametrize(
    ("wanted", "kind", "subtype"),
    [
        ({"container": "wav", "encoding": "pcm_s16le", "sample_rate": 16000}, "WAV", "PCM_16"),
        ({"container": "wav", "encoding": "pcm_mulaw", "sample_rate": 8000}, "WAV", "ULAW"),
        ({"container": "wav", "encoding": "pcm_f32le", "sample_rate": 24000}, "WAV", "FLOAT"),
        ({"container": "mp3", "bit_rate": 128000, "sample_rate": 44100}, "MP3", "MPEG_LAYER_III"),
    ],
)
def test_a_file_is_what_was_asked_for(live, wanted, kind, subtype):
    answer = post(live, output_format=wanted)
    with soundfile.SoundFile(io.BytesIO(answer.content)) as file:
        assert (file.format, file.subtype) == (kind, subtype)
        assert file.samplerate == wanted["sample_rate"]


def test_events_have_times_of_words_and_an_end(live):
    answer = post(live, "/tts/sse", add_timestamps=True, context_id="c")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer)
    assert events[-1]["type"] == "done" and {each["context_id"] for each in events} == {"c"}
    assert words_of(events)[0] == STORY.split()


def test_fields_reach_the_engine(live, engine):
    how = {"speed": 1.25, "volume": 2.0, "emotion": "happy"}
    assert post(live, language="en", generation_config=how, seed=4).status_code == 200
    request = engine.streams[0].request
    assert (request.language, request.seed, request.sound.speed) == ("en", 4, 1.25)
    assert request.sound.volume == nearly(20 * math.log10(2))


@pytest.mark.parametrize(
    ("body", "status", "what"),
    [
        ({"transcript": "Hi"}, 400, "voice is missing"),
        ({"input": "Hi"}, 400, "Did you mean `transcript` by `input`?"),
        (cartesia("", "Hi", output_format={"container": "ogg"}), 400, "It makes: raw, wav, mp3"),
        (cartesia("", "Hi", output_format=RAW | {"encoding": "pcm_f64"}), 400, "pcm_s16le"),
        (cartesia("", "Hi", voice={"mode": "embedding", "embedding": [1]}), 400, "a voice's id"),
        (
            cartesia("", "Hi", output_format={"container": "mp3", "bit_rate": 128}),
            *(400, "output_format.bit_rate is 128; it must be 1000 or more."),
        ),
        (
            cartesia("", "Hi", output_format=RAW | {"sample_rate": 0}),
            *(400, "output_format.sample_rate is 0; it must be 8000 or more."),
        ),
        (cartesia("", "Hi", output_format="wav"), 400, '"wav"; it must be an object.'),
        (cartesia("", "Hi", voice={"id": "694f9389"}), 400, "Unknown voice"),
        (cartesia("", "Hi", max_buffer_delay_ms=-1), 400, "max_buffer_delay_ms is -1"),
        (cartesia("", ""), 400, ""),
    ],
)
def test_an_error_has_the_vendors_form(live, body, status, what):
    answer = live.client.post("/tts/bytes", json=body)
    facts = answer.json()
    assert answer.status_code == facts["status_code"] == status
    assert set(facts) == {"title", "message", "error_code", "status_code", "request_id"}
    assert what in facts["message"] and facts["request_id"] == answer.headers["x-request-id"]


# ---- WebSocket -----------------------------------------------------------------------------------


def test_a_name_of_a_context_that_events_cannot_repeat_is_refused(live, engine):
    for name in ("a" * 257, ["a"]):
        answer = live.client.post("/tts/sse", json=cartesia(name, STORY))
        assert answer.status_code == 400 and "context_id" in answer.json()["message"]
    assert not engine.streams


async def test_a_context_is_spoken_with_times_and_done(live, engine):
    async with dialect(live, CARTESIA) as socket:
        heard = await speak(
            socket, "a", *(f"{word} " for word in STORY.split()), add_timestamps=True
        )
    assert {each["context_id"] for each in heard} == {"a"}
    assert audio_of(heard) == engine.streams[0].sent and len(engine.streams) == 1
    words, starts, ends = words_of(heard)
    assert words == STORY.split()
    assert starts == sorted(starts) and ends == sorted(ends)
    assert starts[0] >= 0 and ends[-1] <= len(audio_of(heard)) / 48000 + ROUNDED_S


async def test_no_times_are_sent_unless_they_are_asked_for(live):
    async with dialect(live, CARTESIA) as socket:
        assert not any(words_of(await speak(socket, "a", STORY)))


async def test_a_flush_is_answered_after_its_audio(live, engine):
    async with dialect(live, CARTESIA) as socket:
        for _ in range(2):
            how = {"continue": True, "flush": True, "add_timestamps": True}
            await tell(socket, **cartesia("a", STORY, **how))
        heard = await speak(socket, "a", "Last.", add_timestamps=True)
    places = [index for index, each in enumerate(heard) if each["type"] == "flush_done"]
    assert [heard[place]["flush_id"] for place in places] == [1, 2]
    assert audio_of(heard[: places[0]]) == engine.streams[0].sent
    assert audio_of(heard[places[0] : places[1]]) == engine.streams[1].sent
    # The vendor's client sorts audio and times by this number.
    assert {each["flush_id"] for each in heard[: places[0]]} == {1}
    assert {each["flush_id"] for each in heard[places[0] + 1 : places[1]]} == {2}
    assert {each["flush_id"] for each in heard[places[1] + 1 : -1]} == {3}
    words, starts, _ = words_of(heard)
    assert words == [*(STORY * 2).split(), "Last."]
    before_s = len(audio_of(heard[: places[1]])) / 48000
    assert starts[-1] == pytest.approx(before_s, abs=ROUNDED_STEP_S)  # the context's clock


async def test_text_after_the_end_of_a_context_that_is_still_spoken_follows_it():
    with serving(FakeEngine(rtf=0.05)) as live:
        async with dialect(live, CARTESIA) as socket:
            await tell(socket, **cartesia("a", STORY))
            await tell(socket, **cartesia("a", ""))  # a second end changes nothing
            await tell(socket, **cartesia("a", "More of it."))
            heard = await listen(socket, is_done)
            first, second = live.engine.streams
            assert audio_of(heard) == first.sent + second.sent


@pytest.mark.parametrize(
    ("given", "delay_ms"), [({"max_buffer_delay_ms": 300}, 300), ({}, 3000)], ids=["given", "none"]
)
async def test_text_waits_for_more_of_it_as_long_as_the_client_lets_it(
    live, engine, given, delay_ms
):
    """A sentence before a pause, in which an agent looks something up."""
    begun = time.monotonic()
    async with dialect(live, CARTESIA) as socket:
        await tell(socket, **cartesia("a", "Let me look. ", **{"continue": True} | given))
        await asyncio.to_thread(
            wait_until, lambda: engine.streams and engine.streams[0].finish_reason
        )
        assert 1000 * (time.monotonic() - begun) >= delay_ms
        heard = await speak(socket, "a", STORY, **given)
    assert audio_of(heard) == engine.streams[0].sent + engine.streams[1].sent


async def test_no_message_follows_about_a_cancelled_context():
    """The vendor's client forgets the context; it would end the next one with its `done`."""
    with serving(FakeEngine(rtf=1.0, num_slots=1)) as live:
        async with dialect(live, CARTESIA) as socket:
            await tell(socket, **cartesia("a", STORY * 3))
            await listen(socket, lambda message: message["type"] == "chunk")
            await tell(socket, context_id="a", cancel=True)
            await asyncio.to_thread(wait_until, lambda: not live.engine.speaking)
            await tell(socket, **cartesia("open", "Hello ", **{"continue": True}))
            await tell(socket, context_id="open", cancel=True)
            await tell(socket, context_id="unknown", cancel=True)
            live.engine.rtf = 0.001
            heard = await speak(socket, "b", "And now?")
            assert {each["context_id"] for each in heard if each["type"] != "chunk"} == {"b"}
            ours = [each for each in heard if each["context_id"] == "b"]
            assert audio_of(ours) == live.engine.streams[-1].sent
            assert len(heard) - len(ours) <= 1  # what was being sent
            again = await speak(socket, "a", "And now?")
            assert audio_of(again) == live.engine.streams[-1].sent


async def test_settings_change_between_sentences_of_a_context(live, engine):
    async with dialect(live, CARTESIA) as socket:
        how = {"continue": True, "generation_config": {"speed": 1.5}}
        await tell(socket, **cartesia("a", "One. ", **{"continue": True}))
        await tell(socket, **cartesia("a", "Two. ", **how))
        heard = await speak(socket, "a", generation_config={"speed": 1.5})
    assert [stream.text.spoken for stream in engine.streams] == ["One. ", "Two. "]
    assert [stream.request.sound.speed for stream in engine.streams] == [1.0, 1.5]
    assert audio_of(heard) == engine.streams[0].sent + engine.streams[1].sent


@pytest.mark.parametrize(
    "changed", [{"voice": {"id": "aiden"}}, {"output_format": RAW | {"sample_rate": 8000}}]
)
async def test_a_second_context_of_one_name_is_refused_and_the_first_unharmed(
    live, engine, changed
):
    async with dialect(live, CARTESIA) as socket:
        await tell(socket, **cartesia("a", STORY, **{"continue": True}))
        await tell(socket, **cartesia("a", "Other.", **changed))
        heard = await listen(socket, lambda message: message["type"] == "error")
        assert heard[-1]["context_id"] == "a" and heard[-1]["status_code"] == 400
        heard += await speak(socket, "a")
    assert audio_of(heard) == engine.streams[0].sent and len(engine.streams) == 1


async def test_a_wrong_message_about_a_context_that_is_spoken_leaves_it_its_end():
    with serving(FakeEngine(rtf=0.05)) as live:
        async with dialect(live, CARTESIA) as socket:
            await tell(socket, **cartesia("a", STORY))
            await tell(socket, **cartesia("a", "More.", voice="aiden"))
            heard = await listen(socket, is_done)
    assert "error" in [each["type"] for each in heard]


async def test_an_error_about_a_text_names_its_context(live):
    async with dialect(live, CARTESIA) as socket:
        await tell(socket, **cartesia("a", "Hello.", language="xx"))
        (error,) = await listen(socket, lambda message: message["type"] == "error")
    assert "Unknown language" in error["message"] and error["context_id"] == "a"


@pytest.mark.parametrize("is_closed", [True, False])
async def test_an_error_is_the_last_message_about_its_context(live, engine, is_closed):
    """The vendor's client forgets the context; it would end the next one with its `done`."""
    async with dialect(live, CARTESIA) as socket:
        how = {"continue": not is_closed, "flush": not is_closed}
        await tell(socket, **cartesia("a", "!!!", **how))
        heard = await listen(socket, lambda message: message["type"] == "error")
        if not is_closed:
            await tell(socket, **cartesia("a", ""))
        heard += await speak(socket, "b", STORY)
        assert [each["context_id"] for each in heard if each["type"] == "done"] == ["b"]
        assert is_done((await speak(socket, "a", STORY))[-1])
    assert [stream.text.spoken for stream in engine.streams[-2:]] == [STORY] * 2
