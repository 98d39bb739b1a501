"""Conversations of clients: which requests continue which, over HTTP and over the WebSocket."""

import asyncio
import json
from dataclasses import asdict, replace
from unittest.mock import Mock

import pytest
from dialect_clients import CARTESIA, DEEPGRAM, ELEVENLABS, cartesia, dialect, listen, tell
from fake_engine import FakeStream
from speech_socket import say, session, speak
from waiting import wait_until

from qwen_megakernel.errors import TaskError
from qwen_megakernel.records import Drift
from qwen_megakernel.server import service as server_service
from qwen_megakernel.server.active_speech import ActiveSpeech
from qwen_megakernel.server.schemas import SpeechPlan
from qwen_megakernel.server.settings import ServerSettings


def test_requests_of_a_session_are_one_conversation(live, engine):
    body = {"input": "Hello.", "continuity": "context", "stream": False}
    for name in ("a", "b", "a", None):
        given = {} if name is None else {"session": name}
        assert live.client.post("/v1/audio/speech", json=body | given).status_code == 200
    first, other, again, alone = (stream.conversation for stream in engine.streams)
    assert first is again is not other is not None
    assert alone is None


def test_a_session_in_which_nothing_continues_is_refused(live):
    body = {"input": "Hello.", "session": "a"}
    answer = live.client.post("/v1/audio/speech", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "session"


def test_a_model_that_cannot_continue_is_reported_with_the_field(live, engine, monkeypatch):
    monkeypatch.setattr(engine, "check_continuity", Mock(side_effect=TaskError("untrained")))
    answer = live.client.post("/v1/audio/speech", json={"input": "Hello.", "continuity": "context"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "continuity"


def test_the_oldest_of_too_many_sessions_is_forgotten(engine, monkeypatch):
    monkeypatch.setattr(server_service, "MAX_SESSIONS", 2)
    service = server_service.Service(engine, ServerSettings())
    first = service.conversation("a")
    assert service.conversation("a") is first
    service.conversation("b")
    service.conversation("c")
    assert service.conversation("a") is not first


@pytest.mark.parametrize("is_sent", [True, False])
async def test_speech_that_its_client_lacks_ends_the_conversation(engine, is_sent):
    talk, record = Mock(), Mock(sample_rate=24000, elapsed_ms=0.0, first_audio_ms=None)
    plan, stream = SpeechPlan({"conversation": talk}, Mock(), []), engine.stream("Hello.")
    own = {"settings": Mock(buffer_s=60.0), "mark": engine.mark, "finished": {}}
    speaking = ActiveSpeech(stream, plan, Mock(), record, Mock(), "", **own)
    while speaking.finish_reason is None:  # until the engine is done
        await asyncio.sleep(0.01)
    if is_sent:
        assert [chunk async for chunk in speaking.chunks()]
    speaking.close()
    await speaking._task
    assert talk.forget.called != is_sent


async def test_utterances_of_a_session_are_one_conversation_until_a_cancel(live, engine):
    async with session(live, {"continuity": "context"}) as socket:
        for _ in range(2):
            await speak(socket, "Hello.")
        await say(socket, "response.cancel")
        await speak(socket, "Hello.")
    first, second, later = (stream.conversation for stream in engine.streams)
    assert first is second is not later is not None
    async with session(live) as socket:
        await speak(socket, "Hello.")
    assert engine.streams[-1].conversation is None


CONTEXT = {"continuity": "context"}


async def test_texts_of_a_cartesia_context_are_one_conversation(live, engine):
    async with dialect(live, CARTESIA) as socket:
        for name in ("a", "a", "b"):
            text = cartesia(name, "Hello.", flush=True, **CONTEXT | {"continue": True})
            await tell(socket, **text)
            await listen(socket, lambda each: each["type"] == "flush_done")
        await tell(socket, **cartesia("c", "Hello."))
        await listen(socket, lambda each: each["type"] == "done")
    first, second, other, off = (stream.conversation for stream in engine.streams)
    assert first is second is not other is not None
    assert off is None


async def test_texts_of_an_elevenlabs_context_are_one_conversation(live, engine):
    async with dialect(live, f"{ELEVENLABS}&continuity=context") as socket:
        for count, name in enumerate("aab", 1):  # which would be spoken beside each other
            await tell(socket, text="Hello. ", context_id=name, flush=True)
            await asyncio.to_thread(wait_until, lambda count=count: len(engine.streams) == count)
        await tell(socket, close_socket=True)
        await listen(socket, lambda each: each.get("isFinal"))
    first, second, other = (stream.conversation for stream in engine.streams)
    assert first is second is not other is not None


async def test_a_clear_ends_the_conversation_of_a_deepgram_connection(live, engine):
    async with dialect(live, f"{DEEPGRAM}&continuity=context") as socket:
        for end in ("Flush", "Clear", "Flush"):
            await tell(socket, type="Speak", text="Hello. ")
            await tell(socket, type="Flush")
            await listen(socket, lambda each: each.get("type") == "Flushed")
            if end == "Clear":
                await tell(socket, type=end)
                await listen(socket, lambda each: each.get("type") == "Cleared")
    first, second, later = (stream.conversation for stream in engine.streams)
    assert first is second is not later is not None


def test_a_vendors_client_may_not_choose_another_continuity(live):
    answer = live.client.post("/tts/bytes", json=cartesia("", "Hello.", continuity="always"))
    assert answer.status_code == 400 and "continuity" in answer.json()["message"]


def test_drift_is_reported_in_events_and_metrics(live, monkeypatch):
    drift, make = Drift(1, {"rate_percent": -40.0}, True), FakeStream._make

    async def made(self, num_frames):
        chunk = await make(self, num_frames)
        if chunk and chunk.frame_index:
            self.drifts, chunk = [drift], replace(chunk, drifts=() if self.drifts else (drift,))
        return chunk

    monkeypatch.setattr(FakeStream, "_make", made)
    body = {"input": "Hello, how are you today?", "stream": True, "response_format": "pcm"}
    answer = live.client.post("/v1/audio/speech", json=body)
    first, second, *others, done = (
        json.loads(line.removeprefix("data: "))
        for line in answer.text.split("\n\n")
        if '"audio"' in line
    )
    assert second["drifts"] == done["drifts"] == [asdict(drift)]
    assert not any("drifts" in event for event in (first, *others))
    metrics = live.client.get("/metrics").text
    assert 'tts_drifted_parts_total{redrawn="yes"} 1.0' in metrics
