"""Every odd text is spoken or answered with an error, on every surface."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pipelines
import pytest
from fixtures import module_fixture
from live_server import SPEECH, LiveServer, serving
from odd_texts import odd_texts
from pipecat.frames.frames import TTSStartedFrame, TTSStoppedFrame
from speech_socket import hear_until, say, session

from qwen_megakernel import TTSEngine

MOST_CHARS = 20_000
COUNTS = [100, pytest.param(300, marks=pytest.mark.ci), pytest.param(5000, marks=pytest.mark.slow)]
FORMS: list[dict[str, Any]]
FORMS = [{"stream": False}, {}, {"stream_format": "sse"}, {"stream": True}]
FRAMES = {"max_new_tokens": 3}

demo = module_fixture(
    lambda: TTSEngine.from_pretrained(
        "demo-voice", backend="cpu", warmup=False, max_frames=40, num_slots=2
    )
)


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def live(demo: TTSEngine, request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    with serving(demo, loop=request.param, max_chars=MOST_CHARS) as server:
        yield server


def has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("form", FORMS)
def test_http_speaks_each_odd_text_or_refuses_it(live, form, count):
    connection = http.client.HTTPConnection(*live.address, timeout=30)
    statuses = []
    for text in odd_texts(count):
        body = json.dumps({"input": text} | form | FRAMES)
        connection.request("POST", SPEECH, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        status, answer = response.status, response.read()
        statuses.append(status)
        if status == 200:
            assert answer, repr(text)
            if "sse" in form.values() or True in form.values():
                last = answer.decode().removesuffix("data: [DONE]\n\n").strip().rpartition("\n")[2]
                assert json.loads(last.removeprefix("data: "))["type"] == "speech.audio.done"
        else:
            assert status in (400, 413), (status, repr(text))
            assert json.loads(answer)["error"]["message"]
    connection.close()
    assert statuses.count(200) > count / 2


@pytest.mark.parametrize("count", COUNTS)
async def test_a_websocket_ends_each_odd_text_or_refuses_it(live: LiveServer, count: int):
    reasons = []
    async with session(live, FRAMES) as socket:
        for text in odd_texts(count):
            await say(socket, "input.text", text=text)
            await say(socket, "input.done")
            events, _ = await hear_until(socket)
            reasons.append(events[-1]["finish_reason"])
            assert reasons[-1] in ("length", "eos", "silence", "error"), repr(text)
            assert ("error" in [event["type"] for event in events]) == (reasons[-1] == "error")
    assert reasons.count("length") > count / 2


@pytest.mark.parametrize("count", COUNTS)
async def test_wyoming_speaks_each_odd_text_or_refuses_it(demo: TTSEngine, count: int):
    pytest.importorskip("wyoming")
    import wyoming_client
    from wyoming.audio import AudioStop
    from wyoming.client import AsyncTcpClient
    from wyoming.error import Error
    from wyoming.tts import Synthesize

    num_spoken = 0
    async with wyoming_client.serving(demo, max_chars=MOST_CHARS) as port:
        client = None
        for text in odd_texts(count):
            if client is None:
                client = AsyncTcpClient("127.0.0.1", port)
                client.read_timeout = 20
                await client.connect()
            if has_surrogate(text):
                continue  # the package's client cannot encode it
            await client.write_event(Synthesize(text=text).event())
            while (event := await client.read_event()) and not Error.is_type(event.type):
                if AudioStop.is_type(event.type):
                    num_spoken += 1
                    break
            assert event is not None, repr(text)
            if Error.is_type(event.type):
                await client.disconnect()
                client = None
        if client:
            await client.disconnect()
    assert num_spoken > count / 2


@pytest.mark.parametrize("count", COUNTS)
async def test_pipecat_speaks_each_odd_text_or_reports_an_error(demo: TTSEngine, count: int):
    # The service paces a long speech by the time that it takes to play.
    texts = [text[:300] for text in odd_texts(count) if not has_surrogate(text)]
    async with pipelines.Run(pipelines.service(demo)) as run:
        for text in (*texts, "The end."):
            await run.say(text)
        await run.finish(60 + count / 10)
    spoken, refused = run.frames(TTSStoppedFrame), run.errors
    assert len(run.frames(TTSStartedFrame)) == len(spoken) > count / 2
    assert len(spoken) + len(refused) >= sum(bool(text.strip()) for text in texts)
