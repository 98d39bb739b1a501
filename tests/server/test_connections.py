"""Connections of clients that send or read nothing: how many are open, and for how long."""

import asyncio
import contextlib
import http.client as httplib
import importlib.util
import json
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from commands import ROOT
from fake_engine import FakeEngine
from live_server import LiveServer, http_post, serving
from speech_socket import STREAM, session, speak
from waiting import wait_until

from qwen_megakernel.server import serving as server_serving
from qwen_megakernel.server.settings import ServerSettings

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
# `serve` without a model, on the event loop that is installed or on asyncio's own.
PROGRAM = """
import sys
if sys.argv[1] == "bare":
    sys.modules["uvloop"] = None
from fake_engine import FakeEngine
from qwen_megakernel.server import serving
from qwen_megakernel.server.settings import ServerSettings
serving.serve(FakeEngine(), ServerSettings(), port=0, say=lambda line: print(line, flush=True))
"""


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has closed a connection, from which it may have sent something before."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def whole_answer(connection: socket.socket) -> bytes:
    """What the server sends until it closes a connection; it may come in several packets."""
    connection.settimeout(20)
    answer = b""
    with contextlib.suppress(ConnectionResetError):  # it closed before it had read everything
        while received := connection.recv(65536):
            answer += received
    return answer


def connection_of(live: LiveServer) -> Any:
    """Return the server's protocol object of its one connection."""
    wait_until(lambda: num_open(live) == 1)
    (connection,) = live.running.server_state.connections
    return connection


def test_the_server_runs_on_what_is_installed(engine):
    """`make test-user` has no uvloop, as its users; the other runs of the tests have it."""
    is_fast = importlib.util.find_spec("uvloop") is not None
    with serving(engine) as live, live.connect():
        used = {each.__module__.split(".")[0] for each in type(live.loop).__mro__}
        used |= {each.__name__ for each in type(connection_of(live)).__mro__}
    assert {"H11Protocol", "uvloop" if is_fast else "asyncio"} <= used


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_audio_does_not_wait_until_the_headers_are_acknowledged(engine, loop):
    with serving(engine, loop=loop) as live, live.connect():
        accepted = connection_of(live).transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("is_slow", [False, True], ids=["whole", "in pieces"])
@pytest.mark.parametrize(
    "upgrade",
    [
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
        b"upgrade: TLS/1.2\r\nconnection: Upgrade\r\n",
    ],
    ids=["Java's HttpClient", "Apache HttpClient"],
)
def test_an_offer_of_another_protocol_is_declined_and_the_body_is_read(loop, is_slow, upgrade):
    post = http_post(json.dumps({"input": "Hello.", "response_format": "pcm"}).encode())
    head, body = post.replace(b"\r\n", b"\r\n" + upgrade, 1).split(b"\r\n\r\n")
    pieces = [head + b"\r\n\r\n", body] if is_slow else [head + b"\r\n\r\n" + body]
    with serving(FakeEngine(), loop=loop) as live, live.connect() as client:
        for piece in pieces:
            client.sendall(piece)
            time.sleep(0.1)
        answer = httplib.HTTPResponse(client)
        answer.begin()
        assert (answer.status, len(answer.read()) > 0) == (200, True)
        client.sendall(GET)
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_a_client_that_offered_another_protocol_and_left_is_noticed():
    offer = b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    post = http_post(json.dumps({"input": "Hello.", "stream": False}).encode())
    with serving(FakeEngine(stall_after=1)) as live:
        with live.connect() as client:
            client.sendall(post.replace(b"\r\n", offer, 1))
            wait_until(lambda: live.engine.speaking)
        wait_until(lambda: not live.engine.speaking)


def test_a_client_of_http_1_0_gets_the_audio_without_chunks(engine):
    wanted = {"input": "Hello.", "response_format": "pcm"}
    post = http_post(json.dumps(wanted).encode()).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    with serving(engine) as live, live.connect() as client:
        client.sendall(post)
        head, _, body = whole_answer(client).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert body == engine.streams[0].sent


def test_headers_without_end_are_refused_before_they_fill_the_memory(engine, caplog):
    with serving(engine) as live, live.connect() as client:
        client.sendall(GET[:-2])
        with contextlib.suppress(OSError):  # the server has closed the connection
            for _ in range(17):
                client.sendall(b"X-Long: " + b"a" * 4096 + b"\r\n")
                time.sleep(0.002)
        answer = whole_answer(client)
    assert answer.startswith(b"HTTP/1.1 400") and b"headers of at most 65536 bytes" in answer
    assert "Traceback" not in caplog.text


def handshake(header: str) -> bytes:
    head = f"GET {STREAM} HTTP/1.1\r\nHost: localhost\r\n{header}\r\nConnection: Upgrade\r\n"
    head += "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MTIzNA==\r\n\r\n"
    return head.encode()


@pytest.mark.parametrize(
    ("request_", "status", "why"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", b"400", b"Missing mandatory Host"),
        (
            GET.replace(b"\r\n\r\n", b"\r\nContent-Length: -5\r\n\r\n"),
            b"400",
            b"bad Content-Length",
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00", b"400", b"no HTTP/1.1 without TLS"),
        (b"\x16\x03\x01 this is no request\r\n\r\n", b"400", b"no HTTP/1.1 without TLS"),
        (handshake(f"X-Long: {'a' * 9000}"), b"431", b"8192 bytes"),
        (handshake("\r\n".join(["X-Many: a"] * 200)), b"431", b"128 headers"),
    ],
    ids=["no host", "negative", "TLS", "garbage", "long handshake", "many headers"],
)
def test_a_request_that_cannot_be_read_is_told_why(engine, request_, status, why):
    with serving(engine) as live, live.connect() as client:
        client.sendall(request_)
        answer = whole_answer(client)
    assert answer.startswith(b"HTTP/1.1 " + status) and why in answer


def test_a_request_for_a_whole_url_is_one_for_its_path(engine):
    with serving(engine) as live, live.connect() as client:
        client.sendall(GET.replace(b"/health", b"http://localhost/health"))
        assert client.recv(100).startswith(b"HTTP/1.1 200")


async def test_a_client_that_pings_without_end_and_reads_nothing_fills_no_memory(engine):
    masked = (b"\x89\xfd\0\0\0\0" + b"p" * 125) * 500
    with serving(engine, send_buffer=8192) as live:
        async with session(live, sock=live.connect_slowly()) as socket:
            transport = connection_of(live).transport
            socket.transport.pause_reading()
            for _ in range(100):  # 6.5 MB
                socket.transport.write(masked)
            await asyncio.sleep(2)
            assert transport.get_write_buffer_size() < 1_000_000
            socket.transport.resume_reading()
            events, _ = await speak(socket, "Hello.")  # it goes on when the client reads
            assert events[-1]["finish_reason"] == "eos"


def test_a_broken_body_after_an_answer_leaves_no_traceback(engine, caplog):
    head = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n"
    head += b"Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    with serving(engine) as live, live.connect() as client:
        client.sendall(head)
        assert client.recv(4096).startswith(b"HTTP/1.1 415")
        client.sendall(b"this is no chunk\r\n")
        wait_until(lambda: num_open(live) == 0)
    assert "Traceback" not in caplog.text


@contextlib.contextmanager
def limited_server(kind: str, log: Path, *, descriptors: int):
    """Run the program with few descriptors; yields its port."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, kind],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}"},
            preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_NOFILE, (descriptors, descriptors)
            ),
        ) as process,
    ):
        try:
            line = process.stdout.readline()
            port = int(line.rpartition(":")[2])
            url = f"http://127.0.0.1:{port}/health"
            wait_until(lambda: httpx.get(url, timeout=30).status_code == 200)
            yield port
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["installed", pytest.param("bare", marks=pytest.mark.ci)])
def test_more_connections_than_descriptors_neither_stop_the_server_nor_fill_its_log(tmp_path, kind):
    log = tmp_path / "log"
    with limited_server(kind, log, descriptors=300) as port, contextlib.ExitStack() as stack:
        held = []
        for _ in range(6):
            for _ in range(100):
                each = socket.create_connection(("127.0.0.1", port), timeout=10)
                held.append(stack.enter_context(each))
            answer = httpx.get(f"http://127.0.0.1:{port}/health", timeout=30)
            assert answer.status_code == 200
        wait_until(lambda: sum(not is_closed(each) for each in held) <= 150)
        assert not any(is_closed(each) for each in held[-100:])
    assert log.read_text() == ""


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "limit"),
    [
        (20_000, 20_000, 20_000, 1256),
        (1024, 20_000, 1448, 1256),
        (1024, 1024, 1024, 832),
        (300, 300, 300, 150),
        (256, -1, 1448, 1256),
        (-1, -1, -1, 1256),
    ],
)
def test_descriptors_limit_the_connections(monkeypatch, soft, hard, raised, limit):
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    assert server_serving.max_open_connections(ServerSettings()) == limit
    assert limits[-1] == (raised, hard)


@pytest.fixture
def live(monkeypatch):
    """A server that holds three connections, two of them with requests."""
    monkeypatch.setattr(server_serving, "_IDLE_CONNECTIONS", 1)
    with serving(FakeEngine(stall_after=1), max_connections=2) as server:
        yield server


def num_open(live: LiveServer) -> int:
    return len(live.running.server_state.connections)


@pytest.mark.parametrize("sent", [b"", GET[:-2], GET], ids=["silent", "slow", "idle"])
def test_a_new_client_takes_the_place_of_the_longest_idle_one(live, sent):
    with contextlib.ExitStack() as stack:
        held = []
        for count in range(1, 6):
            held.append(stack.enter_context(live.connect()))
            held[-1].sendall(sent)
            if sent == GET:
                assert held[-1].recv(4096).startswith(b"HTTP/1.1 200")
            wait_until(lambda count=count: num_open(live) == min(count, 3))
            wait_until(lambda: all(is_closed(each) for each in held[:-3]))
            assert not any(is_closed(each) for each in held[-3:])
        answer = httpx.get(f"{live.url}/health")
        assert answer.status_code == 200


def test_a_connection_that_becomes_idle_again_is_no_longer_the_longest_idle_one(live):
    with live.connect() as first, live.connect() as second, live.connect() as third:
        wait_until(lambda: num_open(live) == 3)
        first.sendall(GET)
        assert first.recv(4096).startswith(b"HTTP/1.1 200")
        with live.connect():
            wait_until(lambda: is_closed(second))
            assert not is_closed(first) and not is_closed(third)


def test_a_connection_with_a_request_is_never_cut(live):
    with live.send_speech() as first, live.send_speech() as second, live.connect() as third:
        wait_until(lambda: len(live.engine.streams) == 2 and num_open(live) == 3)
        with live.connect() as new:
            wait_until(lambda: is_closed(third))
            new.sendall(GET)
            assert new.recv(100).startswith(b"HTTP/1.1 503")  # two requests are the limit
        assert not is_closed(first) and not is_closed(second)


async def test_a_websocket_is_a_connection_too(live):
    async with session(live) as first, session(live) as second:
        with live.connect() as silent:
            wait_until(lambda: num_open(live) == 3)
            with live.connect() as new:
                wait_until(lambda: is_closed(silent))
                assert not is_closed(new)
        for each in (first, second):
            await (await each.ping())


async def test_a_websocket_without_a_session_gives_its_place_to_a_new_client(monkeypatch):
    monkeypatch.setattr(server_serving, "max_open_connections", lambda settings: 3)
    with serving(FakeEngine()) as live:
        async with session(live) as kept, contextlib.AsyncExitStack() as stack:
            await speak(kept, "Hello.")
            for _ in range(5):
                silent = await stack.enter_async_context(session(live, config=False))
                await (await silent.ping())
            wait_until(lambda: num_open(live) == 3)
            answer = await asyncio.to_thread(httpx.get, f"{live.url}/health")
            assert answer.status_code == 200
            await speak(kept, "Hello again.")


def test_an_idle_connection_is_closed():
    with serving(FakeEngine(), body_timeout_s=1.0) as live:
        begin = time.monotonic()
        with live.connect() as silent, live.connect() as idle:
            idle.sendall(GET)
            wait_until(lambda: is_closed(silent) and is_closed(idle))
        assert time.monotonic() - begin > 0.3


@pytest.mark.parametrize("num_requests", [1, 50], ids=["last", "middle"])
def test_a_client_that_reads_no_response_is_cut(num_requests):
    """The server waits for the client after its last response, or in the middle of them."""
    get = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    times = {"stall_timeout_s": 0.5, "body_timeout_s": 1.0 if num_requests == 1 else 60.0}
    with serving(FakeEngine(), send_buffer=4096, **times) as live:
        live.client.get("/openapi.json")  # takes some time to be made
        live.client.close()
        wait_until(lambda: num_open(live) == 0)
        with live.connect_slowly() as connection:
            connection.sendall(get * num_requests)
            wait_until(lambda: num_open(live) == 1)
            wait_until(lambda: num_open(live) == 0 and not live.running.server_state.tasks)
