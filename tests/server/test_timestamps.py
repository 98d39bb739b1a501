"""Times of words: in one JSON response, in events, over the WebSocket; and refused requests."""

import base64
import io
import json

import httpx
import pytest
import soundfile
from fake_engine import STORY, FakeEngine
from fixtures import module_fixture
from live_server import SPEECH, LiveServer, assert_error, serving, sse
from speech_socket import hear, hear_until, say, session, speak

BOTH = ["word", "segment"]

live = module_fixture(lambda: serving(FakeEngine()))


def check(words: list[dict], text: str, seconds: float) -> None:
    """Check that the words are those of the text, in order, and within the sound."""
    assert [word["word"] for word in words] == text.split()
    assert all(set(word) == {"word", "start", "end"} for word in words)
    times = [word[name] for word in words for name in ("start", "end")]
    assert times == sorted(times) and times[0] >= 0 and times[-1] <= seconds
    assert times[-1] > 0.8 * seconds


@pytest.mark.parametrize("stream", [None, False])
def test_a_request_for_timestamps_is_answered_by_json_with_the_audio(live, stream):
    body = {} if stream is None else {"stream": stream}
    answer = live.speak(STORY * 2, timestamp_granularities=BOTH, seed=3, **body)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["X-Finish-Reason"] == "eos" and answer.headers["X-Seed"] == "3"
    facts = answer.json()
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(facts["audio"])), dtype="int16")
    assert samples.tobytes() == live.engine.streams[-1].sent
    assert (facts["format"], facts["sample_rate"], facts["seed"]) == ("wav", rate, 3)
    check(facts["words"], STORY * 2, len(samples) / rate)
    first, second = facts["segments"]
    assert (first["id"], second["id"]) == (0, 1)
    assert first["text"] == second["text"] == STORY.strip()
    assert first["start"] == facts["words"][0]["start"]
    assert second["end"] == facts["words"][-1]["end"]


@pytest.mark.parametrize(("name", "other"), [("word", "segments"), ("segment", "words")])
def test_an_answer_has_the_granularities_that_were_asked_for(live, name, other):
    facts = live.speak(STORY, timestamp_granularities=[name], response_format="mp3").json()
    assert facts[f"{name}s"] and other not in facts
    assert facts["format"] == "mp3"


def test_half_a_surrogate_pair_within_a_word_is_an_escape(live: LiveServer):
    body = json.dumps({"input": "A\ud800B ends.", "timestamp_granularities": ["word"]})
    answer = live.client.post(SPEECH, content=body, headers={"Content-Type": "application/json"})
    assert [each["word"] for each in answer.json()["words"]] == ["A\ud800B", "ends."]


def test_events_have_words_while_the_speech_is_made_and_all_of_them_in_the_end(live: LiveServer):
    text = (STORY * 3).strip()
    answer = live.speak(text, stream_format="sse", timestamp_granularities=BOTH)
    events = sse(answer.text)
    kinds = [event["type"] for event in events]
    times = [event for event in events if event["type"] == "speech.audio.timestamps"]
    assert len(times) > 1
    assert kinds.index("speech.audio.timestamps") < len(kinds) - 1 - kinds[::-1].index(
        "speech.audio.delta"
    )
    assert kinds[-1] == "speech.audio.done"
    assert all(set(event) <= {"type", "words", "segments"} for event in times)
    words = [word for event in times for word in event.get("words", [])]
    check(words, text, events[-1]["n_samples"] / 24000)
    segments = [each for event in times for each in event.get("segments", [])]
    assert [each["id"] for each in segments] == [0, 1, 2]
    assert all(each["text"] == STORY.strip() for each in segments)


def test_without_the_field_nothing_is_reported(live: LiveServer):
    assert "timestamps" not in live.speak(STORY, stream_format="sse").text
    assert live.speak(STORY).headers["content-type"] == "audio/wav"


def test_all_events_have_timestamps_too(live: LiveServer):
    events = sse(live.speak(STORY, stream=True, timestamp_granularities=["segment"]).text)
    times = [event for event in events if event["type"] == "speech.audio.timestamps"]
    assert [each["text"] for event in times for each in event["segments"]] == [STORY.strip()]
    assert all("words" not in event for event in times)


def test_words_are_those_of_the_text_before_it_was_read(live: LiveServer):
    text = "It is 3:05 pm, or $12.50."
    facts = live.speak(text, normalize="on", timestamp_granularities=["word"]).json()
    check(facts["words"], text, facts["n_samples"] / 24000)
    assert facts["spoken_text"] != text


async def test_the_websocket_has_the_words_of_a_text_in_pieces(live: LiveServer):
    text = (STORY * 2).strip()
    async with session(live, {"timestamp_granularities": BOTH}) as socket:
        events, audio = await speak(
            socket, *[text[place : place + 7] for place in range(0, len(text), 7)]
        )
        times = [event for event in events if event["type"] == "audio.timestamps"]
        assert {event["utterance_index"] for event in times} == {0}
        words = [word for event in times for word in event.get("words", [])]
        check(words, text, len(audio) / 48000)
        segments = [each["text"] for event in times for each in event.get("segments", [])]
        assert segments == [STORY.strip()] * 2
        kinds = [event["type"] for event in events]
        assert kinds.index("audio.timestamps") < kinds.index("audio.done")


async def test_a_cancelled_utterance_has_the_words_that_were_heard():
    with serving(FakeEngine(rtf=0.3)) as server:
        async with session(server, {"timestamp_granularities": ["word"]}) as socket:
            await say(socket, "input.text", text=STORY * 20)
            num_bytes = 0
            while num_bytes < 3 * 48000:
                heard = await hear(socket)
                num_bytes += len(heard) if isinstance(heard, bytes) else 0
            await say(socket, "response.cancel")
            events, audio = await hear_until(socket)
    num_bytes += len(audio)
    words = [w for e in events if e["type"] == "audio.timestamps" for w in e["words"]]
    assert 0 < len(words) < len((STORY * 20).split())
    assert words[-1]["end"] <= num_bytes / 48000


@pytest.mark.parametrize(
    "value", ["word", [], ["words"], ["word", "line"], [1], {}, 5, True, [["word"]], [None]]
)
def test_wrong_granularities_are_refused_before_any_work(live: LiveServer, value: object):
    num_streams = len(live.engine.streams)
    answer = live.speak("Hello", timestamp_granularities=value)
    facts = assert_error(answer, 400)
    assert facts["param"].startswith("timestamp_granularities")
    assert "timestamp_granularities" in facts["message"]
    assert len(live.engine.streams) == num_streams
    assert live.speak("Hello", stream=False).status_code == 200


def test_events_of_phases_carry_no_times(live: LiveServer):
    answer = live.speak(
        "Hello", stream=True, event_format="phases", timestamp_granularities=["word"]
    )
    facts = assert_error(answer, 400, "usage_error")
    assert facts["param"] == "timestamp_granularities"


async def test_wrong_granularities_of_a_session_are_an_error_and_it_goes_on(live: LiveServer):
    async with session(live) as socket:
        await say(socket, "session.config", timestamp_granularities=["line"])
        error = await hear(socket)
        assert error["type"] == "error"
        assert error["error"]["param"].startswith("timestamp_granularities")
        events, _ = await speak(socket, "Hello there.")
        assert events[-1]["finish_reason"] == "eos"


@pytest.mark.parametrize("text", ["", "  ", "…!", "😀"])
def test_a_text_without_a_word_is_refused_as_without_timestamps(live: LiveServer, text: str):
    body = json.dumps({"input": text, "timestamp_granularities": ["word"]})
    headers = {"content-type": "application/json"}
    answer = httpx.post(live.url + SPEECH, content=body, headers=headers)
    assert_error(answer, 400, "empty_text")


@pytest.mark.parametrize("text", ["Hello", "שלום עולם", "Hello 😀 there", "你好，世界。"])
def test_words_of_other_texts(live: LiveServer, text: str):
    facts = live.speak(text, timestamp_granularities=BOTH).json()
    assert "".join(word["word"] for word in facts["words"]) == "".join(text.split())
    assert facts["segments"][0]["text"] == text
