"""Two replicas on Ray Serve on this machine: requests through Serve's proxy, and a death.

Each replica has an engine that hums. It reports its process id as the seed, so a client knows which
replica spoke.
"""

import contextlib
import io
import json
import os
import pickle
import random
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import soundfile
import waveforms
from commands import run
from dialect_clients import CARTESIA, DEEPGRAM, ELEVENLABS, audio_of, cartesia
from fake_engine import STORY, FakeEngine, FakeStream
from live_server import sse
from waiting import wait_until
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from qwen_megakernel import families
from qwen_megakernel.cli import main
from qwen_megakernel.cli import serve as cli_serve
from qwen_megakernel.errors import QwenTTSError, SetupError, UsageError
from qwen_megakernel.server.settings import ServerSettings
from qwen_megakernel.text.reading.lexicon import Lexicon

psutil = pytest.importorskip("psutil")
ray = pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve")
cloudpickle = pytest.importorskip("ray.cloudpickle")

from qwen_megakernel.server import ray_serve  # noqa: E402 - needs Ray

ROOT = Path(__file__).parents[2]
# Ray has daemons, which take minutes to start on a busy machine.
pytestmark = [pytest.mark.ci, pytest.mark.timeout(900)]
NUM_SLOTS = 4
ALIASES = {"21m00Tcm4TlvDq8ikWAM": "vivian"}
LONG_STORY = STORY * 8  # takes 15 s, so even on a busy machine, all listeners overlap


class NamedEngine(FakeEngine):
    def stream(self, text: str | None = None, **options: Any) -> FakeStream:
        return super().stream(text, **options | {"seed": os.getpid()})


def make_engine() -> NamedEngine:
    assert os.environ.get("OMP_WAIT_POLICY") == "PASSIVE"  # before torch came into this process
    return NamedEngine(num_slots=NUM_SLOTS, rtf=0.5)


@contextlib.contextmanager
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ray on this machine, which ends with all its processes."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests' / 'support'}")  # for the replicas
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv(*ray_serve.PROXY_PATIENCE)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)  # a replica gets it from its application
    # The path of pytest's folder is too long for the sockets that Ray puts into this folder.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        start_ray(folder)
        try:
            yield
        finally:
            ray.shutdown()


def start_ray(folder: str, attempts: int = 3) -> None:
    """Ray gives its own processes 30 s to start, which is short on a busy machine."""
    try:
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=80_000_000,
            _temp_dir=folder,
        )
    except Exception as error:  # Ray raises no narrower class
        if attempts == 1 or "timed out during startup" not in str(error):
            raise
        ray.shutdown()
        start_ray(folder, attempts - 1)


def free_port() -> int:
    """Return a free port that the system gives to no connection, such as those of Ray's start."""
    for port in random.sample(range(21_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("a hundred ports are taken")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Two replicas behind one address."""
    with pytest.MonkeyPatch.context() as patch, cluster(patch):
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        scale = ray_serve.Scale(min_replicas=2, max_replicas=2, num_cpus=0.5)
        settings = ServerSettings(voice_aliases=ALIASES)
        app = ray_serve.application(make_engine, settings, scale, num_slots=NUM_SLOTS)
        serve.run(app, name=ray_serve.NAME)
        yield f"http://127.0.0.1:{port}"


def speak(url: str, text: str = "Hello there.", **body: Any) -> httpx.Response:
    body = {"input": text, "response_format": "pcm"} | body
    return httpx.post(f"{url}/v1/audio/speech", json=body, timeout=60)


def num_samples(text: str) -> int:
    return 1920 * FakeEngine().stream(text)._frames_in_text()


def replicas() -> dict[int, psutil.Process]:
    """Process ids of this Ray session's replicas."""
    family = psutil.Process().children(recursive=True)
    return {p.pid: p for p in family if "ServeReplica" in " ".join(p.cmdline())}


def test_the_wire_is_that_of_one_server(url: str) -> None:
    assert httpx.get(f"{url}/ready").json()["status"] == "ready"
    assert httpx.get(url).headers["content-type"].startswith("text/html")
    response = speak(url)
    assert len(response.content) == 2 * num_samples("Hello there.")
    assert "," not in response.headers["x-request-id"]
    refused = speak(url, voice="nobody")
    assert refused.status_code == 400 and "nobody" in refused.json()["error"]["message"]
    events = sse(speak(url, stream_format="sse").text)
    assert [event["type"] for event in events][-1] == "speech.audio.done"


def test_sound_leaves_before_it_is_complete(url: str) -> None:
    arrived = []
    body = {"input": STORY, "response_format": "pcm"}
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=60) as response:
        for piece in response.iter_raw():
            arrived.append((time.monotonic(), len(piece)))
    assert arrived[0][1] == 3840  # one frame
    assert arrived[-1][0] - arrived[0][0] > 1  # it takes two seconds to make


def test_text_goes_in_while_sound_comes_out(url: str) -> None:
    with connect(url.replace("http", "ws") + "/v1/audio/speech/stream") as socket_:
        socket_.send(json.dumps({"type": "session.config", "response_format": "pcm"}))
        socket_.send(json.dumps({"type": "input.text", "text": STORY}))
        heard = 0
        while heard < 3840:  # audio arrives before the text is complete
            message = socket_.recv(timeout=30)
            heard += len(message) if isinstance(message, bytes) else 0
        socket_.send(json.dumps({"type": "input.text", "text": "The end."}))
        socket_.send(json.dumps({"type": "input.done"}))
        while True:
            message = socket_.recv(timeout=30)
            if isinstance(message, bytes):
                heard += len(message)
            elif json.loads(message)["type"] == "session.done":
                break
    assert heard == 2 * num_samples(STORY + "The end.")


VENDORS_REQUESTS = {
    "/v1/text-to-speech/{voice}/stream?output_format=pcm_24000": {"text": "Hello there."},
    "/tts/bytes": cartesia("c", "Hello there."),
    "/v1/speak?model={voice}&encoding=linear16&container=none": {"text": "Hello there."},
}


@pytest.mark.parametrize("path", VENDORS_REQUESTS)
def test_the_vendors_paths_speak_with_an_alias(url: str, path: str) -> None:
    def ask(voice: str) -> httpx.Response:
        body = VENDORS_REQUESTS[path] | ({"voice": voice} if "tts" in path else {})
        return httpx.post(url + path.format(voice=voice), json=body, timeout=60)

    (alias,) = ALIASES
    assert len(ask(alias).content) == 2 * num_samples("Hello there.")
    refused = ask("nobody")
    assert refused.status_code == 400 and "error" not in refused.json()  # the vendor's form
    assert "--voice-alias" in refused.text


def vendors_speech(dialect: str, alias: str) -> tuple[str, list[dict[str, Any]], str]:
    """Return the path of a WebSocket, messages, and what is in the last answer."""
    if dialect == "elevenlabs":
        messages = [{"text": f"{STORY} ", "context_id": "c", "flush": True}, {"close_socket": True}]
        return ELEVENLABS.replace("vivian", alias), messages, '"isFinal":true'
    if dialect == "cartesia":
        return CARTESIA, [cartesia("c", STORY, voice=alias)], '"done":true'
    messages = [{"type": "Speak", "text": STORY}, {"type": "Flush"}]
    return DEEPGRAM.replace("vivian", alias), messages, '"Flushed"'


@pytest.mark.parametrize("dialect", ["elevenlabs", "cartesia", "deepgram"])
def test_the_vendors_websockets_speak_with_an_alias(url: str, dialect: str) -> None:
    path, messages, last = vendors_speech(dialect, *ALIASES)
    heard: list[Any] = []
    with connect(url.replace("http", "ws") + path) as socket_:
        for message in messages:
            socket_.send(json.dumps(message))
        while not heard or isinstance(heard[-1], bytes) or last not in heard[-1]:
            heard.append(socket_.recv(timeout=30))
        assert socket_.response.headers["X-AI-Generated"] == "true"
    facts = [{"bytes": each} if isinstance(each, bytes) else json.loads(each) for each in heard]
    assert len(audio_of(facts)) == 2 * num_samples(STORY)


@pytest.mark.parametrize("path", [ELEVENLABS, DEEPGRAM])
def test_a_vendors_websocket_with_an_unknown_voice_is_refused(url: str, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(url.replace("http", "ws") + path.replace("vivian", "nobody"))
    response = refused.value.response
    assert response.status_code == 400 and b"--voice-alias" in response.body


def test_requests_go_to_both(url: str) -> None:
    found: set[str] = set()
    for _ in range(20):  # Ray chooses at random: all six may reach one
        with ThreadPoolExecutor(6) as pool:
            found |= {answer.headers["x-seed"] for answer in pool.map(speak, [url] * 6)}
        if len(found) == 2:
            return
    pytest.fail(f"Of 120 requests all went to {found}.")


@dataclass
class Listener:
    """One request of the load, in a thread of its own."""

    url: str
    body: dict[str, Any]
    replica: int | None = None
    heard: bytes = b""
    error: Exception | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()

    def listen(self) -> None:
        try:
            with httpx.stream("POST", self.url, json=self.body, timeout=60) as response:
                self.replica = int(response.headers["x-seed"])
                for piece in response.iter_raw():
                    self.heard += piece
        except Exception as error:
            self.error = error


def test_of_a_replica_that_dies_only_its_own_streams_break_off(url: str) -> None:
    bodies = [
        {"input": LONG_STORY, "response_format": "pcm"}
        | ({"stream_format": "sse"} if index % 2 else {})
        for index in range(6)
    ]
    listeners: list[Listener] = []
    for body in bodies:  # Ray prefers the less busy replica, if it knows it
        listeners.append(Listener(f"{url}/v1/audio/speech", body))
        wait_until(lambda: listeners[-1].heard, 20)
    pids = {listener.replica for listener in listeners}
    assert pids == set(replicas())  # both replicas are speaking
    done = [(each.error, len(each.heard)) for each in listeners if not each.thread.is_alive()]
    assert done == []
    victim = listeners[0].replica
    replicas()[victim].kill()
    # New requests are answered at once, by the other one, and none of them fails.
    others = [speak(url) for _ in range(4)]
    assert all(len(other.content) == 2 * num_samples("Hello there.") for other in others)
    assert victim not in {int(other.headers["x-seed"]) for other in others}
    for listener in listeners:
        listener.thread.join()
    for listener in listeners:
        if listener.replica == victim:  # an error, not an ordinary end
            assert isinstance(listener.error, httpx.RemoteProtocolError)
            assert "incomplete" in str(listener.error)
        elif listener.body.get("stream_format"):
            assert sse(listener.heard.decode())[-1]["type"] == "speech.audio.done"
        else:
            assert len(listener.heard) == 2 * num_samples(LONG_STORY) and listener.error is None

    def are_two() -> bool:
        return len({int(speak(url, "Hi.").headers["x-seed"]) for _ in range(4)} - {victim}) == 2

    wait_until(are_two, 150)


def test_a_scale_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="max_replicas 1"):
        ray_serve.Scale(min_replicas=2, max_replicas=1)


def test_a_proxy_that_is_killed_is_an_error_with_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(**_: Any) -> None:
        assert os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] == "7"  # the user's value
        raise ray.exceptions.ActorUnavailableError("It was killed\nby `ray.kill`.", None)

    monkeypatch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "7")
    monkeypatch.setattr(ray_serve.ray, "init", lambda **_: None)
    monkeypatch.setattr(ray_serve, "_check_room", lambda scale: None)
    monkeypatch.setattr(ray_serve.serve, "start", killed)
    with pytest.raises(SetupError, match=r"(?s)proxy did not start.*killed.*too busy"):
        ray_serve.run(make_engine, ServerSettings(), ray_serve.Scale(), num_slots=1, port=0)


def test_options_of_dialects_travel_to_the_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    build = runpy.run_path(str(ROOT / "deploy" / "ray_serve.py"))["build"]
    monkeypatch.setattr(ray_serve, "application", lambda **arguments: arguments)
    aliases = ["21m00=demo", "c0ffee=demo"]
    how = {"model": "demo-voice", "dialects": "cartesia,deepgram", "voice-fallback": "demo"}
    settings = pickle.loads(pickle.dumps(build(how | {"voice-alias": aliases})["settings"]))
    assert settings.dialects == ("cartesia", "deepgram") and settings.voice_fallback == "demo"
    assert settings.voice_aliases == {"21m00": "demo", "c0ffee": "demo"}


def test_a_replica_finds_the_files_of_the_command_line(tmp_path, monkeypatch) -> None:
    for name in ("model", "voices", "anna"):
        (tmp_path / name).mkdir()
    (tmp_path / "words.tsv").write_text("Qwen\tkwen\n")
    made = Mock()
    monkeypatch.chdir(tmp_path)
    words = "serve --ray --quiet --model model --voices voices --adapter anna --lexicon words.tsv"
    args = main.parser().parse_args(words.split())
    make_engine = cloudpickle.loads(cloudpickle.dumps(cli_serve.ray_options(args)["make_engine"]))
    monkeypatch.chdir("/")  # a replica has a working folder of its own
    monkeypatch.setattr(families, "load_engine", made)
    make_engine()
    ((model,), how) = made.call_args
    assert model == str(tmp_path / "model") and how["voices"] == str(tmp_path / "voices")
    assert how["adapter"] == str(tmp_path / "anna") and isinstance(how["lexicon"], Lexicon)
    args.adapter = ["eve=anna", "eve="]
    monkeypatch.chdir(tmp_path)
    cli_serve.ray_options(args)
    assert args.adapter == [f"eve={tmp_path / 'anna'}", "eve="]  # which names no folder


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--max-replicas", "0"), "min_replicas is 1 and max_replicas 0; they must be"),
        (("--voices", "missing"), "There is no voices folder missing"),
        (("--default-format", "aac"), "--default-format aac needs av"),
    ],
)
def test_ray_refuses_what_cannot_work(words, error, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(QwenTTSError, match=error):
        cli_serve.ray_options(main.parser().parse_args(["serve", "--ray", *words]))


# ---- with real engines, and the commands; a minute each ------------------------------------------


@pytest.mark.slow
def test_the_command_shares_voices_between_replicas_and_finishes_what_it_speaks(tmp_path) -> None:
    voices = tmp_path / "voices"
    voices.mkdir()
    command = [sys.executable, "-m", "qwen_megakernel", "serve", "--ray", "--replicas", "2"]
    command += ["--model", "tiny-random-base", "--port", "0"]
    command += ["--voices", "voices", "--allow-upload"]
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": folder}
        with subprocess.Popen(
            command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
        ) as server:
            found = None
            for line in server.stderr:
                if found := re.search(r"listening on (http://\S+)", line):
                    break
            assert found
            url = found[1]
            recording = io.BytesIO()
            soundfile.write(recording, waveforms.voice_like(2, 16000), 16000, format="WAV")
            uploaded = httpx.post(
                f"{url}/v1/audio/voices",
                files={"audio_sample": ("a.wav", recording.getvalue())},
                data={"name": "mario", "consent": "test"},
                timeout=60,
            )
            assert uploaded.status_code == 201, uploaded.text
            spoken = [
                speak(url, "Hello.", voice="mario", max_new_tokens=9, seed=3) for _ in range(8)
            ]
            assert {answer.status_code for answer in spoken} == {200}
            assert len({answer.content for answer in spoken}) == 1  # from any replica
            listener = Listener(
                f"{url}/v1/audio/speech",
                {"input": STORY, "response_format": "pcm", "seed": 1, "max_new_tokens": 60},
            )
            wait_until(lambda: listener.heard, 30)
            server.terminate()
            listener.thread.join()
            assert listener.error is None and len(listener.heard) % 3840 == 0
            server.stderr.read()
            assert server.wait(timeout=60) == 128 + signal.SIGTERM


@pytest.mark.slow
def test_more_replicas_come_when_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(monkeypatch):
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        scale = ray_serve.Scale(1, 2, num_cpus=0.5, upscale_delay_s=1.0)
        app = ray_serve.application(make_engine, ServerSettings(), scale, num_slots=1)
        serve.run(app, name=ray_serve.NAME)
        url = f"http://127.0.0.1:{port}"
        assert len(replicas()) == 1
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                speak(url, STORY)

        with ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                pool.submit(load)
            wait_until(lambda: len(replicas()) == 2, 90)
            stop.set()


@pytest.mark.slow
def test_serves_own_tools_can_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    build = runpy.run_path(str(ROOT / "deploy" / "ray_serve.py"))["build"]
    with cluster(monkeypatch):
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(build({"model": "tiny-random", "max-frames": 20, "slots": 2, "quiet": True}))
        answer = speak(f"http://127.0.0.1:{port}", "Hello.", voice="aiden", seed=1)
        assert answer.status_code == 200 and len(answer.content) >= 3840


@pytest.mark.slow
def test_more_replicas_than_there_is_room_for_are_refused() -> None:
    command = ("-m", "qwen_megakernel", "serve", "--ray", "--replicas", 999, "--port", 0)
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        done = run(*command, "--model", "tiny-random", RAY_TMPDIR=folder)
    assert done.returncode == 5 and "999 replicas need 999 CPUs" in done.stderr
