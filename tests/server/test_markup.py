"""SSML over HTTP, events, the WebSocket and Wyoming: pauses, times of words, faults."""

import base64

import numpy as np
import pytest
from fixtures import module_fixture
from live_server import LiveServer, serving, sse
from speech_socket import hear_until, say, session, speak

from qwen_megakernel import TTSEngine

RATE = 24000
FIRST, SECOND = "Your table is ready.", "We will meet you at the hotel."
PAUSED = f'<speak>{FIRST}<break time="700ms"/>{SECOND}</speak>'
BROKEN = f"{FIRST}\n <break time='x'/> {SECOND}"
PLACE = "SSML, line 2, column 2: break time is 'x'"
CONFIG = {"text_format": "ssml", "seed": 1}

tts = module_fixture(lambda: TTSEngine.from_pretrained("demo-voice", backend="cpu", num_slots=2))
live = module_fixture(lambda tts: serving(tts))


@pytest.fixture(scope="module")
def paused(tts: TTSEngine) -> bytes:
    with tts.stream(PAUSED, **CONFIG) as stream:
        return b"".join(chunk.pcm16 for chunk in stream)


def longest_silence(pcm: bytes) -> int:
    silent = np.concatenate([[1], np.frombuffer(pcm, "<i2"), [1]]) == 0
    edges = np.flatnonzero(np.diff(silent.astype(np.int8)))
    return int(np.diff(edges.reshape(-1, 2)).max())


@pytest.mark.parametrize("stream", [False, None])
def test_http_speaks_markup(live: LiveServer, paused: bytes, stream: bool | None):
    options = {} if stream is None else {"stream": stream}
    answer = live.speak(PAUSED, response_format="pcm", **CONFIG, **options)
    assert answer.status_code == 200 and answer.content == paused
    assert longest_silence(answer.content) >= 0.7 * RATE
    assert answer.headers["X-Parts"] == "2"


def test_http_does_not_obey_plain_text(live: LiveServer):
    answer = live.speak(PAUSED, response_format="pcm", seed=1, max_new_tokens=30)
    assert longest_silence(answer.content) < RATE / 2


def test_pauses_in_plain_text_are_asked_for_by_name(live: LiveServer, paused: bytes):
    text = f"{FIRST}[pause 700ms]{SECOND}"
    answer = live.speak(text, response_format="pcm", text_format="pauses", seed=1)
    assert answer.content == paused


def test_http_refuses_broken_markup_before_any_audio(live: LiveServer):
    for options in ({}, {"stream": True}, {"stream_format": "sse"}):
        answer = live.speak(BROKEN, **CONFIG, **options)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(PLACE)
    answer = live.speak(FIRST, text_format="html")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "text_format"
    live.settle()
    assert live.speak(PAUSED, **CONFIG).status_code == 200


def test_words_have_their_times_behind_a_pause(live: LiveServer):
    answer = live.speak(
        PAUSED, response_format="pcm", timestamp_granularities=["word", "segment"], **CONFIG
    ).json()
    assert [word["word"] for word in answer["words"]] == f"{FIRST} {SECOND}".split()
    first, second = answer["segments"]
    assert second["start"] - first["end"] >= 0.7
    seconds = len(base64.b64decode(answer["audio"])) / 2 / RATE
    assert answer["words"][-1]["end"] <= seconds


def test_events_have_the_pause_and_the_words(live: LiveServer, paused: bytes):
    body = {"response_format": "pcm", "timestamp_granularities": ["word"], "stream_format": "sse"}
    found = sse(live.speak(PAUSED, **body, **CONFIG).text)
    audio = b"".join(base64.b64decode(each["audio"]) for each in found if "audio" in each)
    words = [word["word"] for each in found for word in each.get("words", ())]
    assert audio == paused and words == f"{FIRST} {SECOND}".split()


@pytest.mark.parametrize("size", [1, 9, 500])
async def test_a_tag_may_begin_in_one_message_and_end_in_another(live: LiveServer, size: int):
    pieces = [PAUSED[begin : begin + size] for begin in range(0, len(PAUSED), size)]
    async with session(live, CONFIG | {"timestamp_granularities": ["word"]}) as socket:
        found, audio = await speak(socket, *pieces)
    assert longest_silence(audio) >= 0.7 * RATE
    words = [word["word"] for each in found for word in each.get("words", ())]
    assert words == f"{FIRST} {SECOND}".split()


async def test_broken_markup_ends_an_utterance_behind_what_is_spoken(live: LiveServer):
    async with session(live, CONFIG) as socket:
        await say(socket, "input.text", text=BROKEN)
        await say(socket, "input.text", text=" and more")
        await say(socket, "input.done")
        found, audio = await hear_until(socket)
        (error,) = [each for each in found if each["type"] == "error"]
        assert error["message"].startswith(PLACE)
        assert found[-1]["finish_reason"] == "error"
        assert len(audio) > RATE  # half a second
        found, audio = await speak(socket, PAUSED)  # the session continues
        assert found[-1]["finish_reason"] == "eos" and longest_silence(audio) >= 0.7 * RATE


async def test_wyoming_speaks_markup(tts: TTSEngine):
    pytest.importorskip("wyoming")
    from wyoming.audio import AudioStop
    from wyoming.event import Event
    from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStop
    from wyoming_client import connected, events_until, pcm_of

    async with connected(tts) as client:
        asked = Synthesize(PAUSED, text_format="ssml")
        whole = pcm_of(await events_until(client, AudioStop, asked))
        await client.write_event(Event("synthesize-start", {"text_format": "ssml"}))
        for begin in range(0, len(PAUSED), 9):
            await client.write_event(SynthesizeChunk(PAUSED[begin : begin + 9]).event())
        pieces = pcm_of(await events_until(client, AudioStop, SynthesizeStop()))
    assert min(map(longest_silence, (whole, pieces))) >= 0.7 * RATE


@pytest.mark.parametrize("text_format", ["pauses", ["ssml"], 3])
async def test_wyoming_knows_its_own_formats_alone(tts: TTSEngine, text_format: object):
    pytest.importorskip("wyoming")
    from wyoming.event import Event
    from wyoming_client import connected, error_of

    async with connected(tts) as client:
        await client.write_event(Event("synthesize", {"text": "Hi.", "text_format": text_format}))
        error = await error_of(client)
    assert "known: text, ssml" in error.text
