"""Deepgram's dialect: its POST and its WebSocket."""

import asyncio
import io
import json
import sys

import pytest
import soundfile
from dialect_clients import DEEPGRAM, audio_of, dialect, listen, tell
from fake_engine import STORY, FakeEngine
from live_server import serving
from tiny_speech import tiny_engine
from waiting import wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus


def is_flushed(message: dict) -> bool:
    return message.get("type") == "Flushed"


def post(live, query="", text=STORY):
    return live.client.post(f"/v1/speak?model=vivian{query}", json={"text": text})


async def speak(socket, *pieces):
    """Send a text as Pipecat's client does, and return all messages."""
    for piece in pieces:
        await tell(socket, type="Speak", text=piece)
    await tell(socket, type="Flush")
    return await listen(socket, is_flushed)


def test_audio_is_that_of_our_own_endpoint_with_the_same_seed():
    with tiny_engine() as tts, serving(tts) as live:
        own = live.speak("Once upon a time.", voice="vivian", seed=3, response_format="pcm").content
        query = "&encoding=linear16&container=none&seed=3"
        assert post(live, query, "Once upon a time.").content == own


@pytest.mark.parametrize(
    ("query", "kind", "rate", "subtype"),
    [
        ("", "MP3", 22050, "MPEG_LAYER_III"),
        ("&encoding=linear16&sample_rate=16000", "WAV", 16000, "PCM_16"),
        ("&encoding=mulaw", "WAV", 8000, "ULAW"),
        ("&encoding=opus", "OGG", 48000, "OPUS"),
        ("&encoding=opus&bit_rate=650000", "OGG", 48000, "OPUS"),  # the vendor's highest
        ("&encoding=flac&sample_rate=24000", "FLAC", 24000, "PCM_16"),
    ],
)
def test_a_file_is_what_was_asked_for(live, query, kind, rate, subtype):
    with soundfile.SoundFile(io.BytesIO(post(live, query).content)) as file:
        assert (file.format, file.samplerate, file.subtype) == (kind, rate, subtype)


def test_what_no_package_here_encodes_is_refused_before_anything_is_spoken(
    live, engine, monkeypatch
):
    monkeypatch.setitem(sys.modules, "av", None)
    answer = post(live, "&encoding=aac")
    assert answer.status_code == 501 and "PyAV" in answer.json()["err_msg"]
    assert not engine.streams and live.service.admission.idle


@pytest.mark.parametrize("kind", ["mp3", "opus", "aac"])
def test_a_bit_rate_changes_the_size(live, kind):
    if kind == "aac":
        pytest.importorskip("av")
    low, high = (
        len(post(live, f"&encoding={kind}&bit_rate={rate}").content) for rate in (16000, 128000)
    )
    assert 2 * low < high


@pytest.mark.parametrize("kind", ["mulaw", "alaw"])
def test_telephone_audio_has_a_byte_for_each_sample(live, kind):
    own = live.speak(STORY, voice="vivian", response_format=kind.replace("mu", "u"))
    assert len(post(live, f"&encoding={kind}&container=none").content) == len(own.content)


def test_fields_reach_the_engine_and_others_are_named_once(live, engine, caplog):
    for _ in range(2):
        assert post(live, "&speed=1.3&mip_opt_out=true&priority=low").status_code == 200
    assert engine.streams[0].request.sound.speed == 1.3
    assert [each for each in caplog.messages if "ignored" in each] == [
        "deepgram: ignored, from now on without a warning: priority"
    ]


@pytest.mark.parametrize(
    ("query", "text", "what"),
    [
        ("&encoding=amr", "Hi", "It makes: linear16, mulaw, alaw"),
        ("&container=ogg", "Hi", "container is ogg"),
        ("&sample_rate=x", "Hi", 'sample_rate is "x"; it must be a whole number'),
        ("&sample_rate=0", "Hi", 'sample_rate is "0"; it must be 8000 or more'),
        ("&speed=9", "Hi", "speed is"),
        ("&encoding=opus&bit_rate=-5", "Hi", 'bit_rate is "-5"; it must be 1000 or more'),
        ("", 7, "text is 7"),
        ("", "", ""),
    ],
)
def test_an_error_has_the_vendors_form(live, query, text, what):
    answer = post(live, query, text)
    assert answer.status_code == 400
    assert set(answer.json()) == {"err_code", "err_msg", "request_id"}
    assert what in answer.json()["err_msg"]


async def test_text_is_spoken_and_flushed(live, engine):
    async with dialect(live, DEEPGRAM) as socket:
        heard = await speak(socket, *(f"{word} " for word in STORY.split()))
        assert heard[0]["type"] == "Metadata" and heard[0]["model_name"] == "hum"
        assert audio_of(heard) == engine.streams[0].sent and heard[-1]["sequence_id"] == 0
        heard = await speak(socket, "And more.")
        assert audio_of(heard) == engine.streams[1].sent and heard[-1]["sequence_id"] == 1
        heard = await speak(socket)  # nothing to flush
        assert [each["type"] for each in heard] == ["Flushed"]
    assert engine.streams[0].request.seed == 5


async def test_a_clear_stops_the_speech_and_no_audio_follows_its_answer():
    with serving(FakeEngine(rtf=0.3, num_slots=1)) as live:
        async with dialect(live, DEEPGRAM) as socket:
            await tell(socket, type="Speak", text=STORY * 3)
            await tell(socket, type="Flush")
            await tell(socket, type="Speak", text="More.")
            await listen(socket, lambda message: "bytes" in message)
            await tell(socket, type="Clear")
            heard = await listen(socket, lambda message: message.get("type") == "Cleared")
            assert not any(map(is_flushed, heard))
            await asyncio.to_thread(wait_until, lambda: not live.engine.speaking)
            live.engine.rtf = 0.001
            heard = await speak(socket, "And now?")
            assert audio_of(heard) == live.engine.streams[-1].sent


async def test_audio_that_waits_for_the_client_is_dropped_by_a_clear():
    with serving(FakeEngine(rtf=0.001), send_buffer=8192) as live:
        slowly = {"sock": live.connect_slowly(), "max_queue": 1}
        async with dialect(live, DEEPGRAM, **slowly) as socket:
            await tell(socket, type="Speak", text=STORY * 8)
            await tell(socket, type="Flush")
            await asyncio.to_thread(wait_until, lambda: live.engine.streams)
            await asyncio.to_thread(wait_until, lambda: live.engine.streams[0].finish_reason)
            await tell(socket, type="Clear")
            # The server has it before it can send more.
            await asyncio.to_thread(wait_until, lambda: live.engine.streams[0].cancelled)
            heard = await listen(socket, lambda message: message.get("type") == "Cleared")
        assert len(audio_of(heard)) < len(live.engine.streams[0].sent) / 2


async def test_a_close_speaks_what_is_left(live, engine):
    async with dialect(live, DEEPGRAM) as socket:
        await tell(socket, type="Speak", text=STORY)
        await tell(socket, type="Close")
        pcm = b""
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                message = await socket.recv()
                pcm += message if isinstance(message, bytes) else b""
    assert closed.value.rcvd.code == 1000 and pcm == engine.streams[0].sent


async def test_a_connection_with_wrong_settings_is_refused(live):
    with pytest.raises(InvalidStatus) as refused:
        async with dialect(live, DEEPGRAM.replace("vivian", "aura-2-thalia-en")):
            pass
    assert refused.value.response.status_code == 400
    assert "Unknown voice" in json.loads(refused.value.response.body)["err_msg"]


async def test_a_websocket_warns_about_a_container_that_it_does_not_send(live, caplog):
    for container in ("none", "wav"):
        async with dialect(live, f"{DEEPGRAM}&container={container}") as socket:
            assert (await speak(socket, STORY))[1]["bytes"][:4] != b"RIFF"
        warnings = [each for each in caplog.messages if "container" in each]
        assert bool(warnings) == (container == "wav")


@pytest.mark.parametrize("kind", ["token", "bearer"])
async def test_a_browser_sends_its_key_as_a_subprotocol(kind):
    with serving(FakeEngine(rtf=0.001), api_key="s3cret") as live:
        async with dialect(live, DEEPGRAM, subprotocols=[kind, "s3cret"]) as socket:
            assert socket.subprotocol == kind  # without it browsers close the connection
            assert audio_of(await speak(socket, STORY)) == live.engine.streams[0].sent
        with pytest.raises(InvalidStatus):
            async with dialect(live, DEEPGRAM, subprotocols=[kind, "other"]):
                pass


async def test_a_wrong_message_is_a_warning(live, engine):
    async with dialect(live, DEEPGRAM) as socket:
        for wrong in ("garbage", '{"type": "Spek"}', '{"type": "Speak", "text": 7}', b"\x00"):
            await socket.send(wrong)
            (*_, warning) = await listen(socket, lambda each: each.get("type") == "Warning")
            assert warning["code"] == "USAGE_ERROR" and warning["description"]
        assert audio_of(await speak(socket, STORY)) == engine.streams[0].sent
