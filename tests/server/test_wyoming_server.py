"""The Wyoming server against the wyoming package's own client, over a real socket.

Most tests use the engine that hums, one uses random weights.
"""

import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

pytest.importorskip("wyoming")
import truths
from fake_engine import STORY, FakeEngine
from tiny_speech import tiny_engine
from waiting import lateness, wait_until
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
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
from wyoming_client import connected, error_of, events_until, pcm_of, serving, until

from qwen_megakernel.server.service import Service
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.server.wyoming_server import WyomingServer
from qwen_megakernel.speech_options import SoundOptions

# ---- requests of clients -----------------------------------------------------------------------


async def test_info_names_voices_languages_and_streaming() -> None:
    async with connected(FakeEngine(voices=("aiden", "vivian"))) as client:
        program = Info.from_event(*await events_until(client, Info, Describe())).tts[0]
    assert program.installed and program.supports_synthesize_streaming
    assert [voice.name for voice in program.voices] == ["aiden", "vivian"]
    assert all(voice.installed for voice in program.voices)
    assert program.voices[0].languages == ["zh", "en", "de", "ja"]


async def test_a_checkpoint_without_voices_offers_one_and_speaks_with_it() -> None:
    async with connected(engine := FakeEngine(voices=())) as client:
        voice = Info.from_event(*await events_until(client, Info, Describe())).tts[0].voices[0]
        named = SynthesizeVoice(name=voice.name)
        await events_until(client, AudioStop, Synthesize("Hello.", named))
    assert engine.streams[0].request.voice is None


async def test_ping_is_answered() -> None:
    async with connected(FakeEngine()) as client:
        (answer,) = await events_until(client, Pong, Ping(text="there?"))
        assert Pong.from_event(answer).text == "there?"


async def test_a_text_becomes_the_engines_audio() -> None:
    async with connected(engine := FakeEngine()) as client:
        voice = SynthesizeVoice(name="vivian")
        events = await events_until(client, AudioStop, Synthesize(STORY, voice))
    start = AudioStart.from_event(events[0])
    assert (start.rate, start.width, start.channels) == (24000, 2, 1)
    assert pcm_of(events) == engine.streams[0].sent != b""
    assert engine.streams[0].request.voice == "vivian"
    times = [event.data["timestamp"] for event in events[1:]]
    assert times[0] == 0 and times[-1] == len(engine.streams[0].sent) // 48
    assert events[-1].data["finish_reason"] == "eos" and events[-1].data["seed"] == 7


async def test_a_language_without_a_voice_is_spoken() -> None:
    async with connected(engine := FakeEngine()) as client:
        german = SynthesizeVoice(language="de-AT")
        await events_until(client, AudioStop, Synthesize("Hallo.", german))
    assert engine.streams[0].request.language == "de-AT"


async def test_requests_of_one_client_are_answered_in_order() -> None:
    async with connected(engine := FakeEngine()) as client:
        both = Synthesize("One."), Synthesize("Two and a half.")
        first = await events_until(client, AudioStop, *both)
        second = await events_until(client, AudioStop)
    assert [pcm_of(first), pcm_of(second)] == [stream.sent for stream in engine.streams]


async def test_clients_are_served_side_by_side() -> None:
    async with serving(engine := FakeEngine(rtf=0.3)) as port, contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncTcpClient("127.0.0.1", port)) for _ in range(6)
        ]
        for client in clients:
            await client.write_event(Synthesize(STORY).event())
        await until(lambda: len(engine.speaking) == 6)
        for client in clients:
            await events_until(client, AudioStop)
    assert len({stream.sent for stream in engine.streams}) == 6


# ---- text that arrives while audio is sent -----------------------------------------------------


async def test_audio_leaves_before_the_text_is_complete() -> None:
    async with connected(engine := FakeEngine()) as client:
        begun = SynthesizeStart(SynthesizeVoice(name="aiden")), SynthesizeChunk("Once upon a time ")
        events = await events_until(client, AudioChunk, *begun)
        rest = SynthesizeChunk("there was a house."), SynthesizeStop()
        events += await events_until(client, SynthesizeStopped, *rest)
    assert engine.streams[0].text.spoken == "Once upon a time there was a house."
    assert pcm_of(events) == engine.streams[0].sent
    assert [event.type for event in events[-2:]] == ["audio-stop", "synthesize-stopped"]


async def test_home_assistants_copy_of_the_text_is_not_spoken_twice() -> None:
    async with connected(engine := FakeEngine()) as client:
        sent = SynthesizeStart(), SynthesizeChunk("Hello there."), Synthesize("Hello there.")
        await events_until(client, SynthesizeStopped, *sent, SynthesizeStop())
        await events_until(client, AudioStop, Synthesize("Again."))  # not part of the stream
    assert [stream.text.spoken for stream in engine.streams] == ["Hello there.", "Again."]


@pytest.mark.usefixtures("whole_texts")
async def test_random_weights_say_the_same_whole_and_in_pieces() -> None:
    text = "Hello there, you."
    with tiny_engine(max_frames=20) as engine:
        async with connected(engine) as client:
            aiden = SynthesizeVoice(name="aiden")
            events = await events_until(client, AudioStop, Synthesize(text, aiden))
            # The engine draws the seed, and the server reports it.
            seed = events[-1].data["seed"]
            spoken = b"".join(c.pcm16 for c in engine.stream(text, voice="aiden", seed=seed))
            assert pcm_of(events) == spoken
            pieces = [SynthesizeChunk(text[at : at + 5]) for at in range(0, len(text), 5)]
            sent = SynthesizeStart(aiden), *pieces, SynthesizeStop()
            events = await events_until(client, SynthesizeStopped, *sent)
            seed = events[-2].data["seed"]
            whole = engine.stream(text, voice="aiden", seed=seed, text_feed="stepwise")
            spoken = b"".join(c.pcm16 for c in whole)
            assert pcm_of(events) == spoken
            error = await error_of(client, Synthesize(text, SynthesizeVoice(name="alloy")))
    assert error.code == "UnknownVoice" and "aiden" in error.text


async def test_a_voice_in_context_speaks_when_its_text_is_complete(tmp_path: Path) -> None:
    with tiny_engine("tiny-random-base") as engine:
        mario = truths.voice("in context")(engine)
    replace(mario, name="mario").save(tmp_path / "mario.voice.safetensors")
    with tiny_engine("tiny-random-base", voices=tmp_path, max_frames=20) as engine:
        async with connected(engine) as client:
            begun = SynthesizeStart(SynthesizeVoice(name="mario"))
            sent = begun, SynthesizeChunk("Hello "), SynthesizeChunk("there."), SynthesizeStop()
            events = await events_until(client, SynthesizeStopped, *sent)
        seed = events[-2].data["seed"]
        whole = engine.stream("Hello there.", voice="mario", seed=seed)
        assert pcm_of(events) == b"".join(chunk.pcm16 for chunk in whole) != b""


# ---- leaving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_leaves_frees_its_slot(is_streamed: bool) -> None:
    engine = FakeEngine(rtf=2.0)
    sent = [SynthesizeStart(), SynthesizeChunk(STORY)] if is_streamed else [Synthesize(STORY)]
    async with serving(engine) as port:
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await events_until(client, AudioChunk, *sent)
        async with lateness() as late_s, asyncio.timeout(10):
            at = time.monotonic()
            while engine.speaking:
                await asyncio.sleep(0.001)
        assert time.monotonic() - at < 0.08 + 10 * late_s()  # a frame
        assert engine.streams[0].cancelled


async def test_hundred_clients_that_vanish_leave_nothing() -> None:
    async with serving(engine := FakeEngine(rtf=0.5)) as port:
        for _ in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            header = json.dumps({"type": "synthesize", "data": {"text": STORY}})
            writer.write(header.encode() + b"\n")
            await writer.drain()
            writer.transport.abort()
        await until(lambda: all(stream.cancelled for stream in engine.streams))
        await until(lambda: not engine.speaking)
    # `serving` checks that no task is left


async def test_a_client_that_reads_nothing_loses_its_speech() -> None:
    async with serving(engine := FakeEngine(rtf=0.0, letter_s=20), stall_timeout_s=0.2) as port:
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
        events = await events_until(client, AudioChunk, Synthesize(STORY))
        service.admission.draining = True
        assert (await error_of(b, Synthesize("Too late."))).code == "Draining"
        assert not service.admission.idle  # the drain waits for this
        events += await events_until(client, AudioStop)
        await until(lambda: service.admission.idle)
        await server.close()
    assert pcm_of(events) == engine.streams[0].sent and len(engine.streams) == 1


async def test_closing_ends_what_is_spoken() -> None:
    async with connected(engine := FakeEngine(rtf=1.0)) as client:
        await events_until(client, AudioChunk, Synthesize(STORY))
    assert engine.streams[0].cancelled and not engine.speaking


def test_the_command_speaks_both_protocols_and_drains() -> None:
    command = [sys.executable, "-m", "qwen_megakernel", "serve", "--port", "0"]
    command += ["--wyoming-port", "0", "--model", "demo-voice", "--backend", "torch"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        ports = {}
        for line in server.stderr:
            if found := re.search(r"listening on (\w+)://127.0.0.1:(\d+)", line):
                ports[found[1]] = int(found[2])
            if line == "ready\n":
                break
        assert set(ports) == {"http", "tcp"}
        address = f"http://127.0.0.1:{ports['http']}/ready"
        # "ready" is printed just before
        wait_until(lambda: httpx.get(address, timeout=30).status_code == 200)

        async def talk() -> list[Event]:
            async with AsyncTcpClient("127.0.0.1", ports["tcp"]) as client:
                asked = Synthesize("Hello, how are you today?")
                events = await events_until(client, AudioChunk, asked)
                server.terminate()
                return events + await events_until(client, AudioStop)

        events = asyncio.run(talk())
        assert events[-1].data["finish_reason"] == "eos" and len(pcm_of(events)) > 24000
        assert server.wait(timeout=20) == 128 + signal.SIGTERM


async def test_wyomings_first_audio_is_a_sound_where_the_server_says_so():
    engine = FakeEngine(silent_frames=5)
    async with connected(engine, sound=SoundOptions(leading_silence=0)) as client:
        events = await events_until(client, AudioStop, Synthesize(STORY))
    first = next(AudioChunk.from_event(e) for e in events if AudioChunk.is_type(e.type))
    assert np.abs(np.frombuffer(first.audio, "<i2")[:240]).max() > 7000


async def test_wyoming_speaks_as_the_server_does():
    engine, sound = FakeEngine(), SoundOptions(speed=0.5, sample_rate=16000)
    async with connected(engine, sound=sound) as client:
        events = await events_until(client, AudioStop, Synthesize(STORY))
    assert AudioStart.from_event(events[0]).rate == 16000
    assert pcm_of(events) == engine.streams[0].sent
    stream_samples = len(pcm_of(events)) // 2
    assert AudioStop.from_event(events[-1]).timestamp == 1000 * stream_samples // 16000
    chunks = [AudioChunk.from_event(each) for each in events if AudioChunk.is_type(each.type)]
    ends = np.cumsum([chunk.samples for chunk in chunks])
    assert [chunk.timestamp for chunk in chunks[1:]] == [1000 * n // 16000 for n in ends[:-1]]
