"""benchmarks/measures/servers.py: servers take turns, and each is asked as its file says."""

import json
import sys

import pytest

from benchmarks import measure
from benchmarks.measures import servers
from qwen_megakernel.errors import UsageError

# Writes down what it is started with and asked, and answers with two frames, a third late.
STANDIN = """
import http.server, json, os, sys, time
port, log, *rest = sys.argv[1:]
def note(*words):
    with open(log, "a") as file: print(json.dumps(words), file=file)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        note("asked", self.path, body)
        if body["text"] == "die": os._exit(1)
        self.send_response(503 if body["text"] == "nothing" else 200)
        self.end_headers()
        for pause in (0.0, 0.2):
            time.sleep(pause)
            self.wfile.write(bytes(3840))
    def log_message(self, *_): pass
note("started", *rest)
http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""


@pytest.fixture
def write(tmp_path):
    """Return write(*servers), which makes a file of stand-ins that differ in some fields."""
    program, log = tmp_path / "standin.py", tmp_path / "log"
    program.write_text(STANDIN)
    words = f"{sys.executable} {program} {{port}} {log} {{model}} {{threads}}"
    usual = {"engine": "A", "weights": "int8", "command": words, "ready": "/ready"}
    usual |= {"path": "/speak", "body": {"text": "{text}", "max": "{frames}", "seed": 1}}

    def build(*changes):
        file = tmp_path / "servers.json"
        file.write_text(json.dumps([usual | change for change in changes]))
        return file, log

    return build


def test_every_server_is_started_asked_twice_and_ended_in_its_turn(cache_folder, write, measured):
    file, log = write({}, {"engine": "B", "path": "/other"})
    words = ["--servers", file, "--model", "tiny-random", "--frames", "2", "--runs", "2"]
    code, found = measured("servers", *words)
    assert code == 0 and [row["engine"] for row in found["rows"]] == ["A", "B"]
    for row in found["rows"]:
        assert row["audio_s"]["p50"] == 0.16 and row["peak_mb"]["p50"] > 1
        assert row["first_sound_ms"]["p50"] < 200 <= 1000 * 0.16 * row["rtf"]["p50"]
    text = found["settings"]["text"]
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    asked = [["asked", path, {"text": text, "max": 2, "seed": 1}] for path in ("/speak", "/other")]
    assert [call for call in calls if call[0] == "asked"] == 2 * [*2 * asked[:1], *2 * asked[1:]]
    started = [call for call in calls if call[0] == "started"]
    assert len(started) == 4 and started[0][1].endswith("tiny-random-v1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": f"{sys.executable} -c pass"}, "A did not answer"),
        ({"ready": "/never"}, "A did not answer"),
        ({"body": {"text": "nothing"}}, "A answered 503 with 7680 bytes"),
        ({"body": {"text": "x"}}, "A ended its speech after 0.16 s"),
        ({"body": {"text": "die"}}, "A did not finish its answer"),
    ],
)
def test_a_server_that_fails_ends_the_measurement(cache_folder, write, change, message, capsys):
    file, _ = write(change)
    words = ["--servers", str(file), "--model", "tiny-random", "--patience", "2", "--frames", "9"]
    assert measure.main(["servers", *words]) == 6
    assert message in capsys.readouterr().err


def test_a_file_of_other_fields_is_refused(write):
    file, _ = write({"speed": 2})
    with pytest.raises(UsageError, match="speed"):
        servers.Server.read_all(file)


def test_the_committed_servers_can_be_read():
    found = servers.Server.read_all(servers.SERVERS)
    assert len(found) > 2 and all("{port}" in each.command for each in found)
