"""The WebSocket: wrong messages, silence, other origins, a failing engine, and many clients."""

import asyncio
import gc
import json
import signal
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from fake_engine import STORY, FakeEngine
from live_server import SPEECH, configure_slowly, serving
from speech_socket import STREAM, finished_but_unread, hear, hear_until, say, session, speak
from starlette.websockets import WebSocket, WebSocketDisconnect
from waiting import wait_until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from qwen_megakernel.errors import GenerationError
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.session import ContextSession
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.server.utterance import Utterance
from qwen_megakernel.server.websocket import NumberedUtterance


@pytest.mark.parametrize(
    "message",
    [
        "",
        "not json",
        "[]",
        "7",
        "{",
        "[" * 50_000,
        "{}",
        '{"type": 7}',
        '{"type": "input.txt"}',
        '{"type": "input.text"}',
        '{"type": "input.text", "text": 7}',
        '{"type": "session.config", "voice": "nobody"}',
        '{"type": "session.config", "temperature": -1}',
        '{"type": "session.config", "lexicon": {"a": "x", "A": "y"}}',
        '{"type": "session.config", "model": "tts-2"}',
        '{"type": "session.config", "ref_audio": "http://169.254.169.254/"}',
        b"\x00\x01",
        json.dumps({"type": "input.text", "text": "a" * 4097}),
    ],
    ids=range(18),
)
async def test_a_message_that_is_none_is_an_error_and_the_session_goes_on(live, message):
    async with session(live) as socket:
        await socket.send(message)
        event = await hear(socket)
        assert event["type"] == "error" and event["message"] == event["error"]["message"]
        events, _ = await speak(socket, STORY)
        assert events[-1]["finish_reason"] == "eos"


@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("pieces", [["\N{WAVING HAND SIGN}"], [" ", "\N{GRINNING FACE}", " "]])
async def test_text_without_a_word_is_an_error_as_it_is_over_http(live, pieces, is_live):
    async with session(live, {"non_streaming_mode": not is_live}) as socket:
        events, audio = await speak(socket, *pieces)
        assert [event["type"] for event in events] == ["error", "session.done"] and not audio
        assert events[0]["error"]["code"] == "empty_text"
        assert events[1]["finish_reason"] == "error"
        events, _ = await speak(socket, STORY)
        assert events[-1]["finish_reason"] == "eos"


async def test_empty_pieces_without_end_are_not_kept():
    """They add no characters, so that no limit on a text counts them."""
    text = Utterance(plan=Mock())
    for piece in ("Hello.", *[""] * 100):
        await text.feed(piece)
    assert text.pieces == ["Hello."]


async def test_garbage_without_end_closes_the_connection(live):
    async with session(live) as socket:
        with pytest.raises(ConnectionClosed) as caught:
            for _ in range(200):
                await socket.send("garbage")
                await hear(socket)
        assert caught.value.rcvd.code == 1008


@pytest.mark.parametrize(
    "message", [{"type": "input.text", "text": "a"}, {"type": "session.config", "seed": -1}]
)
async def test_a_session_that_does_not_begin_with_its_config_is_closed(live, message):
    async with session(live, False) as socket:
        await socket.send(json.dumps(message))
        assert (await hear(socket))["type"] == "error"
        with pytest.raises(ConnectionClosed) as caught:
            await hear(socket)
        assert caught.value.rcvd.reason == "The first message must be a valid session.config."


async def test_a_message_that_is_too_large_closes_the_connection(engine):
    with serving(engine, max_body_bytes=10_000) as live:
        async with session(live) as socket:
            with pytest.raises(ConnectionClosed) as caught:
                await socket.send("a" * 20_000)
                await hear(socket)
            assert caught.value.rcvd.code == 1009


async def test_text_that_is_not_utf_8_closes_the_connection_without_a_traceback(live, caplog):
    async with session(live) as socket:
        await socket.send(b"\xff\xfe", text=True)
        with pytest.raises(ConnectionClosed) as caught:
            await hear(socket)
    assert caught.value.rcvd.code == 1007
    assert caught.value.rcvd.reason == "The message is not UTF-8 text."
    assert "Traceback" not in caplog.text


async def test_messages_that_are_not_complete_count_among_all_buffered_bytes():
    async def without_end():
        yield "a" * 900_000
        await asyncio.Event().wait()

    limits = {"max_body_bytes": 1 << 20, "max_upload_bytes": 1, "max_buffered_bytes": 2 << 20}
    with serving(FakeEngine(rtf=0.001), **limits) as live:
        admission = live.service.admission
        async with session(live, False) as one, session(live, False) as two, session(live) as last:
            sending = [asyncio.create_task(each.send(without_end())) for each in (one, two)]
            await asyncio.to_thread(wait_until, lambda: admission.buffered_bytes > 1_800_000)
            _, audio = await speak(last, STORY)
            assert audio
            with pytest.raises(ConnectionClosed):
                await say(last, "input.text", text="a" * 500_000)
                await hear(last)
            for each in sending:
                each.cancel()
        await asyncio.to_thread(wait_until, lambda: admission.buffered_bytes == 0)


async def test_quiet_connections_are_closed():
    with serving(FakeEngine(rtf=0.001), config_timeout_s=0.5, idle_timeout_s=0.8) as live:
        async with session(live, False) as socket:
            assert (await hear(socket))["error"]["code"] == "idle_timeout"
        async with session(live) as socket:
            await say(socket, "input.text", text=STORY)  # holds a slot, and is never continued
            events, _ = await hear_until(socket, "error")
            assert events[-1]["error"]["code"] == "idle_timeout"
        await asyncio.to_thread(live.settle)
        assert not live.engine.speaking


async def test_a_session_that_takes_long_to_configure_is_no_silence_of_the_client(monkeypatch):
    """A voice is cloned from `ref_audio` before the session is configured."""
    configure_slowly(monkeypatch, seconds=1)
    with serving(FakeEngine(rtf=0.001), body_timeout_s=0.5) as live:
        async with session(live) as socket:
            _, audio = await speak(socket, STORY)
    assert audio


async def test_a_client_that_only_listens_is_not_quiet():
    with serving(FakeEngine(rtf=1.0), idle_timeout_s=0.8) as live:
        async with session(live) as socket:
            events, _ = await speak(socket, "It takes a second and a half to say.")
            assert events[-1]["finish_reason"] == "eos"


async def test_a_busy_engine_and_a_failing_one_are_errors_of_the_utterance():
    engine = FakeEngine(num_slots=1, fail_after=2, error=GenerationError("planted"))
    with serving(engine, max_queue=0) as live:
        async with session(live) as socket:
            events, _ = await speak(socket, STORY)
            kinds = [event["type"] for event in events]
            assert kinds == ["audio.start", "error", "session.done"]
            assert events[1]["message"] == "planted"
            assert events[2]["finish_reason"] == "error"
            engine.fail_after, engine.stall_after = None, 1
            with live.send_speech():
                await asyncio.to_thread(wait_until, lambda: engine.speaking)
                events, _ = await speak(socket, STORY)
                assert events[0]["error"]["code"] == "engine_busy"
            await asyncio.to_thread(live.settle)
            engine.stall_after = None
            events, _ = await speak(socket, STORY)
            assert events[-1]["finish_reason"] == "eos"


async def test_utterances_beyond_those_that_may_wait_are_errors_in_their_turn():
    with serving(FakeEngine(stall_after=1)) as live:
        async with session(live) as socket:
            for _ in range(12):
                await say(socket, "input.text", text="Hello.")
                await say(socket, "input.done")
            await say(socket, "input.text")  # its error shows that all have arrived
            await hear_until(socket, "error")
            live.loop.call_soon_threadsafe(live.engine.go_on)
            ends = [(await hear_until(socket))[0] for _ in range(12)]
    assert [end[-1]["utterance_index"] for end in ends] == list(range(12))
    assert [end[-1]["finish_reason"] for end in ends] == ["eos"] * 9 + ["error"] * 3
    assert "8 utterances were waiting" in ends[-1][0]["message"]
    assert len(live.engine.streams) == 9


@pytest.mark.ci
async def test_any_number_of_utterances_is_refused_without_being_held():
    """Each utterance, empty ones too, is answered in order, and the connection stays open."""
    engine, count = FakeEngine(stall_after=1), 300
    with serving(engine) as live:
        async with session(live) as socket:
            for index in range(count):
                if index % 2 == 0:
                    await say(socket, "input.text", text=STORY)
                await say(socket, "input.done")
            await say(socket, "input.text")  # its error shows that all have arrived
            events, _ = await hear_until(socket, "error")
            assert "it must be a string" in events[-1]["message"]
            gc.collect()  # utterances of earlier tests
            assert sum(type(each) is NumberedUtterance for each in gc.get_objects()) == 10
            live.loop.call_soon_threadsafe(engine.go_on)
            ends = [(await hear_until(socket))[0] for _ in range(count)]
            assert [end[-1]["utterance_index"] for end in ends] == list(range(count))
            reasons = [end[-1]["finish_reason"] for end in ends]
            assert reasons == ["eos"] * 9 + ["error"] * (count - 9)
            events, _ = await speak(socket, STORY)
            assert (events[-1]["utterance_index"], events[-1]["finish_reason"]) == (count, "eos")


async def test_draining_waits_for_what_is_still_being_sent():
    async with finished_but_unread() as (live, socket):
        live.running.handle_exit(signal.SIGTERM, None)
        await asyncio.sleep(0.3)
        events, audio = await hear_until(socket)
        assert audio == live.engine.streams[0].sent
        assert events[-1]["finish_reason"] == "eos"
        await asyncio.to_thread(wait_until, lambda: live.running.should_exit)


async def test_a_speech_is_unfinished_until_its_last_message_is_sent(monkeypatch, engine):
    """A server that drains closes its sockets when no speech is unfinished."""
    unfinished, send = {}, ContextSession.send
    with serving(engine) as live:

        async def counted_send(self, **message):
            unfinished[message["type"]] = live.running.service.admission.num_unfinished
            await send(self, **message)

        monkeypatch.setattr(ContextSession, "send", counted_send)
        async with session(live) as socket:
            await speak(socket, STORY)
        assert unfinished["audio.done"] == unfinished["session.done"] == 1
        await asyncio.to_thread(live.settle)


async def test_an_utterance_has_a_deadline():
    with serving(FakeEngine(stall_after=1), deadline_s=0.3) as live:
        async with session(live) as socket:
            events, _ = await speak(socket, STORY)
            assert events[-2]["error"]["code"] == "deadline_exceeded"
            assert events[-1]["type"] == "session.done"
        await asyncio.to_thread(live.settle)


async def test_the_key_and_the_origin_are_checked_in_the_handshake(engine):
    with serving(engine, api_key="s3cret") as live:
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Api-Key s3cret", "Origin": "https://evil.example"}, 403),
        ):
            with pytest.raises(InvalidStatus) as caught:
                async with session(live, additional_headers=headers):
                    pass
            response = caught.value.response
            assert response.status_code == status
            assert json.loads(response.body)["error"]["message"]
        headers = {"Authorization": "Api-Key s3cret"}  # as LiveKit's client sends it
        async with session(live, additional_headers=headers) as socket:
            events, _ = await speak(socket, STORY)
            assert events[-1]["finish_reason"] == "eos"


async def test_a_plain_request_to_the_socket_is_refused(live):
    async with httpx.AsyncClient() as client:
        answer = await client.get(live.url + STREAM)
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", ["/v1/audio/stream", SPEECH, "/v1/text-to-speech/vivian"])
async def test_a_websocket_on_another_path_is_answered_404(live, path, caplog):
    with pytest.raises(InvalidStatus) as caught:
        async with connect(live.url.replace("http", "ws") + path):
            pass
    response = caught.value.response
    what = f"This server has no WebSocket {path}. GET /docs lists its endpoints."
    assert response.status_code == 404 and what in response.body.decode()
    await asyncio.to_thread(wait_until, lambda: not live.running.server_state.tasks)
    assert not caplog.messages  # uvicorn logs an error unless it knows that this is an answer


async def test_many_sessions_leave_nothing(live, engine):
    async def one(index):
        async with session(live) as socket:
            if index % 3 == 0:
                await speak(socket, "Hello.")
            elif index % 3 == 1:
                await say(socket, "input.text", text=STORY)
            else:
                await socket.send("garbage")

    for start in range(0, 120, 20):
        await asyncio.gather(*(one(start + index) for index in range(20)))
    await asyncio.to_thread(live.settle)
    state = live.running.server_state
    await asyncio.to_thread(wait_until, lambda: not state.tasks and not state.connections)


async def test_when_a_client_is_gone_no_other_context_sends_to_it():
    """Starlette raises a RuntimeError, which looks like a fault of the server, for the second."""

    async def send(message):
        if message["type"] == "websocket.send":
            raise OSError

    state = {"request_id": "1"}
    scope = {"type": "websocket", "path": STREAM, "headers": [], "state": state}
    socket = WebSocket(scope, AsyncMock(return_value={"type": "websocket.connect"}), send)
    connection = ContextSession(socket, Service(FakeEngine(), ServerSettings()))
    await connection.accept()
    with pytest.raises(WebSocketDisconnect):
        await connection.send(type="of one context")
    with pytest.raises(ConnectionAbortedError, match="The connection is closed"):
        await connection.send(type="of another")
