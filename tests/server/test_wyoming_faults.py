"""Wyoming: engines that fail or hang; clients that are silent, too many, or send wrong events."""

import asyncio
import contextlib
import json
import socket
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("wyoming")
from fake_engine import STORY, FakeEngine
from wyoming.audio import AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.event import Event
from wyoming.info import Describe
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
)
from wyoming_client import connected, error_of, events_until, pcm_of, serving

from qwen_megakernel.errors import GenerationError
from qwen_megakernel.server import wyoming_server
from qwen_megakernel.server.service import Service
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.server.wyoming_server import WyomingServer

BUG = RuntimeError("a bug")


async def test_a_failing_engine_is_reported_and_the_connection_ends() -> None:
    engine = FakeEngine(fail_after=2, error=GenerationError("The grid broke.", "why", "hint"))
    async with connected(engine) as client:
        # No audio-stop, which would end a complete speech.
        error = await error_of(client, Synthesize(STORY))
    assert error.text == "The grid broke.\nwhy\nhint" and error.code == "GenerationError"


async def test_after_an_error_a_new_connection_is_spoken_to() -> None:
    """Home Assistant opens a connection for each answer; see docs/serving.md."""
    async with serving(engine := FakeEngine()) as port:
        for _ in range(3):
            async with AsyncTcpClient("127.0.0.1", port) as client:
                sent = SynthesizeStart(), SynthesizeChunk("\N{GRINNING FACE}"), SynthesizeStop()
                assert (await error_of(client, *sent)).code == "EmptyText"  # then it hangs up
            async with AsyncTcpClient("127.0.0.1", port) as client:
                words = SynthesizeChunk("Once upon "), SynthesizeChunk("a time.")
                sent = SynthesizeStart(), *words, SynthesizeStop()
                events = await events_until(client, SynthesizeStopped, *sent)
            assert pcm_of(events) == engine.streams[-1].sent != b""


@pytest.mark.parametrize("how", [{"fail_after": 2, "error": BUG}, {"refusal": BUG}])
async def test_an_unexpected_failure_is_reported_and_logged(how, caplog) -> None:
    async with connected(FakeEngine(**how)) as client:
        error = await error_of(client, Synthesize(STORY))
    assert error.text == "Internal error; the server's log reports it."
    assert error.code == "RuntimeError"
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert record.exc_info[1].args == BUG.args


async def test_a_ping_is_answered_or_refused_whatever_it_holds(caplog) -> None:
    async with serving(FakeEngine()) as port:
        for text, kind in (("\ud800", "error"), ([1], "pong"), ({"a": "\x00"}, "pong")):
            async with AsyncTcpClient("127.0.0.1", port) as client:
                client._writer.write(event("ping", text=text))
                assert (await client.read_event()).type == kind
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_an_engine_that_hangs_is_given_up() -> None:
    async with connected(engine := FakeEngine(stall_after=1), deadline_s=0.3) as client:
        assert (await error_of(client, Synthesize(STORY))).code == "DeadlineExceeded"
    assert engine.streams[0].cancelled


@pytest.mark.parametrize("opening", [(), (SynthesizeStart(), SynthesizeChunk("Once upon "))])
async def test_a_silent_client_is_sent_away(opening: tuple[Any, ...]) -> None:
    async with connected(engine := FakeEngine(), idle_timeout_s=0.3) as client:
        assert "sent nothing for" in (await error_of(client, *opening)).text
    assert not engine.speaking


async def test_a_client_that_listens_may_be_silent() -> None:
    async with connected(FakeEngine(first_delay_s=1.5), idle_timeout_s=0.6) as client:
        await events_until(client, AudioStop, Synthesize("Hello."))


async def test_a_client_may_leave_in_the_moment_of_its_last_event(monkeypatch) -> None:
    engine = FakeEngine()

    async def read(session: wyoming_server.Session) -> Event | None:
        if not engine.streams:
            return Synthesize("Hello.").event()
        while session._speaker.task:
            await asyncio.sleep(0)
        return None

    monkeypatch.setattr(wyoming_server.Session, "_read", read)
    async with connected(engine) as client:
        while await client.read_event():
            pass


async def test_a_client_that_is_gone_is_no_failure_of_the_server() -> None:
    """asyncio raises an OSError for a closed transport, uvloop a RuntimeError."""
    for error in (ConnectionResetError(), RuntimeError("the handler is closed")):
        writer = Mock(writelines=Mock(side_effect=error))
        service = Service(FakeEngine(), ServerSettings())
        session = wyoming_server.Session(service, asyncio.StreamReader(), writer)
        with pytest.raises(ConnectionAbortedError):
            await session._send(Pong().event())


async def test_one_client_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wyoming_server, "MAX_CLIENTS", 1)
    async with serving(FakeEngine()) as port, AsyncTcpClient("127.0.0.1", port) as first:
        await events_until(first, Pong, Ping())
        async with AsyncTcpClient("127.0.0.1", port) as second:
            assert (await error_of(second)).code == "EngineBusy"
        await events_until(first, Pong, Ping())


async def test_a_long_text_is_refused_whole_and_in_pieces() -> None:
    async with serving(engine := FakeEngine(), max_chars=20) as port:
        async with AsyncTcpClient("127.0.0.1", port) as client:
            assert (await error_of(client, Synthesize("x" * 21))).code == "TextTooLong"
        async with AsyncTcpClient("127.0.0.1", port) as client:
            sent = SynthesizeStart(), *[SynthesizeChunk("seven s")] * 3
            assert (await error_of(client, *sent)).code == "TextTooLong"
    assert not engine.speaking


def event(kind: str, **data: Any) -> bytes:
    return json.dumps({"type": kind, "data": data}).encode() + b"\n"


BAD = {
    "no text": event("synthesize"),
    "empty text": event("synthesize", text=" ... "),
    "text of numbers": event("synthesize", text=[1, 2]),
    "format of numbers": event("synthesize", text="Hi.", text_format=7),
    "voice of the wrong type": event("synthesize", text="Hi.", voice="aiden"),
    "voice of numbers": event("synthesize", text="Hi.", voice={"name": 7}),
    "speaker": event("synthesize", text="Hi.", voice={"name": "aiden", "speaker": "loud"}),
    "language": event("synthesize", text="Hi.", voice={"language": "tlh"}),
    "long language": event("synthesize", text="Hi.", voice={"language": "x" * 65}),
    "half a pair": event("synthesize", text="Hi.", voice={"name": "\ud800"}),
    "chunk before start": event("synthesize-chunk", text="Hi."),
    "stop before start": event("synthesize-stop"),
    "two starts": event("synthesize-start") * 2,
    "no words": event("synthesize-start") + event("synthesize-stop"),
    "list": b"[1]\n",
    "data is a list": b'{"type": "synthesize", "data": [1]}\n',
    "no type": b'{"data": {}}\n',
    "type is a number": b'{"type": 3}\n',
    "length is a word": b'{"type": "synthesize", "data_length": "a"}\n',
    "deep": b"[" * 30000 + b"\n",
}
HANG_UP = {
    "not JSON": b"GET / HTTP/1.1\r\n\r\n",
    "not UTF-8": b"\xff\n",
    "endless line": b"x" * 100_000,
    "endless data": b'{"type": "synthesize", "data_length": 999999999999}\n',
    "endless payload": b'{"type": "synthesize", "payload_length": 999999999999}\n',
}


@pytest.mark.parametrize("sent", BAD.values(), ids=BAD)
async def test_what_cannot_be_understood_is_refused(sent: bytes) -> None:
    async with connected(engine := FakeEngine()) as client:
        client._writer.write(sent)
        assert (await error_of(client)).text
        assert not engine.speaking


@pytest.mark.parametrize("sent", HANG_UP.values(), ids=HANG_UP)
async def test_who_speaks_another_protocol_is_hung_up_on(sent: bytes) -> None:
    async with connected(FakeEngine()) as client:
        client._writer.write(sent)
        with contextlib.suppress(ConnectionResetError):  # the reset that unread bytes cause
            assert await client.read_event() is None


async def test_an_event_that_is_cut_off_ends_the_connection() -> None:
    async with connected(FakeEngine()) as client:
        client._writer.write(b'{"type": "synthesize", "data_length": 50}\n{"te')
        client._writer.write_eof()
        assert (await error_of(client)).text


async def test_an_event_that_would_take_long_to_parse_is_refused() -> None:
    """A megabyte of brackets would keep all streams waiting for a sixth of a second."""
    data = b'{"text": "Hi.", "more": [' + b"[]," * 300_000 + b"0]}"
    head = json.dumps({"type": "synthesize", "data_length": len(data)}).encode()
    async with connected(FakeEngine()) as client:
        client._writer.write(head + b"\n" + data)
        assert "more than 16384 commas and brackets" in (await error_of(client)).text


async def test_events_of_other_services_are_ignored() -> None:
    async with connected(FakeEngine()) as client:
        await client.write_event(Event(type="transcribe", data={"language": "en"}))
        assert len(await events_until(client, Pong, Ping())) == 1


async def test_the_queue_is_the_servers() -> None:
    engine = FakeEngine(num_slots=1, rtf=1.0)
    async with serving(engine, max_queue=0) as port, AsyncTcpClient("127.0.0.1", port) as client:
        await events_until(client, AudioStart, Synthesize(STORY))
        async with AsyncTcpClient("127.0.0.1", port) as second:
            assert (await error_of(second, Synthesize("Hello."))).code == "EngineBusy"


async def test_a_model_that_is_still_loading_is_reported() -> None:
    service = Service(lambda: FakeEngine(), ServerSettings())  # never started
    server = WyomingServer(service, listener := socket.create_server(("127.0.0.1", 0)))
    await server.start()
    async with AsyncTcpClient(*listener.getsockname()) as client:
        assert (await error_of(client, Describe())).code == "NotReady"
    await server.close()
