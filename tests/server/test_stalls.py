"""No request delays the other streams: the server's event loop never stands for long."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from attacks import BODIES, FILLS, LONG, NUM_CHARS, body
from fake_engine import STORY, FakeEngine
from live_server import SPEECH, LiveServer, assert_error, serving
from speech_socket import hear_until, say, session

from qwen_megakernel import TTSEngine
from qwen_megakernel.server.service import shorten_pauses

MOST_STALL_MS = 50
TRIES = 10  # caches and clocks of a busy machine vary; the least of some tries counts


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    with (
        TTSEngine.from_pretrained(
            "demo-voice", backend="cpu", max_frames=2000, num_slots=2
        ) as demo,
        serving(demo, max_chars=NUM_CHARS) as server,
    ):
        interval_s = sys.getswitchinterval()
        shorten_pauses()  # as `serve` does
        yield server
        sys.setswitchinterval(interval_s)


def stall_ms(live: LiveServer, content: bytes, path: str = SPEECH) -> tuple[float, Any]:
    """Return the least of the longest stalls of some tries, and the last response."""
    stalls = []
    while len(stalls) < TRIES and min(stalls, default=1000) > MOST_STALL_MS:
        with live.watched_loop() as longest:
            answer = live.client.post(
                path, content=content, headers={"Content-Type": "application/json"}
            )
            time.sleep(0.01)
        stalls.append(1000 * longest())
    return min(stalls), answer


@pytest.mark.parametrize("name", BODIES)
def test_no_body_stalls_the_loop_or_has_a_long_answer(live: LiveServer, name: str):
    stall, answer = stall_ms(live, BODIES[name]())
    assert stall < MOST_STALL_MS
    if answer.status_code != 200:
        assert answer.status_code in (400, 404, 413)
        assert_error(answer, answer.status_code)
        assert len(answer.content) < 4000


def test_no_fields_of_a_vendors_request_stall_the_loop(live: LiveServer):
    odd = {f"{index}".ljust(40, "\0"): 1 for index in range(16_000)}
    stall, answer = stall_ms(live, body(text="Hello.", **odd), "/v1/text-to-speech/demo")
    assert stall < MOST_STALL_MS
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "form",
    [
        {"stream": True},
        {"timestamp_granularities": ["segment"]},
        {"text": STORY},  # a vendor's, with the times of letters
    ],
    ids=str,
)
def test_no_long_audio_stalls_the_loop(form: dict[str, Any]):
    path = "/v1/text-to-speech/vivian/with-timestamps?output_format=wav_24000"
    with serving(FakeEngine(rtf=0.01)) as live:  # three minutes of audio in two seconds
        live.engine.letter_s = 3.5
        content = json.dumps({"input": STORY} | form).encode()
        stall, answer = stall_ms(live, content, path if "text" in form else SPEECH)
    assert answer.status_code == 200 and len(answer.content) > 8_000_000
    assert stall < MOST_STALL_MS


@pytest.mark.parametrize("normalize", ["on", "off"])
@pytest.mark.parametrize("fill", FILLS)
def test_no_text_stalls_the_loop(live: LiveServer, fill: str, normalize: str):
    text = (fill * NUM_CHARS)[:NUM_CHARS]
    stall, answer = stall_ms(live, body(input=text, normalize=normalize))
    assert stall < MOST_STALL_MS
    # 413: read as words, it is longer than a text may be.
    assert answer.status_code in ((200, 400, 413) if normalize == "on" else (200, 400))


async def test_no_message_stalls_the_loop(live: LiveServer):
    messages = [
        {"type": "session.config", "timestamp_granularities": [1] * 100_000},
        {"type": "session.config", "lexicon": {str(i): 1 for i in range(30_000)}},
        {"type": "session.config", "lexicon": {str(i): 1 for i in range(1000)}},
        {"type": "input.text", "text": LONG},
        {"type": "\u202e" * 3_000_000},
        {"type": "input.text", "text": ["\u202e" * 3_000_000]},
    ]
    async with session(live, {"max_new_tokens": 3}) as socket:
        for message in messages:
            data, stalls = json.dumps(message, ensure_ascii=False), []
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
    async with session(live, {"normalize": "on"}) as socket:
        while len(stalls) < TRIES and min(stalls, default=1000) > MOST_STALL_MS:
            with live.watched_loop() as longest:
                await say(socket, "input.text", text="Hello ")
                await asyncio.sleep(0.02)
                await say(socket, "input.text", text=(fill * NUM_CHARS)[: NUM_CHARS - 6])
                await say(socket, "response.cancel")  # is read when the text has been fed
                events, _ = await hear_until(socket)
            assert events[-1]["finish_reason"] in ("cancelled", "error")  # not ended before
            stalls.append(1000 * longest())
    assert min(stalls) < MOST_STALL_MS
