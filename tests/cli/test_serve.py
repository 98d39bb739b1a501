"""The command `serve`: what its options mean, and what it refuses before a model is loaded."""

import argparse
import logging
import re
import socket
import sys
import threading
from unittest.mock import Mock

import httpx
import pytest
from fake_engine import FakeEngine
from live_server import serving
from waiting import wait_until

from qwen_megakernel import tts_engine
from qwen_megakernel.cli import main, options, running
from qwen_megakernel.errors import UnknownVoice
from qwen_megakernel.server import serving as server_serving
from qwen_megakernel.server.settings import ServerSettings


@pytest.fixture
def served(monkeypatch):
    """Run `serve` with arguments; returns what it hands to the server."""
    calls = []

    def serve(engine, settings, **address):
        calls.append((engine, settings, address))
        return None, False

    monkeypatch.setattr(server_serving, "serve", serve)

    def run(*words):
        assert main.main(["serve", *words]) == 0
        return calls[-1]

    return run


def test_defaults_are_loopback_and_openais_limits(served):
    _, settings, address = served()
    assert (address["host"], address["port"]) == ("127.0.0.1", 8090)
    assert (settings.max_queue, settings.max_chars, settings.default_format) == (8, 4096, "wav")
    assert settings.api_key is None and not settings.allow_upload and not settings.allow_origins


def test_options_become_settings(served, tmp_path):
    _, settings, address = served(
        *("--host", "::1", "--port", "0", "--api-key", "s3cret", "--max-queue", "2"),
        *("--max-chars", "9000", "--default-format", "mp3", "--voice-fallback", "vivian"),
        *(
            "--voices",
            str(tmp_path),
            "--allow-upload",
            "--max-uploads",
            "5",
            "--deadline",
            "5",
            "--drain",
            "6",
        ),
        *("--allow-origin", "https://a.example", "--allow-origin", "https://b.example"),
        *("--allow-host", "a.example", "--allow-host", "b.example"),
        *("--dialects", "deepgram,cartesia", "--voice-alias", "21m00=vivian"),
    )
    assert settings.dialects == ("deepgram", "cartesia")
    assert settings.voice_aliases == {"21m00": "vivian"}
    assert (address["host"], address["port"]) == ("::1", 0)
    assert (settings.api_key, settings.max_queue, settings.max_chars) == ("s3cret", 2, 9000)
    assert (settings.default_format, settings.voice_fallback) == ("mp3", "vivian")
    assert settings.voices == tmp_path and settings.allow_upload and settings.max_uploads == 5
    assert (settings.deadline_s, settings.drain_timeout_s) == (5, 6)
    assert settings.allow_origins == ("https://a.example", "https://b.example")
    assert settings.allow_hosts == ("a.example", "b.example")


def test_wyoming_has_an_address_of_its_own(served):
    pytest.importorskip("wyoming")
    *_, address = served("--wyoming-port", "0", "--wyoming-host", "127.0.0.2")
    assert (address["wyoming_host"], address["wyoming_port"]) == ("127.0.0.2", 0)


def test_the_access_log_goes_to_stderr_with_the_time_where_it_is_asked_for(served, capsys):
    logger = logging.getLogger("qwen_megakernel.access")
    try:
        served()
        logger.info("nobody asked")
        served("--access-log", "--quiet")
        logger.info("GET /")
        assert re.fullmatch(r"\d{4}-\d\d-\d\d [\d:,]+ GET /\n", capsys.readouterr().err)
    finally:
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


def test_a_record_of_another_package_is_one_printable_line(monkeypatch, capsys):
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's

    def log(_: argparse.Namespace) -> int:
        logging.getLogger("uvicorn.error").error("Failed:\n%s\n", "FAKE\n\x1b[31m")
        return 0

    level = logging.root.level
    try:
        assert running.run(log, argparse.Namespace(debug=False, quiet=False)) == 0
    finally:
        logging.root.setLevel(level)
    assert capsys.readouterr().err == "Failed: FAKE\\n\\x1b[31m\n"


def test_the_key_may_come_from_the_environment(served, monkeypatch):
    monkeypatch.setenv("QWEN_MEGAKERNEL_API_KEY", "from there")
    assert served()[1].api_key == "from there"
    assert served("--api-key", "from here")[1].api_key == "from here"
    monkeypatch.setenv("QWEN_MEGAKERNEL_API_KEY", "")
    assert served()[1].api_key is None


def test_a_default_format_without_its_package_is_refused_before_a_model_is_loaded(
    capsys, monkeypatch
):
    monkeypatch.setattr(options, "engine_from_args", lambda *_, **__: pytest.fail("loaded"))
    monkeypatch.setitem(sys.modules, "av", None)
    assert main.main(["serve", "--default-format", "aac"]) == 3
    assert "[aac]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "key", "hosts", "served_hosts", "num_warnings"),
    [
        ("127.0.0.1", None, (), (), 0),
        ("::1", None, (), (), 0),
        ("0.0.0.0", None, (), ("*",), 1),
        ("0.0.0.0", "s3cret", (), ("*",), 0),
        ("192.0.2.1", None, ("speech.lan",), ("speech.lan",), 1),
        ("::", None, (), ("*",), 1),
    ],
)
def test_a_server_that_others_reach_warns_without_a_key_and_has_any_name(
    address, key, hosts, served_hosts, num_warnings, caplog
):
    listener = Mock(getsockname=lambda: (address, 8090))
    given = ServerSettings(api_key=key, allow_hosts=hosts)
    assert server_serving.settings_for(listener, given).allow_hosts == served_hosts
    assert len(caplog.messages) == num_warnings
    for line in caplog.messages:
        assert address in line and "QWEN_MEGAKERNEL_API_KEY" in line and "\n" not in line


def test_wyoming_listens_on_a_host_of_its_own(monkeypatch):
    said, server = [], Mock(ended_by=None, service=Mock(failure=None, is_loading=False))
    monkeypatch.setattr(server_serving, "DrainingServer", lambda *_, **__: server)
    ports = {"port": 0, "wyoming_port": 0, "say": said.append}
    for host in ("127.0.0.2", None):
        server_serving.serve(FakeEngine(), ServerSettings(), wyoming_host=host, **ports)
    addresses = [line.rpartition(":")[0].removeprefix("listening on ") for line in said]
    assert addresses == [
        "http://127.0.0.1",
        "tcp://127.0.0.2",
        "http://127.0.0.1",
        "tcp://127.0.0.1",
    ]


def test_a_port_that_is_taken_is_named(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main.main(["serve", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"error: Cannot listen on 127.0.0.1 port {port}: Address already in use.\n"
        "Choose another port; 0 takes any free one.\n"
    )


def test_a_model_that_cannot_be_loaded_ends_the_command_with_its_exit_code(capsys):
    words = ["serve", "--port", "0", "--model", "/no/such/folder"]
    assert main.main(words) == 4
    assert "/no/such/folder" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--voice-fallback", "nobody"), ("--voice-alias", "a=nobody")])
def test_an_unknown_voice_ends_the_command_before_the_weights_are_read(monkeypatch, capsys, words):
    monkeypatch.setattr(tts_engine, "load_decoder", lambda *_, **__: pytest.fail("loaded"))
    words = ["serve", "--port", "0", "--model", "demo-voice", *words]
    assert main.main(words) == UnknownVoice.exit_code
    assert 'Unknown voice "nobody"' in capsys.readouterr().err


def test_no_dialect_is_served_with_none(served):
    _, settings, _ = served("--dialects", "none")
    assert settings.dialects == ()


def test_another_default_format_is_what_a_bare_request_gets():
    """Open WebUI names no format, and stores the answer as .mp3."""
    with serving(FakeEngine(rtf=0.001), default_format="mp3") as live:
        assert live.speak().headers["content-type"] == "audio/mpeg"
        assert live.speak(response_format="pcm").headers["content-type"] == "audio/pcm"


def test_ipv6_is_listened_on_where_it_is_asked_for():
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    said = []
    running = []
    draining_server = server_serving.DrainingServer

    def remember(*arguments, **named):
        running.append(draining_server(*arguments, **named))
        return running[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_serving, "DrainingServer", remember)
        thread = threading.Thread(
            target=server_serving.serve,
            args=(FakeEngine(), ServerSettings()),
            kwargs={"host": "::1", "port": 0, "say": said.append},
        )
        thread.start()
        wait_until(lambda: running and running[0].started)
        address = said[0].removeprefix("listening on ")
        assert address.startswith("http://[::1]:")
        assert httpx.get(f"{address}/health").status_code == 200
        running[0].should_exit = True
        thread.join()
