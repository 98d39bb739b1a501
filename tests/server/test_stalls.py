"""No request delays the other streams: the server's event loop never stands for long."""

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from live_server import SPEECH, LiveServer, assert_error, serving
from speech_socket import hear_until, say, session

from qwen_megakernel import TTSEngine

MOST_STALL_MS = 50
TRIES = 3  # caches and clocks of a busy machine vary; the least of some tries counts
MEGA = 1_000_000
LONG = "x" * 10 * MEGA


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with (
        TTSEngine.from_pretrained("demo-voice", backend="cpu", max_frames=40, num_slots=2) as demo,
        serving(demo) as server,
    ):
        yield server


def body(**fields: Any) -> bytes:
    return json.dumps({"input": "a", "max_new_tokens": 3} | fields).encode()


BODIES = {
    "nested lists": b"[" * 2 * MEGA,
    "nested objects": b'{"a":' * 300_000,
    "a long number": b'{"input":"a","seed":' + b"1" * 100_000 + b"}",
    "many granularities": body(timestamp_granularities=[1] * 100_000),
    "very many granularities": body(timestamp_granularities=[1] * 4 * MEGA),
    "many wrong words": body(lexicon={str(i): 1 for i in range(100_000)}),
    "many words": body(lexicon={str(i): "x" for i in range(100_000)}),
    "as many wrong words as are allowed": body(lexicon={str(i): 1 for i in range(1000)}),
    "many unknown fields": body(**{f"k{i}": 1 for i in range(300_000)}),
    "as many unknown fields as are allowed": body(**{f"k{i}": 1 for i in range(16_000)}),
    "a long text": body(input=LONG),
    "a long text of escapes": body(input="一" * MEGA),
    "a voice that is a list": body(voice=[1] * 100_000),
    "a recording of zeros": body(ref_audio=base64.b64encode(bytes(10 * MEGA)).decode()),
    **{
        f"a long {name}": body(**{name: LONG})
        for name in ("voice", "model", "language", "instructions", "ref_text", "speed", "other")
    },
}


def stall_ms(live: LiveServer, content: bytes) -> tuple[float, Any]:
    """Return the least of the longest stalls of some tries, and the last response."""
    stalls = []
    while len(stalls) < TRIES and min(stalls, default=1000) > MOST_STALL_MS:
        with live.watched_loop() as longest:
            answer = live.client.post(
                SPEECH, content=content, headers={"Content-Type": "application/json"}
            )
            time.sleep(0.01)
        stalls.append(1000 * longest())
    return min(stalls), answer


@pytest.mark.parametrize("name", BODIES)
def test_no_body_stalls_the_loop_or_has_a_long_answer(live: LiveServer, name: str):
    stall, answer = stall_ms(live, BODIES[name])
    assert stall < MOST_STALL_MS
    if answer.status_code != 200:
        assert answer.status_code in (400, 404, 413)
        assert_error(answer, answer.status_code)
        assert len(answer.content) < 4000


FILLS = ["abcd ", "7", "a.", "1.-/ ,:", "<p ", "<br>", "**a", "一", "1. \n", "\u200d", "a\u0301"]


@pytest.mark.parametrize("normalize", ["on", "off"])
@pytest.mark.parametrize("fill", FILLS)
def test_no_text_stalls_the_loop(live: LiveServer, fill: str, normalize: str):
    text = (fill * 4096)[:4096]
    stall, answer = stall_ms(live, body(input=text, normalize=normalize))
    assert stall < MOST_STALL_MS
    assert answer.status_code in (200, 400)


async def test_no_message_stalls_the_loop(live: LiveServer):
    messages = [
        {"type": "session.config", "timestamp_granularities": [1] * 100_000},
        {"type": "session.config", "lexicon": {str(i): 1 for i in range(30_000)}},
        {"type": "session.config", "lexicon": {str(i): 1 for i in range(1000)}},
        {"type": "input.text", "text": LONG},
    ]
    async with session(live, {"max_new_tokens": 3}) as socket:
        for message in messages:
            data, stalls = json.dumps(message), []
            while len(stalls) < TRIES and min(stalls, default=1000) > MOST_STALL_MS:
                with live.watched_loop() as longest:
                    await socket.send(data)
                    events, _ = await hear_until(socket, "error")
                assert len(events[-1]["message"]) < 4000
                stalls.append(1000 * longest())
            assert min(stalls) < MOST_STALL_MS


@pytest.mark.parametrize("fill", FILLS)
async def test_no_text_of_a_websocket_stalls_the_loop(live: LiveServer, fill: str):
    stalls: list[float] = []
    async with session(live, {"max_new_tokens": 3, "normalize": "on"}) as socket:
        while len(stalls) < TRIES and min(stalls, default=1000) > MOST_STALL_MS:
            with live.watched_loop() as longest:
                await say(socket, "input.text", text="Hello. ")
                await asyncio.sleep(0.02)
                await say(socket, "input.text", text=(fill * 4096)[:4000])
                await say(socket, "input.done")
                await hear_until(socket)
            stalls.append(1000 * longest())
    assert min(stalls) < MOST_STALL_MS
