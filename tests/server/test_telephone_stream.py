"""examples/telephone_stream.py answers the calls of a provider, which these tests play."""

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from commands import script
from fixtures import module_fixture, module_value
from tolerances import PCM16_STEP
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from qwen_megakernel import TTSEngine
from qwen_megakernel.audio import to_g711
from qwen_megakernel.errors import UsageError

TEXT = "Your table is ready."
START = {
    "event": "start",
    "start": {
        "streamSid": "MZ1",
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
    },
}


example = module_value(lambda: script("examples/telephone_stream.py"))


engine = module_fixture(lambda: TTSEngine.from_pretrained("demo-voice", backend="cpu", num_slots=2))


@contextlib.asynccontextmanager
async def calls(example: Any, engine: TTSEngine, capsys: Any) -> AsyncIterator[str]:
    """The address of the program, which answers calls while the block runs."""
    answering = asyncio.create_task(example.answer_calls(engine, TEXT, "127.0.0.1", 0, seed=3))
    address = None
    while not address:
        await asyncio.sleep(0.01)
        address = re.search(r"ws://\S+", capsys.readouterr().err)
    yield address[0]
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)


async def say(socket: ClientConnection, **message: Any) -> None:
    await socket.send(json.dumps(message))


async def heard(socket: ClientConnection) -> list[bytes]:
    """The media of a call until its mark."""
    frames = []
    async with asyncio.timeout(30):
        while (message := json.loads(await socket.recv()))["event"] == "media":
            assert message["streamSid"] == "MZ1"
            frames.append(base64.b64decode(message["media"]["payload"]))
    assert message == {"event": "mark", "streamSid": "MZ1", "mark": {"name": "heard"}}
    return frames


async def test_two_callers_hear_the_text_in_frames_of_20_ms_and_the_calls_end(
    example, engine, capsys
):
    speech = engine.synthesize(TEXT, seed=3, sample_rate=8000, first_chunk_frames=1)
    samples = (speech.audio * 32768).astype("int16")
    # PyTorch sums a batch of two in another order on some CPUs, which moves a sample by one step.
    possible = [to_g711(samples + np.int16(step), "ulaw") for step in (-PCM16_STEP, 0, PCM16_STEP)]

    async def call(address: str) -> None:
        async with connect(address) as socket:
            await say(socket, event="connected", protocol="Call", version="1.0.0")
            await socket.send(json.dumps(START))
            caller = base64.b64encode(b"\xff" * 160).decode()
            await say(socket, event="media", streamSid="MZ1", media={"payload": caller})
            frames = await heard(socket)
            assert {len(frame) for frame in frames} == {160}
            sound = b"".join(frames)
            assert len(sound) >= len(samples)
            assert all(code in codes for code, *codes in zip(sound, *possible, strict=False))
            assert sound[len(samples) :] == b"\xff" * (len(sound) - len(samples))
            await say(socket, event="mark", streamSid="MZ1", mark={"name": "heard"})
            with pytest.raises(ConnectionClosed):
                await socket.recv()

    async with calls(example, engine, capsys) as address:
        await asyncio.gather(call(address), call(address))


async def test_a_caller_who_hangs_up_ends_the_speech(example, engine, capsys):
    async with calls(example, engine, capsys) as address:
        async with connect(address) as socket:
            await socket.send(json.dumps(START))
            await socket.recv()
            await say(socket, event="stop", streamSid="MZ1")
            with pytest.raises(ConnectionClosed):
                while True:
                    await socket.recv()
        async with asyncio.timeout(10):
            while engine.num_active:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "message",
    [
        "no JSON",
        "[]",
        "{}",
        '{"event": "start", "start": {}}',
        '{"event": "start", "start": {"streamSid": "a", "mediaFormat": {"sampleRate": 16000}}}',
        '{"event": "mark"}',
    ],
)
async def test_what_is_no_media_stream_is_refused(example, engine, capsys, message):
    async with calls(example, engine, capsys) as address, connect(address) as socket:
        await socket.send(message)
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(socket.recv(), 10)
    assert closed.value.rcvd.code == 1007
    assert not engine.num_active


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "65536"], "--port is 65536; it must be 0 .. 65535."),
        (["--text", " "], "Text is empty after trimming."),
    ],
)
def test_what_no_caller_could_hear_is_refused_before_the_model_is_loaded(
    example, monkeypatch, words, message
):
    monkeypatch.setattr("sys.argv", ["telephone_stream.py", *words, "--model", "owner/never"])
    with pytest.raises(UsageError) as refused:
        example.main(example.parse_args())
    assert refused.value.what == message
