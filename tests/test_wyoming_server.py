"""The Wyoming server against the wyoming package's own client, over a real socket.

Most tests use the engine that hums, one uses random weights.
"""

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from live_server import wait_until
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from qwen_megakernel import TTSEngine, wyoming_server
from qwen_megakernel.errors import GenerationError, TaskError
from qwen_megakernel.server_service import Service
from qwen_megakernel.server_settings import ServerSettings
from qwen_megakernel.wyoming_server import WyomingServer

STORY = "Once upon a time there was a very small house at the edge of a wood. "


@contextlib.asynccontextmanager
async def serving(engine: Any, **settings: Any) -> AsyncIterator[int]:
    """The port of a server, which is closed afterwards and has left nothing behind."""
    service = Service(engine, ServerSettings(**settings))
    listener = socket.create_server(("127.0.0.1", 0))
    server = WyomingServer(service, listener)
    await server.start()
    yield listener.getsockname()[1]
    await server.close()
    await until(lambda: service.admission.idle)
    assert not server._clients
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in rest if "wyoming" in repr(task.get_coro())]


@contextlib.asynccontextmanager
async def connected(engine: Any, **options: Any) -> AsyncIterator[AsyncTcpClient]:
    async with serving(engine, **options) as port, AsyncTcpClient("127.0.0.1", port) as client:
        client.read_timeout = 20
        yield client


async def events_until(client: AsyncTcpClient, kind: Any) -> list[Event]:
    events = []
    while True:
        event = await client.read_event()
        assert event is not None, f"hung up after {[event.type for event in events]}"
        events.append(event)
        if kind.is_type(event.type):
            return events


def pcm_of(events: list[Event]) -> bytes:
    return b"".join(event.payload for event in events if AudioChunk.is_type(event.type))


async def error_of(client: AsyncTcpClient) -> Error:
    """The error that ends the connection."""
    error = Error.from_event((await events_until(client, Error))[-1])
    assert await client.read_event() is None
    return error


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


# ---- what clients ask for ----------------------------------------------------------------------


async def test_info_names_voices_languages_and_streaming() -> None:
    async with connected(FakeEngine(voices=("aiden", "vivian"))) as client:
        await client.write_event(Describe().event())
        program = Info.from_event(await client.read_event()).tts[0]
    assert program.installed and program.supports_synthesize_streaming
    assert [voice.name for voice in program.voices] == ["aiden", "vivian"]
    assert all(voice.installed for voice in program.voices)
    assert program.voices[0].languages == ["zh", "en", "de", "ja"]


async def test_a_checkpoint_without_voices_offers_one_and_speaks_with_it() -> None:
    engine = FakeEngine(voices=())
    async with connected(engine) as client:
        await client.write_event(Describe().event())
        voice = Info.from_event(await client.read_event()).tts[0].voices[0]
        await client.write_event(Synthesize("Hello.", SynthesizeVoice(name=voice.name)).event())
        await events_until(client, AudioStop)
    assert engine.streams[0].request.voice is None


async def test_ping_is_answered() -> None:
    async with connected(FakeEngine()) as client:
        await client.write_event(Ping(text="there?").event())
        assert Pong.from_event(await client.read_event()).text == "there?"


async def test_a_text_becomes_the_engines_audio() -> None:
    engine = FakeEngine()
    async with connected(engine) as client:
        voice = SynthesizeVoice(name="vivian")
        await client.write_event(Synthesize(STORY, voice).event())
        events = await events_until(client, AudioStop)
    start = AudioStart.from_event(events[0])
    assert (start.rate, start.width, start.channels) == (24000, 2, 1)
    assert pcm_of(events) == engine.streams[0].sent != b""
    assert engine.streams[0].request.voice == "vivian"
    times = [event.data["timestamp"] for event in events[1:]]
    assert times[0] == 0 and times[-1] == len(engine.streams[0].sent) // 48
    assert events[-1].data["finish_reason"] == "eos" and events[-1].data["seed"] == 7


async def test_a_language_without_a_voice_is_spoken() -> None:
    engine = FakeEngine()
    async with connected(engine) as client:
        await client.write_event(Synthesize("Hallo.", SynthesizeVoice(language="de-AT")).event())
        await events_until(client, AudioStop)
    assert engine.streams[0].request.language == "de-AT"


async def test_requests_of_one_client_are_answered_in_order() -> None:
    engine = FakeEngine()
    async with connected(engine) as client:
        for text in ("One.", "Two and a half."):
            await client.write_event(Synthesize(text).event())
        first = await events_until(client, AudioStop)
        second = await events_until(client, AudioStop)
    assert [pcm_of(first), pcm_of(second)] == [stream.sent for stream in engine.streams]


async def test_clients_are_served_side_by_side() -> None:
    engine = FakeEngine(rtf=0.3)
    async with serving(engine) as port, contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncTcpClient("127.0.0.1", port)) for _ in range(6)
        ]
        for client in clients:
            await client.write_event(Synthesize(STORY).event())
        await until(lambda: len(engine.speaking) == 6)
        for client in clients:
            await events_until(client, AudioStop)
    assert len({stream.sent for stream in engine.streams}) == 6


# ---- text that arrives while audio leaves ------------------------------------------------------


async def test_audio_leaves_before_the_text_is_complete() -> None:
    engine = FakeEngine()
    async with connected(engine) as client:
        await client.write_event(SynthesizeStart(SynthesizeVoice(name="aiden")).event())
        await client.write_event(SynthesizeChunk("Once upon a time ").event())
        events = await events_until(client, AudioChunk)
        await client.write_event(SynthesizeChunk("there was a house.").event())
        await client.write_event(SynthesizeStop().event())
        events += await events_until(client, SynthesizeStopped)
    assert engine.streams[0].text == "Once upon a time there was a house."
    assert pcm_of(events) == engine.streams[0].sent
    assert [event.type for event in events[-2:]] == ["audio-stop", "synthesize-stopped"]


async def test_home_assistants_copy_of_the_text_is_not_spoken_twice() -> None:
    engine = FakeEngine()
    async with connected(engine) as client:
        await client.write_event(SynthesizeStart().event())
        await client.write_event(SynthesizeChunk("Hello there.").event())
        await client.write_event(Synthesize("Hello there.").event())
        await client.write_event(SynthesizeStop().event())
        await events_until(client, SynthesizeStopped)
        await client.write_event(Synthesize("Again.").event())  # outside: a request of its own
        await events_until(client, AudioStop)
    assert [stream.text for stream in engine.streams] == ["Hello there.", "Again."]


async def test_random_weights_say_the_same_whole_and_in_pieces() -> None:
    text = "Hello there, you."
    with TTSEngine.from_pretrained("tiny-random", max_frames=20, warmup=False) as engine:
        async with connected(engine) as client:
            await client.write_event(Synthesize(text, SynthesizeVoice(name="aiden")).event())
            events = await events_until(client, AudioStop)
            # The seed is the engine's to draw, and told.
            seed = events[-1].data["seed"]
            spoken = b"".join(c.pcm16 for c in engine.stream(text, voice="aiden", seed=seed))
            assert pcm_of(events) == spoken
            await client.write_event(SynthesizeStart(SynthesizeVoice(name="aiden")).event())
            for start in range(0, len(text), 5):
                await client.write_event(SynthesizeChunk(text[start : start + 5]).event())
            await client.write_event(SynthesizeStop().event())
            events = await events_until(client, SynthesizeStopped)
            seed = events[-2].data["seed"]
            whole = engine.stream(text, voice="aiden", seed=seed, text_feed="stepwise")
            spoken = b"".join(c.pcm16 for c in whole)
            assert pcm_of(events) == spoken
            await client.write_event(Synthesize(text, SynthesizeVoice(name="alloy")).event())
            error = await error_of(client)
    assert error.code == "UnknownVoice" and "aiden" in error.text


async def test_a_voice_in_context_speaks_when_its_text_is_complete() -> None:
    class Whole(FakeEngine):  # refuses what `TTSEngine` refuses of such a voice
        def stream(
            self, text: str | None = None, *, text_open: bool = False, **options: Any
        ) -> Any:
            if text_open:
                raise TaskError("its text cannot be open")
            return super().stream(text, **options)

    engine = Whole(voices=("mario",))
    async with connected(engine) as client:
        await client.write_event(SynthesizeStart(SynthesizeVoice(name="mario")).event())
        await client.write_event(SynthesizeChunk("Hello ").event())
        await client.write_event(SynthesizeChunk("there.").event())
        await client.write_event(SynthesizeStop().event())
        events = await events_until(client, SynthesizeStopped)
    assert engine.streams[0].text == "Hello there." and engine.streams[0].request.voice == "mario"
    assert pcm_of(events) == engine.streams[0].sent


# ---- leaving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_leaves_frees_its_slot(is_streamed: bool) -> None:
    engine = FakeEngine(rtf=2.0)
    async with serving(engine) as port:
        async with AsyncTcpClient("127.0.0.1", port) as client:
            if is_streamed:
                await client.write_event(SynthesizeStart().event())
                await client.write_event(SynthesizeChunk(STORY).event())
            else:
                await client.write_event(Synthesize(STORY).event())
            await events_until(client, AudioChunk)
        async with asyncio.timeout(0.08):  # a frame
            while engine.speaking:
                await asyncio.sleep(0.001)
        assert engine.streams[0].cancelled


async def test_hundred_clients_that_vanish_leave_nothing() -> None:
    engine = FakeEngine(rtf=0.5)
    async with serving(engine) as port:
        for _ in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            header = json.dumps({"type": "synthesize", "data": {"text": STORY}})
            writer.write(header.encode() + b"\n")
            await writer.drain()
            writer.transport.abort()
        await until(lambda: all(stream.cancelled for stream in engine.streams))
        await until(lambda: not engine.speaking)
    # `serving` sees that no task is left


async def test_a_client_that_reads_nothing_loses_its_speech() -> None:
    engine = FakeEngine(rtf=0.0, letter_s=20)
    async with serving(engine, stall_timeout_s=0.2) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        header = json.dumps({"type": "synthesize", "data": {"text": STORY}})
        writer.write(header.encode() + b"\n")
        await until(lambda: engine.streams and engine.streams[0].cancelled)
        assert not engine.speaking
        writer.close()


async def test_a_server_that_drains_ends_its_speeches_and_refuses_new_ones() -> None:
    engine = FakeEngine(rtf=0.2)
    service = Service(engine, ServerSettings())
    listener = socket.create_server(("127.0.0.1", 0))
    server, port = WyomingServer(service, listener), listener.getsockname()[1]
    await server.start()
    async with AsyncTcpClient("127.0.0.1", port) as client, AsyncTcpClient("127.0.0.1", port) as b:
        await client.write_event(Synthesize(STORY).event())
        events = await events_until(client, AudioChunk)
        service.admission.draining = True
        await b.write_event(Synthesize("Too late.").event())
        assert (await error_of(b)).code == "Draining"
        assert not service.admission.idle  # which is what the drain waits for
        events += await events_until(client, AudioStop)
        await until(lambda: service.admission.idle)
        await server.close()
    assert pcm_of(events) == engine.streams[0].sent and len(engine.streams) == 1


async def test_closing_ends_what_is_spoken() -> None:
    engine = FakeEngine(rtf=1.0)
    async with connected(engine) as client:
        await client.write_event(Synthesize(STORY).event())
        await events_until(client, AudioChunk)
    assert engine.streams[0].cancelled and not engine.speaking


# ---- what can go wrong -------------------------------------------------------------------------


async def test_a_failing_engine_is_told_and_the_connection_ends() -> None:
    engine = FakeEngine(fail_after=2, error=GenerationError("The grid broke.", "why", "cure"))
    async with connected(engine) as client:
        await client.write_event(Synthesize(STORY).event())
        error = await error_of(client)  # no audio-stop: nobody takes half for the whole
    assert error.text == "The grid broke.\nwhy\ncure" and error.code == "GenerationError"


async def test_an_unexpected_failure_ends_the_connection() -> None:
    async with connected(FakeEngine(fail_after=2, error=RuntimeError("a bug"))) as client:
        await client.write_event(Synthesize(STORY).event())
        while await client.read_event():
            pass


async def test_an_engine_that_hangs_is_given_up() -> None:
    engine = FakeEngine(stall_after=1)
    async with connected(engine, deadline_s=0.3) as client:
        await client.write_event(Synthesize(STORY).event())
        assert (await error_of(client)).code == "DeadlineExceeded"
    assert engine.streams[0].cancelled


@pytest.mark.parametrize("opening", [(), (SynthesizeStart(), SynthesizeChunk("Once upon "))])
async def test_a_silent_client_is_sent_away(opening: tuple[Any, ...]) -> None:
    engine = FakeEngine()
    async with connected(engine, idle_timeout_s=0.3) as client:
        for event in opening:
            await client.write_event(event.event())
        assert "Nothing was sent" in (await error_of(client)).text
    assert not engine.speaking


async def test_a_client_that_listens_may_be_silent() -> None:
    async with connected(FakeEngine(first_delay_s=0.5), idle_timeout_s=0.2) as client:
        await client.write_event(Synthesize("Hello.").event())
        await events_until(client, AudioStop)


async def test_one_client_too_many_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wyoming_server, "MAX_CLIENTS", 1)
    async with serving(FakeEngine()) as port, AsyncTcpClient("127.0.0.1", port) as first:
        await first.write_event(Ping().event())
        await first.read_event()
        async with AsyncTcpClient("127.0.0.1", port) as second:
            assert (await error_of(second)).code == "EngineBusy"
        await first.write_event(Ping().event())
        assert await first.read_event()


async def test_a_long_text_is_refused_whole_and_in_pieces() -> None:
    engine = FakeEngine()
    async with serving(engine, max_chars=20) as port:
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(Synthesize("x" * 21).event())
            assert (await error_of(client)).code == "TextTooLong"
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(SynthesizeStart().event())
            for _ in range(3):
                await client.write_event(SynthesizeChunk("seven s").event())
            assert (await error_of(client)).code == "TextTooLong"
    assert not engine.speaking


def event(kind: str, **data: Any) -> bytes:
    return json.dumps({"type": kind, "data": data}).encode() + b"\n"


BAD = {
    "no text": event("synthesize"),
    "empty text": event("synthesize", text=" ... "),
    "text of numbers": event("synthesize", text=[1, 2]),
    "markup": event("synthesize", text="<speak>Hi</speak>", text_format="ssml"),
    "voice of the wrong type": event("synthesize", text="Hi.", voice="aiden"),
    "voice of numbers": event("synthesize", text="Hi.", voice={"name": 7}),
    "speaker": event("synthesize", text="Hi.", voice={"name": "aiden", "speaker": "loud"}),
    "language": event("synthesize", text="Hi.", voice={"language": "tlh"}),
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
    engine = FakeEngine()
    async with connected(engine) as client:
        client._writer.write(sent)
        assert (await error_of(client)).text
        assert not engine.speaking


@pytest.mark.parametrize("sent", HANG_UP.values(), ids=HANG_UP)
async def test_who_speaks_another_protocol_is_hung_up_on(sent: bytes) -> None:
    async with connected(FakeEngine()) as client:
        client._writer.write(sent)
        with contextlib.suppress(ConnectionResetError):  # what was not read is answered so
            assert await client.read_event() is None


async def test_an_event_that_is_cut_off_ends_the_connection() -> None:
    async with connected(FakeEngine()) as client:
        client._writer.write(b'{"type": "synthesize", "data_length": 50}\n{"te')
        client._writer.write_eof()
        assert (await error_of(client)).text


async def test_events_of_other_services_are_ignored() -> None:
    async with connected(FakeEngine()) as client:
        await client.write_event(Event(type="transcribe", data={"language": "en"}))
        await client.write_event(Ping().event())
        assert Pong.is_type((await client.read_event()).type)


async def test_the_queue_is_the_servers() -> None:
    engine = FakeEngine(num_slots=1, rtf=1.0)
    async with serving(engine, max_queue=0) as port, AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(Synthesize(STORY).event())
        await events_until(client, AudioStart)
        async with AsyncTcpClient("127.0.0.1", port) as second:
            await second.write_event(Synthesize("Hello.").event())
            assert (await error_of(second)).code == "EngineBusy"


async def test_a_model_that_is_still_loading_is_told() -> None:
    service = Service(lambda: FakeEngine(), ServerSettings())  # never started
    server = WyomingServer(service, listener := socket.create_server(("127.0.0.1", 0)))
    await server.start()
    async with AsyncTcpClient(*listener.getsockname()) as client:
        await client.write_event(Describe().event())
        assert (await error_of(client)).code == "NotReady"
    await server.close()


def test_the_command_speaks_both_protocols_and_drains() -> None:
    command = [sys.executable, "-m", "qwen_megakernel", "serve", "--port", "0"]
    command += ["--wyoming-port", "0", "--model", "demo-voice"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        ports = {}
        for line in server.stderr:
            if found := re.search(r"listening on (\w+)://127.0.0.1:(\d+)", line):
                ports[found[1]] = int(found[2])
            if line == "ready\n":
                break
        assert set(ports) == {"http", "tcp"}
        address = f"http://127.0.0.1:{ports['http']}/ready"
        wait_until(lambda: httpx.get(address).status_code == 200)  # "ready" is said just before

        async def talk() -> list[Event]:
            async with AsyncTcpClient("127.0.0.1", ports["tcp"]) as client:
                await client.write_event(Synthesize("Hello, how are you today?").event())
                events = await events_until(client, AudioChunk)
                server.terminate()
                return events + await events_until(client, AudioStop)

        events = asyncio.run(talk())
        assert events[-1].data["finish_reason"] == "eos" and len(pcm_of(events)) > 24000
        assert server.wait(timeout=20) == 0
