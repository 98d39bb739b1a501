"""Texts that are read as words: what HTTP, events, the WebSocket and Wyoming report."""

import json
from urllib.parse import unquote

import httpx
import pytest
from fake_engine import FakeEngine
from fixtures import module_fixture
from live_server import SPEECH, LiveServer, serving, sse
from speech_socket import session, speak

from qwen_megakernel.server.schemas import MAX_LEXICON_WORDS
from qwen_megakernel.text.reading.lexicon import MAX_WORD_CHARS
from qwen_megakernel.text.reading.reader import Reading

WRITTEN, WORDS = "It is 3:05 pm — or 5 €.", "It is three oh five p m — or five euros."


def reading_engine(**options: object) -> FakeEngine:
    """An engine that reads texts as words unless a request says otherwise."""
    engine = FakeEngine(**options)
    engine._reading, engine.normalizes = Reading(is_on=True), True
    return engine


live = module_fixture(lambda: serving(FakeEngine()))


def test_a_header_has_what_was_spoken_percent_encoded(live: LiveServer):
    for stream in (False, None):
        answer = live.speak(
            WRITTEN, normalize="on", **({} if stream is None else {"stream": stream})
        )
        header = answer.headers["X-Spoken-Text"]
        assert header.isascii()
        assert unquote(header) == WORDS


def test_a_long_spoken_text_is_cut_in_the_header_between_characters_and_whole_in_the_facts(live):
    text = "5 é " * 1000
    answer = live.speak(text, normalize="on", stream=False, max_new_tokens=9)
    header = answer.headers["X-Spoken-Text"]
    assert 1000 < len(header) <= 1024
    assert ("five é " * 1000).startswith(unquote(header, errors="strict"))
    facts = httpx.get(f"{live.url}{SPEECH}/{answer.headers['X-Request-Id']}").json()
    assert facts["spoken_text"] == "five é " * 1000


def test_the_last_event_has_what_was_spoken(live: LiveServer):
    answer = live.speak(WRITTEN, normalize="on", stream_format="sse")
    *_, done = sse(answer.text)
    assert done["type"] == "speech.audio.done"
    assert done["spoken_text"] == WORDS


def test_a_text_that_is_not_read_has_no_such_field_and_no_such_header(live: LiveServer):
    answer = live.speak(WRITTEN, stream_format="sse")
    assert "X-Spoken-Text" not in answer.headers
    assert all("spoken_text" not in event for event in sse(answer.text))


def test_a_lexicon_of_the_request_is_used(live: LiveServer):
    answer = live.speak("Ask Qwen for 5.", lexicon={"Qwen": "kwen"}, stream=False)
    assert unquote(answer.headers["X-Spoken-Text"]) == "Ask kwen for 5."


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"normalize": "yes"}, "normalize"),
        ({"normalize": True}, "normalize"),
        ({"lexicon": "names.tsv"}, "lexicon"),
        ({"lexicon": {"a": 5}}, "lexicon"),
        ({"lexicon": {"..": "x"}}, "lexicon"),
        ({"lexicon": {"a": "\ud800"}}, "lexicon"),
        ({"lexicon": {"a": "x", "A": "y"}}, "lexicon"),
        ({"lexicon": {"a" * (MAX_WORD_CHARS + 1): "x"}}, "lexicon"),
        ({"lexicon": {f"w{n}": "x" for n in range(MAX_LEXICON_WORDS + 1)}}, "lexicon"),
    ],
)
def test_what_can_never_work_is_refused_with_the_field_and_the_next_request_is_spoken(
    live: LiveServer, fields: dict[str, object], param: str
):
    body = json.dumps({"input": "Hello", **fields})
    headers = {"content-type": "application/json"}
    answer = httpx.post(live.url + SPEECH, content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)
    assert live.speak("Hello", stream=False).status_code == 200


async def test_the_websocket_reports_what_was_spoken_of_a_text_in_pieces(live: LiveServer):
    async with session(live, {"normalize": "on", "lexicon": {"or": "ore"}}) as socket:
        events, _ = await speak(socket, *WRITTEN)
    done = next(event for event in events if event["type"] == "audio.done")
    assert done["spoken_text"] == WORDS.replace(" or ", " ore ")
    assert done["sentence_text"] == WRITTEN


async def test_wyoming_reads_as_the_engine_does():
    pytest.importorskip("wyoming")
    from wyoming.audio import AudioStop
    from wyoming.tts import Synthesize
    from wyoming_client import connected, events_until

    for engine, spoken in ((reading_engine(), WORDS), (FakeEngine(), None)):
        async with connected(engine) as client:
            *_, stop = await events_until(client, AudioStop, Synthesize(WRITTEN))
        assert stop.data.get("spoken_text") == spoken
        assert engine.streams[0].text.spoken == (spoken or WRITTEN)


def test_the_model_says_whether_it_reads_texts_by_itself(live: LiveServer):
    models = httpx.get(f"{live.url}/v1/models").json()["data"]
    assert not any(model["normalizes"] for model in models)
    with serving(reading_engine()) as reading:
        assert httpx.get(f"{reading.url}/v1/models").json()["data"][0]["normalizes"]
        assert unquote(reading.speak("5", stream=False).headers["X-Spoken-Text"]) == "five"
