"""Clients put odd text everywhere they can; the log that a program writes stays one of our lines.

The handlers here are those of a program that uses the package: plain, with no filter of ours.
"""

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from fake_engine import FakeEngine
from fixtures import module_fixture
from hypothesis import given, settings
from hypothesis import strategies as st
from live_server import SPEECH, LiveServer, http_post, serving
from speech_socket import hear, say, session
from tiny_speech import tiny_engine

from qwen_megakernel.printable import get_logger

# A forged line, commands of a terminal, every kind of line end, marks of direction, half a pair.
ODD = "FAKE\n2026 ok\r\x1b[31m\x1b]0;x\x07\x00\x7f\x9b1m\x85\u2028\u2029\u202e\u2066\u200f\ud800"
LONG = ODD + "y" * 3000
MAX_LINE_CHARS = 1100  # 1000 of a client's text, and our own words

tts = module_fixture(lambda: tiny_engine())


@pytest.fixture(scope="module")
def live(tts, tmp_path_factory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("voices")
    with serving(tts, voices=folder, allow_upload=True) as server:
        yield server


@contextlib.contextmanager
def logged(quoting: str = "") -> Iterator[list[str]]:
    """Collect the records of the block, all levels, as a program's own formatter writes them.

    Checks that they are harmless, and that one has `quoting`.
    """
    package, handler = logging.getLogger("qwen_megakernel"), logging.Handler()
    records: list[str] = []
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    handler.emit = lambda record: records.append(handler.format(record))
    level = package.level
    package.addHandler(handler)
    package.setLevel(logging.DEBUG)
    try:
        yield records
    finally:
        package.removeHandler(handler)
        package.setLevel(level)
    for record in records:
        line, *trace = record.split("\n")
        assert line.isprintable(), record
        assert all(each.startswith("  ") and each.isprintable() for each in trace), record
        assert max(map(len, (line, *trace))) <= MAX_LINE_CHARS, record
    assert not quoting or any(quoting in record for record in records)


# ---- the loggers ---------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(), max_size=50))
def test_no_text_makes_more_than_a_line_wherever_a_record_has_it(text: str) -> None:
    logger = get_logger("qwen_megakernel.test_logs")
    with logged() as records:
        logger.warning("a client said %s to %s", text, {"key": text})
        logger.warning("%(what)s", {"what": text})
        logger.warning(f"a client said {text}")
        logger.warning("%s", ValueError(text))
        try:
            raise ValueError(text) from KeyError(text)
        except ValueError:
            logger.exception("%s failed.", text)
    assert len(records) == 5


def test_a_record_keeps_its_numbers_and_an_error_its_lines() -> None:
    logger = get_logger("qwen_megakernel.test_logs")
    with logged() as records:
        logger.info("%d of %.1f %s", 3, 2.5, ValueError("what\nwhy\nhint"))
    assert records == ["INFO 3 of 2.5 what why hint"]


# ---- the library ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "text_format", "quoting"),
    [
        (f"Hello <p {LONG}> you", "plain", "markup (<p FAKE"),
        ("Hello <p\n> you", "plain", r"markup (<p\n>)"),
        (f'<p {"z" * 1500}="a&#10;b">Hello.</p>', "ssml", "zzz... (SSML"),
        ('<lang xml:lang="FAKE&#10;&#x85;">Hello.</lang>', "ssml", "FAKE"),
        ('<say-as interpret-as="FAKE&#10;&#x2028;">x</say-as>', "ssml", "FAKE"),
        ('<say-as interpret-as="date">FAKE&#10;&#x2028;</say-as>', "ssml", "FAKE"),
    ],
)
def test_warnings_about_a_text(tts, text: str, text_format: str, quoting: str) -> None:
    with logged(quoting):
        stream = tts.stream(text, text_format=text_format, max_frames=2)
    for warning in stream.text.warnings:
        assert warning.isprintable() and len(warning) < 400
    stream.close()


# ---- HTTP and WebSocket --------------------------------------------------------------------------


def test_requests_over_http(live) -> None:
    odd = LONG.encode(errors="surrogatepass").decode(errors="replace")
    bodies = [
        {"input": f"Hello <p {ODD}> you"},
        {"input": "Hello <p\n> you, FAKE"},
        {"input": '<lang xml:lang="FAKE&#10;">Hello.</lang>', "text_format": "ssml"},
        *({"input": "Hello.", name: LONG} for name in ("voice", "language", "model", LONG)),
        {"input": LONG, "text_format": ODD, "lexicon": {LONG: ODD}},
    ]
    with logged() as records:
        for body in bodies:
            with live.connect() as connection:
                connection.sendall(http_post(json.dumps(body | {"max_new_tokens": 3}).encode()))
                assert connection.recv(12)[:9] in (b"HTTP/1.1 ", b"")
        live.settle()
        path = f"/v1/audio/voices/{quote(odd[:100])}"
        for method in ("GET", "DELETE"):
            live.client.request(method, path, headers={"X-Request-Id": "FAKE ok"})
        form = {"name": odd[:60], "consent": odd, "ref_text": odd}
        files = {"audio_sample": (odd[:60], b"RIFF" + odd.encode(), "audio/wav")}
        live.client.post("/v1/audio/voices", data=form, files=files)
    assert any("GET /v1/audio/voices/FAKE%0A2026" in record for record in records)
    assert any("he text has markup (<p\\n>)" in record for record in records)


@pytest.mark.parametrize(
    "inside", ["\nclass=x", " \r\nSet-Cookie: a=1\r\n\r\nINJECTED", " \0\x85\ud800"]
)
def test_html_is_spoken_and_the_answer_is_whole(live, inside: str) -> None:
    body = json.dumps({"input": f"Some HTML <p{inside}> text", "max_new_tokens": 3})
    answer = live.client.post(SPEECH, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200 and answer.content.startswith(b"RIFF")
    assert answer.headers["x-warning"].startswith("the text has markup (<p")
    assert "set-cookie" not in answer.headers


def test_a_request_that_fails_for_a_reason_of_ours() -> None:
    engine = FakeEngine(refusal=RuntimeError(LONG))
    with serving(engine) as live, logged("FAKE") as records:
        assert live.speak().status_code == 500
    assert any(re.match(r"ERROR Request \w+ failed.\n  Traceback ", each) for each in records)


async def test_messages_over_the_websocket(live) -> None:
    with logged("markup"):
        async with session(live, {"max_new_tokens": 3, "language": "english"}) as socket:
            await say(socket, "input.text", text=f"Hello <p {ODD}> you.")
            await say(socket, "input.done")
            await say(socket, LONG)
            await say(socket, "session.config", language=LONG, **{LONG: 1})
            await say(socket, "input.text", text=[LONG])
            await socket.send(LONG.encode(errors="replace").decode())
            await say(socket, "session.close")
            with contextlib.suppress(Exception):
                while await hear(socket):
                    pass


# ---- Wyoming, whose clients need no key ----------------------------------------------------------


EVENTS = [
    {"type": [LONG], "data": {}},
    {"type": LONG, "data": [LONG]},
    {"type": ODD, "data": {}},
    {"type": "synthesize", "data": {"text": [LONG]}},
    {"type": "synthesize", "data": {"text": "Hi.", "text_format": LONG}},
    {"type": "synthesize", "data": {"text": "Hi.", "voice": LONG}},
    {"type": "synthesize", "data": {"text": "Hi.", "voice": {"name": ODD}}},
    {"type": "synthesize", "data": {"text": "Hi.", "voice": {"name": LONG, "speaker": LONG}}},
    {"type": "synthesize", "data": {"text": "Hi.", "voice": {"language": ODD}}},
    {"type": "synthesize", "data": {"text": f"FAKE <p {ODD}> you"}},
    {"type": "synthesize", "data": {"text": "<FAKE>", "text_format": "ssml"}},
]


@pytest.mark.parametrize("event", EVENTS, ids=range(len(EVENTS)))
async def test_events_over_wyoming(tts, event) -> None:
    pytest.importorskip("wyoming")
    from wyoming_client import connected

    sent = json.dumps(event).encode() + b"\n" + b'{"type": "ping"}\n'
    with logged("markup" if "you" in str(event) else "FAKE"):
        async with connected(tts) as client:
            client._writer.write(sent)
            answer = await client.read_event()
            assert answer is not None
            if answer.type == "error":
                assert len(answer.data["text"]) < MAX_LINE_CHARS
                assert await client.read_event() is None


def test_a_client_is_quoted_where_a_reader_finds_it(live) -> None:
    answer = live.speak("Hello.", voice="x\u202e\x1b")
    assert answer.json()["error"]["message"].startswith(r'Unknown voice "x\u202e\x1b". This')
