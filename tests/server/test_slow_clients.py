"""Clients that send or read slowly, and long texts: they do not keep the server from others."""

import asyncio
import json
import threading
import weakref
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from fake_engine import STORY, FakeEngine, FakeStream
from live_server import LiveServer, http_post, serving
from speech_socket import hear_until, say, session, speak
from tiny_speech import VOICE, tiny_engine
from waiting import wait_until

from qwen_megakernel.server import service

LIMIT_S = 60  # for the answer to another client
LONG = "Once upon a time there was a very small house. " * 60
PAUSES = {
    "input": " [pause 1s] ".join(["Hello there.", "How are you?", "It is cold.", "Goodbye."] * 2),
    "text_format": "pauses",
    "response_format": "pcm",
    "voice": VOICE,
    "seed": 3,
}


@pytest.fixture(scope="module")
def one_slot(cache_folder: Any) -> Iterator[LiveServer]:
    """A server with one slot; nothing but the slot's own rules takes it away in time."""
    times = {"stall_timeout_s": 600.0, "idle_timeout_s": 600.0}
    with (
        tiny_engine() as tts,
        serving(tts, send_buffer=4096, buffer_s=1.0, max_queue=2, **times) as live,
    ):
        yield live


def another_is_answered(live: LiveServer) -> None:
    answer = httpx.post(
        f"{live.url}/v1/audio/speech",
        json={"input": "Hi.", "voice": VOICE, "max_new_tokens": 3},
        timeout=LIMIT_S,
    )
    assert answer.status_code == 200 and len(answer.content) > 44


async def test_a_text_that_does_not_continue_keeps_no_other_client_waiting(one_slot):
    # With this seed no end token is drawn while the end of the text is awaited.
    async with session(one_slot, {"voice": VOICE, "seed": 1}) as socket:
        await say(socket, "input.text", text="Hello ")
        await hear_until(socket, "audio.start")

        async def send_nothing() -> None:
            while True:
                await say(socket, "input.text", text="")
                await asyncio.sleep(0.2)

        sending = asyncio.create_task(send_nothing())
        await asyncio.to_thread(another_is_answered, one_slot)
        sending.cancel()
        await say(socket, "input.text", text="there, how are you?")
        await say(socket, "input.done")
        events, _ = await hear_until(socket)
    done = events[-2]
    assert done["type"] == "audio.done" and done["parts"] == 2
    assert done["sentence_text"] == "Hello there, how are you?"
    assert events[-1]["finish_reason"] in ("eos", "length")


@pytest.mark.ci
def test_a_client_that_reads_nothing_keeps_no_other_waiting_and_loses_nothing(one_slot):
    whole = one_slot.client.post("/v1/audio/speech", json=PAUSES).content
    with one_slot.connect_slowly() as stalled:
        stalled.sendall(http_post(json.dumps(PAUSES).encode()))
        table = one_slot.engine._loop.table
        wait_until(
            lambda: any(each.is_reader_behind for each in [*table.waiting, *table.active()]),
            LIMIT_S,
        )
        another_is_answered(one_slot)
        assert table.num_streams == 1  # it has not ended
        stalled.settimeout(LIMIT_S)
        answer = HTTPResponse(stalled)
        answer.begin()
        assert answer.read() == whole


@pytest.mark.parametrize("blank", ["", " \n"])
async def test_blank_text_does_not_keep_a_connection_open(blank):
    with serving(FakeEngine(rtf=0.001), idle_timeout_s=0.8) as live:
        async with session(live) as socket:
            await say(socket, "input.text", text=STORY)

            async def send_blanks() -> None:
                while True:
                    await say(socket, "input.text", text=blank)
                    await asyncio.sleep(0.1)

            sending = asyncio.create_task(send_blanks())
            events, _ = await hear_until(socket, "error")
            sending.cancel()
    assert events[-1]["error"]["code"] == "idle_timeout"


# ---- long texts ----------------------------------------------------------------------------------


async def test_the_server_answers_others_while_it_reads_a_long_text(engine, monkeypatch):
    reading, is_read = threading.Event(), threading.Event()
    start = engine.stream

    def slow_start(*args: Any, **options: Any) -> FakeStream:
        reading.set()
        assert is_read.wait(LIMIT_S)
        return start(*args, **options)

    monkeypatch.setattr(engine, "stream", slow_start)
    with serving(engine) as live:
        speaking = asyncio.create_task(asyncio.to_thread(live.speak, LONG))
        try:
            await asyncio.to_thread(wait_until, reading.is_set)
            async with httpx.AsyncClient() as client:
                health = await client.get(f"{live.url}/health", timeout=LIMIT_S / 2)
                assert health.status_code == 200
        finally:
            is_read.set()
        assert (await speaking).status_code == 200


async def test_a_stream_whose_client_left_while_its_text_was_read_is_not_kept():
    reading, is_read, begun = threading.Event(), threading.Event(), []

    def begin(*_: Any, **__: Any) -> FakeEngine:
        reading.set()
        assert is_read.wait(LIMIT_S)
        stream = FakeEngine()  # anything that can be referred to weakly
        begun.append(weakref.ref(stream))
        return stream

    beginning = asyncio.create_task(service._begin(Mock(stream=begin), LONG, {}))
    await asyncio.to_thread(wait_until, reading.is_set)
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    is_read.set()
    await asyncio.to_thread(wait_until, lambda: begun and begun[0]() is None)


async def test_a_long_piece_of_text_is_fed_in_short_ones(engine, monkeypatch):
    fed, feed = [], FakeStream.feed

    def slow_feed(stream: FakeStream, text: str) -> None:
        fed.append(text)
        feed(stream, text)

    monkeypatch.setattr(FakeStream, "feed", slow_feed)
    with serving(engine) as live:
        async with session(live) as socket:
            events, _ = await speak(socket, "Once ", LONG)
        assert events[-1]["finish_reason"] == "eos"
    assert "".join(fed) == f"Once {LONG}"
    assert max(map(len, fed)) <= 500
