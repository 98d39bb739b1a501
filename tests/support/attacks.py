"""What hostile clients send, and clients that send it until they are stopped."""

import base64
import contextlib
import http.client
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from live_server import SPEECH, http_post
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

MEGA = 1_000_000
NUM_CHARS = 20_000
LONG = "x" * 10 * MEGA


def body(**fields: Any) -> bytes:
    return json.dumps({"input": "a", "max_new_tokens": 3} | fields).encode()


BODIES: dict[str, Callable[[], bytes]] = {  # made when they are sent: they take seconds and memory
    "nested lists": lambda: b"[" * 2 * MEGA,
    "nested objects": lambda: b'{"a":' * 300_000,
    "a long number": lambda: b'{"input":"a","seed":' + b"1" * 100_000 + b"}",
    "many granularities": lambda: body(timestamp_granularities=[1] * 100_000),
    "very many granularities": lambda: body(timestamp_granularities=[1] * 4 * MEGA),
    "many wrong words": lambda: body(lexicon={str(i): 1 for i in range(100_000)}),
    "many words": lambda: body(lexicon={str(i): "x" for i in range(100_000)}),
    "as many wrong words as are allowed": lambda: body(lexicon={str(i): 1 for i in range(1000)}),
    "many unknown fields": lambda: body(**{f"k{i}": 1 for i in range(300_000)}),
    "as many unknown fields as are allowed": lambda: body(**{f"k{i}": 1 for i in range(16_000)}),
    "a long text": lambda: body(input=LONG),
    "a long text of escapes": lambda: body(input="一" * MEGA),
    "a voice that is a list": lambda: body(voice=[1] * 100_000),
    "a recording of zeros": lambda: body(ref_audio=base64.b64encode(bytes(10 * MEGA)).decode()),
    **{
        f"a long {name}": lambda name=name: body(**{name: LONG})
        for name in ("voice", "model", "language", "instructions", "ref_text", "speed", "other")
    },
}
FILLS = ["abcd ", "7", "a.", "1.-/ ,:", "<p ", "<br>", "**a", "一", "1. \n", "\u200d", "a\u0301"]

STREAM = "/v1/audio/speech/stream"
HEADS = {
    "silent": b"",
    "slow": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: ",
    "handshake": f"GET {STREAM} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Sec-WebSocket-Version: 13\r\n\r\n".encode(),
}
LINES = [
    {"type": "synthesize", "data": {"text": "hi", "voice": {"name": "x\n\u001b[31mFAKE"}}},
    {"type": "synthesize", "data": {"text": "hi", "voice": {"language": "x" * 65}}},
    {"type": "FAKE\n" * 1000},
    {"type": "synthesize", "data": {"text": "<p\n" * 1000}},
]


class Attackers:
    """Clients of every kind, each in a thread of its own, until the `with` block ends.

    Args:
        http, wyoming: the addresses of a server.
    """

    def __init__(self, http: tuple[str, int], wyoming: tuple[str, int]):
        self._http, self._wyoming, self._stop = http, wyoming, threading.Event()
        self.rounds: dict[str, int] = {}
        self._bodies = [make() for make in BODIES.values()]
        kinds = (self._post_bodies, self._post_texts, self._send_much, self._open_many)
        kinds += (self._hold_open, self._read_nothing, self._speak_wyoming)
        self._threads = [threading.Thread(target=self._repeat, args=[kind]) for kind in kinds]

    def __enter__(self) -> "Attackers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, kind: Callable[[], None]) -> None:
        while not self._stop.wait(0.05):
            with contextlib.suppress(
                OSError, http.client.HTTPException, WebSocketException
            ):  # the server's defence
                kind()
            self.rounds[kind.__name__] = self.rounds.get(kind.__name__, 0) + 1

    def _post(self, content: bytes) -> None:
        connection = http.client.HTTPConnection(*self._http, timeout=60)
        with contextlib.closing(connection):
            connection.request("POST", SPEECH, content, {"Content-Type": "application/json"})
            connection.getresponse().read()

    def _each(self, items: Any) -> Iterator[Any]:
        for item in items:
            if self._stop.wait(0.05):
                return
            yield item

    def _post_bodies(self) -> None:
        for content in self._each(self._bodies):
            with contextlib.suppress(OSError, http.client.HTTPException):
                self._post(content)

    def _post_texts(self) -> None:
        for fill, normalize in self._each(itertools.product(FILLS, ["on", "off"])):
            text = (fill * NUM_CHARS)[:NUM_CHARS]
            self._post(body(input=text, normalize=normalize))

    def _send_much(self) -> None:
        """Send most of 20 large bodies, where no body is needed and where one is."""
        with contextlib.ExitStack() as stack:
            for path in self._each(["/health", "/docs", SPEECH, STREAM] * 5):
                connection = stack.enter_context(socket.create_connection(self._http, timeout=5))
                head = http_post(b"", path).replace(b"Length: 0", b"Length: 14000000")
                with contextlib.suppress(OSError):
                    connection.sendall(head + b" " * 13 * MEGA)
            self._stop.wait(1)

    def _open_many(self) -> None:
        with contextlib.ExitStack() as stack:
            for head in self._each(list(HEADS.values()) * 20):
                for _ in range(6):
                    connection = socket.create_connection(self._http, timeout=5)
                    stack.enter_context(connection).sendall(head)
            self._stop.wait(5)

    def _hold_open(self) -> None:
        """Keep a stream waiting for its text with empty texts."""
        with connect("ws://{}:{}{}".format(*self._http, STREAM)) as stream:
            stream.send(json.dumps({"type": "session.config", "response_format": "pcm"}))
            stream.send(json.dumps({"type": "input.text", "text": "Hello "}))
            while not self._stop.wait(0.5):
                stream.send(json.dumps({"type": "input.text", "text": ""}))

    def _read_nothing(self) -> None:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(self._http)
            long = "This is a long sentence that goes on and on for a while. " * 40
            sound = {"response_format": "pcm", "sample_rate": 48000, "speed": 0.25}
            connection.sendall(http_post(json.dumps({"input": long} | sound).encode()))
            self._stop.wait(40)

    def _speak_wyoming(self) -> None:
        for line in self._each(LINES):
            with socket.create_connection(self._wyoming, timeout=10) as connection:
                connection.sendall(json.dumps(line).encode() + b"\n")
                connection.recv(65536)
