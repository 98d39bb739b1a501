"""A local server with the part of the hub's protocol that a download by huggingface_hub needs."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

SHA = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves folders as repositories, and records the requests of clients.

    After `cut_after` bytes of a file's body the connection drops, once (a download that breaks
    off).
    """

    def __init__(self) -> None:
        self.repos: dict[str, Path] = {}
        self.requests: list[tuple[str, str]] = []
        self.cut_after: int | None = None
        self.status: int | None = None  # the answer to everything
        self.endpoint = ""

    @property
    def files_sent(self) -> set[str]:
        """The paths within a repository whose contents clients requested."""
        parts = (path.partition("/resolve/")[2] for verb, path in self.requests if verb == "GET")
        return {part.partition("/")[2] for part in parts}


@contextmanager
def serve() -> Iterator[FakeHub]:
    """Yield a running `FakeHub` on 127.0.0.1; its address is `endpoint`."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = unquote(self.path.split("?")[0])
            hub.requests.append((self.command, path))
            repo, _, rest = path.strip("/").partition("/resolve/")
            if hub.status:
                self._send(hub.status, b"", body, {})
            elif repo not in hub.repos:
                self._send(404, b"", body, {"X-Error-Code": "RepoNotFound"})
            elif not (file := hub.repos[repo] / rest.partition("/")[2]).is_file():
                self._send(404, b"", body, {"X-Error-Code": "EntryNotFound"})
            else:
                data = file.read_bytes()
                etag = hashlib.sha256(data).hexdigest()
                start = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0]
                headers = {"X-Repo-Commit": SHA, "ETag": f'"{etag}"'}
                self._send(206 if int(start) else 200, data[int(start) :], body, headers)

        def _send(self, status: int, data: bytes, body: bool, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if not body:
                return
            if hub.cut_after is not None and len(data) > hub.cut_after:
                data, hub.cut_after = data[: hub.cut_after], None
                self.close_connection = True
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
