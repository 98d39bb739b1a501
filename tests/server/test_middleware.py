"""The middleware: keys, origins, bodies that are too large, too slow or wrong."""

import contextlib
import gzip
import json
import re
import socket
import time
import tracemalloc
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from fake_engine import FakeEngine
from fixtures import module_fixture
from live_server import SPEECH, assert_error, http_post, serving
from waiting import wait_until

from qwen_megakernel.errors import (
    EngineClosed,
    NoGPUError,
    QwenTTSError,
    RecordingError,
    TextTooLong,
    UsageError,
)
from qwen_megakernel.server.app import create_app
from qwen_megakernel.server.error_responses import ApiError
from qwen_megakernel.server.middleware import RequestGuard
from qwen_megakernel.server.schemas import check_length
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.text.cleaning import MAX_CHARS

SHORT = "Hello there."

live = module_fixture(lambda: serving(FakeEngine(rtf=0.001), max_body_bytes=100_000))


def test_codes_are_the_names_of_errors_in_small_letters():
    named = {NoGPUError: "no_gpu_error", RecordingError: "recording_error"}
    named |= {TextTooLong: "text_too_long", QwenTTSError: "qwen_tts_error"}
    assert {kind: ApiError.of(kind("It failed.")).code for kind in named} == named


def test_each_answer_is_a_line_of_the_access_log_without_the_key(caplog):
    caplog.set_level("INFO", logger="qwen_megakernel.access")
    with serving(FakeEngine(rtf=0.001), api_key="s3cret") as live:
        assert live.client.get("/health?api_key=s3cret").status_code == 200
        assert live.client.head("/v2%0A<").status_code == 404
        assert live.client.get("/v1/models", headers={"X-API-Key": "s3cre"}).status_code == 401
        key = {"Authorization": "Bearer s3cret", "X-Request-Id": "mine"}
        assert live.client.post(SPEECH, json={"input": SHORT}, headers=key).status_code == 200
        wait_until(lambda: len(caplog.messages) == 4)
    assert "s3cre" not in caplog.text
    pattern = r'127\.0\.0\.1:\d+ "(.*)" (\d+) \d+\.\d{3} s ([\w.-]+)'
    lines = [re.fullmatch(pattern, line).groups() for line in caplog.messages]
    assert [line[:2] for line in lines] == [
        ("GET /health", "200"),
        ("HEAD /v2%0A%3C", "404"),
        ("GET /v1/models", "401"),
        (f"POST {SPEECH}", "200"),
    ]
    assert lines[3][2] == "mine"


# ---- bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'"text"',
        b"\xff\xfe",
        b"[" * 20_000,
        b'{"input": "a", "input": }',
        b'{"voice": "aiden"}',
        b'{"input": "\\ud800"}',
        b'{"input": "a", "temperature": NaN}',
        b'{"input": "a", "seed": 1e400}',
    ],
    ids=range(10),
)
def test_a_body_that_is_no_request_is_answered_400(live, body):
    answer = live.client.post(SPEECH, content=body, headers={"Content-Type": "application/json"})
    assert_error(answer, 400)


IMPOSSIBLE = {
    "input": [7, ["a"], None, "  \n", "..."],
    "voice": [3, {}, {"id": "nobody"}, {"id": 5}, "nobody"],
    "response_format": ["ogg", 1],
    "encoding": ["gsm", 1],
    "sample_rate": [0, -8000, 7999, 48001, 10**9, 16000.5, "16000", True],
    "speed": [0, -1, 0.2, 4.1, 1e9, "1", True],
    "volume": [-61, 21, 1e9, "1"],
    "loudness": [0, -41, "1"],
    "leading_silence": [-1, 60_001, "0"],
    "trailing_silence": [-1, 60_001, "0"],
    "stream": ["yes", 1],
    "stream_format": ["json"],
    "language": ["klingon", 4],
    "seed": [-1, 2**64, 1.5, True],
    "do_sample": [0],
    "temperature": [0, -1, "hot", 1e-45],
    "top_k": [-1, 2**31, 1.5],
    "top_p": [0, 1.1],
    "repetition_penalty": [0, 1e-45],
    "max_new_tokens": [1, "all"],
    "instructions": [5, "a" * 4097],
    "ref_audio": [
        *(5, "not base64!", "http://169.254.169.254/latest"),
        *("file:///etc/passwd", "data:audio/wav,plain", "AAAA"),
    ],
    "ref_text": ["without a recording"],
    "x_vector_only_mode": ["no"],
    "non_streaming_mode": [0],
    "first_chunk_frames": [0, 11],
    "include_codes": ["yes"],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in IMPOSSIBLE.items() for value in values]
)
def test_an_impossible_value_is_answered_400_and_named(live, field, value):
    answer = live.client.post(SPEECH, json={"input": SHORT, field: value})
    facts = assert_error(answer, 400)
    assert facts["type"] == "invalid_request_error"
    assert facts["param"] == field
    live.settle()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[]", "The body must be a JSON object."),
        (b"null", "The body must be a JSON object."),
        (b'{"input": "\xff"}', "The body is not UTF-8 text: 'utf-8' codec can't decode byte 0xff"),
        (
            b'{"input": "a", "seed": %s}' % (5000 * b"9"),
            "The body is not JSON: Exceeds the limit (4300 digits)",
        ),
        (
            b'{"input": "a", "x": %s}' % (12_000 * b"[" + 12_000 * b"]"),
            "The body is not JSON: maximum recursion depth exceeded",
        ),
        (
            b'{"input": "a", "style": "\\ud800"}',
            r'style is "\ud800"; it must be Unicode text, without half a surrogate pair.',
        ),
        (b'{"input": "a", "voice": 5}', "voice is 5; it must be a voice's id, or an object with"),
        (b'{"text": "a"}', "input is missing. Did you mean `input` by `text`?"),
        (b'{"input": ["a"]}', "input is a list; it must be a string."),
        (b'{"input": "a", "top_p": 2}', "top_p is 2; it must be 1 or less."),
        (b'{"input": "a", "top_k": 1.5}', "top_k is 1.5; it must be a whole number."),
        (b'{"input": "a", "stream": 1}', "stream is 1; it must be true or false."),
        (b'{"input": "a", "lexicon": [1]}', "lexicon is a list; it must be an object."),
        (
            json.dumps({"input": "a", "lexicon": {f"w{n}": "x" for n in range(1001)}}).encode(),
            "lexicon has too many entries; it must have at most 1000.",
        ),
        (
            b'{"input": "a", "timestamp_granularities": []}',
            "timestamp_granularities has too few entries; it must have at least 1.",
        ),
        (
            b'{"input": "a", "response_format": "mp4"}',
            'response_format is "mp4"; it must be one of',
        ),
        (b'{"input": "a", "language": "%s"}' % (65 * b"a"), "language has 65 characters; it must"),
        (b'{"input": "a", "temperature": 0}', "For greedy decoding set do_sample to false."),
    ],
)
def test_a_complaint_is_made_once_and_in_the_clients_terms(live, body, message):
    answer = live.client.post(SPEECH, content=body, headers={"Content-Type": "application/json"})
    lines = assert_error(answer, 400)["message"].splitlines()
    assert lines[-1].startswith(message) and len(lines) == 1 + (b"temperature" in body)


@pytest.mark.parametrize(("field", "status"), [("voice", 400), ("model", 404)])
def test_half_a_surrogate_pair_is_repeated_as_an_escape(live, field, status):
    body = b'{"input": "Hello.", "%s": "\\ud800"}' % field.encode()
    answer = live.client.post(SPEECH, content=body, headers={"Content-Type": "application/json"})
    assert r'"\ud800"' in assert_error(answer, status)["message"]


def test_the_hint_to_raise_the_limit_of_a_text_appears_only_if_it_can_be_raised():
    for limit, can_be_raised in ((100, True), (MAX_CHARS, False)):
        with pytest.raises(TextTooLong) as raised:
            check_length(limit + 1, ServerSettings(max_chars=limit))
        assert ("--max-chars" in str(raised.value)) == can_be_raised


def test_text_that_is_too_long_is_answered_413(live):
    facts = assert_error(live.speak("a" * 4097), 413, "text_too_long")
    assert facts["message"].startswith("The text has 4097 characters; the limit is 4096.")
    with serving(FakeEngine(rtf=0.001), max_chars=5000) as raised:
        assert raised.speak("a" * 4097, max_new_tokens=3).status_code == 200


def test_a_wrong_model_is_answered_404_and_openais_are_the_loaded_one(live):
    for name in ("tts-2", "tts-1-hd-", "gpt-4o-mini-tts-next", "gpt-4o-2025-12-15", "hum-1106"):
        assert_error(live.speak(model=name), 404, "model_not_found")
    for name in ("tts-1", "gpt-4o-mini-tts", "hum", "HUM"):
        assert live.speak(model=name).status_code == 200
    dated = ("gpt-4o-mini-tts-2025-03-20", "GPT-4o-mini-tts-2025-12-15")
    for name in (*dated, "tts-1-1106", "tts-1-hd-1106"):
        assert live.speak(model=name).status_code == 200
        assert live.client.get(f"/v1/models/{name}").json()["id"] == name


def test_other_media_types_are_answered_415(live):
    """Includes what a web page could send to another host without a preflight request."""
    for media_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = live.client.post(
            SPEECH, content=b'{"input":"a"}', headers={"Content-Type": media_type}
        )
        assert_error(answer, 415, "unsupported_media_type")


def test_a_compressed_body_is_answered_415_by_its_encoding(live):
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = live.client.post(SPEECH, content=gzip.compress(b'{"input":"a"}'), headers=headers)
    facts = assert_error(answer, 415, "unsupported_media_type")
    assert facts["message"].startswith("Content-Encoding is gzip;")


def test_a_huge_body_is_answered_413_with_and_without_its_length(live):
    assert_error(live.speak("a" * 200_000), 413, "too_large")

    def endless():
        for _ in range(1000):
            yield b" " * 1000

    headers = {"Content-Type": "application/json"}
    assert_error(live.client.post(SPEECH, content=endless(), headers=headers), 413, "too_large")


def rss_mb() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) // 1024


def send_part(live, head: str, num_bytes: int) -> socket.socket:
    """Send a request whose last byte is missing; an answer in the middle ends the sending."""
    connection = live.connect()
    connection.sendall(
        f"{head} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {num_bytes + 1}\r\n\r\n".encode()
    )
    with contextlib.suppress(OSError):
        for _ in range(0, num_bytes, 1 << 16):
            connection.sendall(b" " * (1 << 16))
    return connection


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /health", 413),
        ("GET /docs", 413),
        ("POST /docs", 405),
        ("POST /no/such/path", 404),
        ("POST /v1/audio/voices", 401),
        (f"POST {SPEECH}", 401),
    ],
)
def test_a_client_without_the_key_fills_no_memory_with_bodies(head, status):
    with serving(FakeEngine(), api_key="s3cret") as live, contextlib.ExitStack() as stack:
        before = rss_mb()
        held = [stack.enter_context(send_part(live, head, 8 << 20)) for _ in range(12)]
        assert rss_mb() - before < 30
        assert all(f"HTTP/1.1 {status} ".encode() in each.recv(15) for each in held[-3:])


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_a_request_that_needs_no_body_is_refused_with_a_large_one(live, method, is_chunked):
    large = b"x" * (64 * 1024 + 1)
    content = [large] if is_chunked else large
    answer = live.client.request(method, "/health", content=content)
    assert answer.status_code == 413
    if method != "HEAD":
        message = assert_error(answer, 413, "too_large")["message"]
        assert message.endswith(f" A {method} request needs none here.")
    without = live.client.request(method, "/health")
    small = live.client.request(method, "/health", content=[b"{}"] if is_chunked else b"{}")
    assert small.status_code == without.status_code


def test_a_body_where_no_route_takes_one_does_not_hide_what_is_wrong(live):
    body = b"x" * 1_000_000
    assert_error(live.client.post("/v1/speech", content=body), 404, "not_found")
    assert_error(live.client.put(SPEECH, content=body), 405, "method_not_allowed")
    upload = {"files": {"audio_sample": body}, "data": {"name": "ann", "consent": "given"}}
    assert_error(live.client.post("/v1/audio/voices", **upload), 403, "uploads_not_allowed")
    assert live.client.get("/health").status_code == 200  # on the same connection


def test_all_bodies_together_have_a_limit_and_small_ones_are_always_taken():
    with (
        serving(
            FakeEngine(rtf=0.001),
            max_body_bytes=1 << 20,
            max_upload_bytes=1,
            max_buffered_bytes=2 << 20,
        ) as live,
        contextlib.ExitStack() as stack,
    ):
        held = [stack.enter_context(send_part(live, f"POST {SPEECH}", 15 << 16)) for _ in range(2)]
        large = {"input": SHORT, "lexicon": {"a": "b" * 500_000}}
        wait_until(lambda: live.client.post(SPEECH, json=large).status_code == 503)
        answer = live.client.post(SPEECH, json=large)
        assert "2097152 bytes" in assert_error(answer, 503, "bodies_too_large")["message"]
        assert answer.headers["retry-after"]
        assert live.speak(SHORT).status_code == 200
        for connection in held:
            connection.close()
        wait_until(lambda: live.client.post(SPEECH, json=large).status_code == 400)


async def test_a_body_is_in_memory_once():
    """The app gets the bytes that were read, and nothing else keeps them."""
    seen = []

    async def app(scope, receive, send):
        size = len((await receive())["body"])
        seen.append((size, tracemalloc.get_traced_memory()[0]))

    whole = create_app(FakeEngine())
    takers = [each for each in whole.routes if each.path == SPEECH]
    guard = RequestGuard(app, service=whole.state.service, takers=takers)
    messages = (
        {"type": "http.request", "body": bytes(100_000), "more_body": left > 1}
        for left in range(100, 0, -1)
    )
    scope = {"type": "http", "method": "POST", "path": SPEECH, "extensions": {}}
    scope["headers"] = [(b"content-type", b"application/json")]
    tracemalloc.start()
    try:
        await guard(scope, AsyncMock(side_effect=messages), AsyncMock())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    ((size, held),) = seen
    assert size == 10_000_000 and held < 0.1 * size and peak < 1.3 * size


def test_what_a_refused_client_still_sends_does_not_cost_it_the_answer(live):
    request = http_post(b" " * 300_000, content_type="text/plain")
    with live.connect() as connection:
        connection.sendall(request[:1000])
        answer = connection.recv(65536)
        for begin in range(1000, len(request), 50_000):  # this fails if the connection is reset
            connection.sendall(request[begin : begin + 50_000])
            time.sleep(0.02)
        while piece := connection.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 415") and answer.endswith(b"}")


def test_a_refused_client_is_not_listened_to_for_long(live):
    before = time.monotonic()
    with live.connect() as connection:
        connection.sendall(http_post(b" " * 1000, content_type="text/plain")[:-1])
        while connection.recv(65536):
            pass
        assert time.monotonic() - before > 0.5
    endless = http_post(b"", content_type="text/plain").replace(b": 0\r\n", b": 1000000000\r\n")
    with live.connect() as connection, pytest.raises(OSError):  # closed after a megabyte
        connection.sendall(endless)
        for _ in range(1000):
            connection.sendall(b" " * 1_000_000)


def test_a_body_that_trickles_is_answered_408():
    with serving(FakeEngine(), body_timeout_s=1.0) as live, live.connect() as connection:
        connection.sendall(http_post(b" " * 100)[:-90])
        answer = connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"code":"body_timeout"' in answer + connection.recv(4096)


@pytest.mark.parametrize("start", [b"", b"POST /v1/au", b"GET /health HTTP/1.1\r\nHost: l"])
def test_headers_that_trickle_are_cut(start):
    with serving(FakeEngine(), body_timeout_s=0.4) as live, contextlib.ExitStack() as stack:
        before = time.monotonic()
        connection = stack.enter_context(live.connect())
        connection.sendall(start)
        connection.settimeout(0.05)
        for _ in range(400):
            try:
                if start:
                    connection.sendall(b"x")
                if connection.recv(100) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("still open")
        assert time.monotonic() - before > 0.3


def test_the_second_request_of_a_connection_has_its_own_time():
    with serving(FakeEngine(rtf=0.001), body_timeout_s=2) as live:
        for _ in range(3):
            assert live.speak(SHORT).status_code == 200
            time.sleep(0.8)
        assert len(live.running.server_state.connections) == 1


def test_unknown_paths_and_methods_have_our_form(live):
    facts = assert_error(live.client.get("/v2"), 404, "not_found")
    assert facts["message"] == "This server has no /v2. GET /docs lists its endpoints."
    assert_error(live.client.get(f"{SPEECH}/unknown-id"), 404, "not_found")
    facts = assert_error(live.client.get(SPEECH), 405, "method_not_allowed")
    assert facts["message"] == f"{SPEECH} does not accept GET. Use POST."
    answer = live.client.put("/health")
    assert_error(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"
    answer = live.client.put("/v1/audio/voices")  # a path with two routes
    assert answer.status_code == 405 and answer.headers["allow"] == "GET, POST, HEAD"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/health",
        "/ready",
        "/metrics",
        "/v1/models",
        "/v1/audio/voices",
        "/openapi.json",
        "/docs",
    ],
)
def test_a_probe_by_head_learns_what_get_would_say_without_its_body(live, path):
    get, head = live.client.get(path), live.client.head(path)
    assert head.status_code == get.status_code == 200
    assert head.content == b"" and int(head.headers["content-length"]) > 0
    own = {"x-request-id", "date"} | ({"content-length"} if path == "/metrics" else set())
    for answer in (get, head):
        for name in own:
            del answer.headers[name]
    assert dict(head.headers) == dict(get.headers)


def test_head_is_refused_as_get_is():
    with serving(FakeEngine(), api_key="s3cret") as live:
        for path, status in (("/metrics", 401), ("/v2", 404), (f"{SPEECH}/nobody", 401)):
            answer = live.client.head(path)
            assert answer.status_code == live.client.get(path).status_code == status
            assert not answer.content
        key = {"Authorization": "Bearer s3cret"}
        assert live.client.head("/metrics", headers=key).status_code == 200
        answer = live.client.head(SPEECH, headers=key)
        assert answer.status_code == 405 and answer.headers["allow"] == "POST"


async def answers(app, **request):
    """Return what the app sends a bare ASGI server for a request of /health without a body."""
    scope = {"type": "http", "path": "/health", "extensions": {}, "query_string": b""}
    scope |= {"root_path": "", "scheme": "http", "http_version": "1.1"} | request
    send = AsyncMock()
    body = {"type": "http.request", "body": b"", "more_body": False}
    await app(scope, AsyncMock(return_value=body), send)
    return [call.args[0] for call in send.await_args_list]


async def test_head_has_no_body_on_any_server_of_the_app():
    """uvicorn leaves the body out by itself; Ray Serve's proxy is not tested."""
    sent = await answers(create_app(FakeEngine()), method="HEAD", headers=[])
    assert sent[0]["status"] == 200
    assert sent[-1]["type"] == "http.response.body" and not sent[-1].get("more_body")
    assert all(not message.get("body") for message in sent)


def test_an_unexpected_error_is_a_500_without_its_details(monkeypatch):
    with serving(FakeEngine(refusal=RuntimeError("a secret"))) as live:
        facts = assert_error(live.speak(SHORT), 500, "internal_error")
        assert "secret" not in facts["message"]
        assert not live.service.admission.running
    with serving(FakeEngine(refusal=EngineClosed("closed"))) as live:
        assert_error(live.speak(SHORT), 503, "engine_closed")


# ---- keys and origins ----------------------------------------------------------------------------


def test_the_key_is_asked_for_where_something_is_done():
    # White space around the server's key is no part of it.
    with serving(FakeEngine(rtf=0.001), api_key=" s3cret\n") as live:
        body = {"input": SHORT}
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic s3cret"},
            {"Authorization": "s3cret"},
            {"X-API-Key": "s3cre"},
            {"Authorization": "Bearer ü".encode()},
        ):
            answer = live.client.post(SPEECH, json=body, headers=headers)
            assert_error(answer, 401, "invalid_api_key")
        for path in ("/v1/models", "/v1/audio/voices", "/metrics", f"{SPEECH}/x"):
            assert_error(live.client.get(path), 401)
        for path in ("/health", "/ready", "/openapi.json"):
            assert live.client.get(path).status_code == 200
        for headers in (
            {"Authorization": "Bearer s3cret"},
            {"Authorization": "Api-Key s3cret"},
            {"X-API-Key": "s3cret"},
        ):
            assert live.client.post(SPEECH, json=body, headers=headers).status_code == 200


def test_keys_are_compared_in_constant_time(monkeypatch):
    from qwen_megakernel.server import middleware

    compare = Mock(wraps=middleware.hmac.compare_digest)
    monkeypatch.setattr(middleware.hmac, "compare_digest", compare)
    with serving(FakeEngine(), api_key="s3cret") as live:
        assert live.client.get("/v1/models", headers={"X-API-Key": "x"}).status_code == 401
    compare.assert_called_once_with(b"x", b"s3cret")


REBOUND = [
    "evil.example",
    "evil.example:8090",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "192.0.2.7",
    "[::2]:8090",
    "[::",
    "",
]
REBOUND_REQUESTS = [
    f"POST {SPEECH}",
    "GET /v1/audio/voices",
    "DELETE /v1/audio/voices/ann",
    "GET /health",
    f"GET {SPEECH}/stream",
]


def answer_to(live, head: str, host: str) -> bytes:
    """Send the request of a web page whose name resolves to this machine; return the answer."""
    headers = f"Host: {host}\r\nOrigin: http://{host}\r\nConnection: close"
    if head.endswith("/stream"):
        headers = headers.replace("close", "Upgrade") + "\r\nUpgrade: websocket"
        headers += "\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13"
    body = json.dumps({"input": SHORT}) if head.startswith("POST") else ""
    headers += f"\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    answer = b""
    with live.connect() as connection:
        connection.sendall(f"{head} HTTP/1.1\r\n{headers}\r\n\r\n{body}".encode())
        while not answer.startswith(b"HTTP/1.1 101") and (piece := connection.recv(65536)):
            answer += piece
    return answer


@pytest.mark.parametrize("host", REBOUND)
@pytest.mark.parametrize("head", REBOUND_REQUESTS)
def test_on_loopback_another_name_is_not_this_servers(live, head, host):
    answer = answer_to(live, head, host)
    assert answer.startswith(b"HTTP/1.1 421 ")
    facts = json.loads(answer[answer.index(b'{"error') :])["error"]
    assert facts["code"] == "host_not_allowed" and "--allow-host" in facts["message"]
    assert host in facts["message"]


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost:8090", "127.0.0.1", "127.9.9.9:1", "[::1]:8090"),
        *("page.example", "page.example:444", "speech.lan", "SPEECH.lan:80", "[fe80::1]"),
    ],
)
@pytest.mark.parametrize("head", REBOUND_REQUESTS)
def test_on_loopback_the_servers_own_names_are_served(named, head, host):
    status = {"POST": b"200", "DELETE": b"403"}.get(head.partition(" ")[0], b"200")
    assert answer_to(named, head, host)[9:12] == (b"101" if "stream" in head else status)


@pytest.fixture(scope="module")
def named():
    """A server that has more names than localhost."""
    names = {"allow_hosts": ("Speech.lan", "[fe80::1]"), "allow_origins": ("https://page.example",)}
    with serving(FakeEngine(rtf=0.001), **names) as server:
        yield server


def test_a_request_without_a_host_is_no_web_pages(live):
    with live.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_any_name_is_served_where_that_is_asked_for():
    with serving(FakeEngine(rtf=0.001), allow_hosts=("*",)) as live:
        assert answer_to(live, f"POST {SPEECH}", "evil.example").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("address", "allow_hosts", "status"),
    [
        ("127.0.0.1", (), 421),
        ("::1", (), 421),
        ("192.0.2.1", (), 200),
        ("192.0.2.1", ("speech.lan",), 421),
        ("testserver", (), 200),  # Starlette's TestClient
        (None, (), 200),
    ],
)
async def test_beyond_loopback_names_are_checked_if_some_are_given(address, allow_hosts, status):
    app = create_app(FakeEngine(), ServerSettings(allow_hosts=allow_hosts))
    host, server = [(b"host", b"evil.example")], address and (address, 8090)
    sent = await answers(app, method="GET", headers=host, server=server)
    assert sent[0]["status"] == status


@pytest.mark.parametrize(
    "name", ["http://speech.lan", "speech.lan:80", "speech.lan/", "", "[::", "a b"]
)
def test_a_name_that_no_host_has_is_refused(name):
    with pytest.raises(UsageError, match="name of a host alone"):
        ServerSettings(allow_hosts=(name,))


@pytest.mark.parametrize(
    "origin",
    [
        *("*", "", "page.example", "https://page.example/", "https://page.example/a", "https://"),
        *(
            "https://Page.example",
            "https://page.example:443",
            "http://page.example:80",
            "https://[",
        ),
        *("https://a:b@page.example", "https://page.example, https://other.example"),
    ],
)
def test_an_origin_that_no_browser_sends_is_refused(origin):
    with pytest.raises(UsageError, match=r"^allow_origins has .*; it must be an origin as a brow"):
        ServerSettings(allow_origins=("https://good.example", origin))


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "http://localhost:8080", "https://page.example:80", "http://127.0.0.1:3000"),
        *("http://[::1]:3000", "chrome-extension://abcdefghijkl", "https://xn--bcher-kva.example"),
    ],
)
def test_a_page_of_an_allowed_origin_may_post(origin):
    with serving(FakeEngine(rtf=0.001), allow_origins=(origin,)) as live:
        answer = live.client.post(SPEECH, json={"input": SHORT}, headers={"Origin": origin})
        assert answer.status_code == 200


def test_pages_of_other_hosts_may_not_post():
    with serving(FakeEngine(rtf=0.001), allow_origins=("https://good.example",)) as live:
        body = {"input": SHORT}

        def post(origin):
            return live.client.post(SPEECH, json=body, headers={"Origin": origin})

        assert_error(post("https://evil.example"), 403, "origin_not_allowed")
        assert_error(post("null"), 403, "origin_not_allowed")
        assert_error(post("http://["), 403, "origin_not_allowed")
        assert post(live.url).status_code == 200
        good = post("https://good.example")
        assert good.status_code == 200
        assert good.headers["access-control-allow-origin"] == "https://good.example"
        exposed = good.headers["access-control-expose-headers"]
        assert {"X-Seed", "Retry-After"} <= set(exposed.split(", "))
