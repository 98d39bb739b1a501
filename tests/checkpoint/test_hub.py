"""Downloads from a hub (a local stand-in), and what happens when there is none."""

import errno
import json
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import fake_hub
import huggingface_hub
import pytest
from huggingface_hub import constants

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.errors import ModelFilesError, OutputError, UnsupportedModel, UsageError

REPO = "Qwen/Qwen3-TTS-12Hz-0.6B-Base"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, without the user's variables that forbid downloads."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


@pytest.fixture
def server(
    hub_cache: Path, tmp_path: Path, model_folder, monkeypatch: pytest.MonkeyPatch
) -> Iterator[fake_hub.FakeHub]:
    """A hub that has `REPO`, with a file in it that no model needs."""
    folder = tmp_path / "repo"
    shutil.copytree(model_folder("tiny-random-base"), folder)
    (folder / "README.md").write_text("not needed")
    with fake_hub.serve() as hub:
        hub.repos[REPO] = folder
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        yield hub


def unused_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_exactly_the_needed_files_are_downloaded_and_load(server, hub_cache):
    files = loading.resolve(REPO)
    assert files.folder.is_relative_to(hub_cache)
    assert not files.is_synthetic
    needed = "config.json generation_config.json vocab.json merges.txt tokenizer_config.json"
    codec = "speech_tokenizer/config.json speech_tokenizer/model.safetensors"
    assert server.files_sent == {*needed.split(), "model.safetensors", *codec.split()}
    loaded = loading.load(files)
    assert loaded.config.model_type == "base"


def test_a_terminal_sees_a_bar_with_sizes(server, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    loading.resolve(REPO)
    progress = capsys.readouterr().err
    size = (server.repos[REPO] / "model.safetensors").stat().st_size
    assert "model.safetensors: 100%" in progress
    assert f"{size / 1e6:.1f}M" in progress


def test_no_bar_without_progress(server, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    loading.resolve(REPO, progress=False)
    assert capsys.readouterr().err == ""
    assert not huggingface_hub.utils.are_progress_bars_disabled()


def test_cached_files_are_used_without_a_request(server, monkeypatch):
    first = loading.resolve(REPO)
    num_requests = len(server.requests)
    assert loading.resolve(REPO) == first
    assert len(server.requests) == num_requests
    monkeypatch.setenv("HF_ENDPOINT", unused_address())
    assert loading.resolve(REPO, local_files_only=True) == first
    assert loading.resolve(REPO) == first


def test_local_files_only_never_asks(server):
    with pytest.raises(ModelFilesError, match=r"local files only.*is not in"):
        loading.resolve(REPO, local_files_only=True)
    assert server.requests == []


def test_an_unreachable_hub_is_noticed_at_once_with_three_ways_out(hub_cache, monkeypatch):
    address = unused_address()
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(ModelFilesError) as caught:
        loading.resolve(REPO)
    what, why, hint = str(caught.value).splitlines()
    host = address.removeprefix("http://")
    assert what.startswith(f"Cannot reach {host} (connection refused), and {REPO} is not in ")
    assert "model.safetensors 1.8 GB" in why
    assert "speech_tokenizer/ 0.7 GB" in why
    assert "--model PATH" in hint
    assert "HF_ENDPOINT" in hint
    assert "--model demo-voice" in hint
    assert caught.value.exit_code == 4


def test_a_hub_that_accepts_and_never_answers_costs_two_seconds(hub_cache, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        with pytest.raises(ModelFilesError, match="no answer within 2 s"):
            loading.resolve(REPO)
        assert time.monotonic() - start < 3.9  # less than two attempts take


def test_a_name_lookup_that_hangs_costs_two_seconds(hub_cache, monkeypatch):
    def hang(*_: object, **__: object) -> None:
        time.sleep(8)
        raise socket.gaierror("never")

    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setattr(socket, "getaddrinfo", hang)
    start = time.monotonic()
    with pytest.raises(ModelFilesError, match="no answer within 2 s"):
        loading.resolve(REPO)
    assert time.monotonic() - start < 3.9


def test_a_host_name_that_does_not_resolve_is_reported(hub_cache, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    unknown = socket.gaierror(-2, "Name or service not known")
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=unknown))
    with pytest.raises(ModelFilesError, match=r"Cannot reach hub.invalid \(name not resolved\)"):
        loading.resolve(REPO)


def test_an_endpoint_that_is_no_address_is_refused(hub_cache, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "hub.example.org")
    with pytest.raises(UsageError, match="must begin with https://"):
        loading.resolve(REPO)


def test_a_25_hz_model_is_refused_before_its_weights_are_fetched(server):
    path = server.repos[REPO] / "config.json"
    values = json.loads(path.read_text()) | {"tokenizer_type": "qwen3_tts_tokenizer_25hz"}
    path.write_text(json.dumps(values))
    with pytest.raises(UnsupportedModel, match="25hz is not supported"):
        loading.resolve(REPO)
    assert server.files_sent == {"config.json"}


def test_a_repository_without_a_file_names_it(server):
    (server.repos[REPO] / "merges.txt").unlink()
    with pytest.raises(ModelFilesError, match=r"has no merges\.txt"):
        loading.resolve(REPO)


def test_an_unknown_repository_lists_the_models_there_are(server):
    with pytest.raises(ModelFilesError) as caught:
        loading.resolve("Qwen/Qwen3-TTS-12Hz-0.6B-Bass")
    assert "HTTP 404" in caught.value.what
    assert REPO in caught.value.why


def test_a_hub_in_trouble_is_quoted(server, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)  # huggingface_hub's pauses between attempts
    server.status = 503
    with pytest.raises(ModelFilesError, match=r"broke off \(HTTP 503\)"):
        loading.resolve(REPO)


def test_a_download_that_breaks_off_is_continued(server):
    server.cut_after = 2**20
    try:
        files = loading.resolve(REPO)  # huggingface_hub may continue by itself
    except ModelFilesError as error:
        assert "broke off" in error.what
        assert "same command again" in error.hint
        files = loading.resolve(REPO)
    assert loading.load(files).talker


def test_a_full_disk_is_called_so(server, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", Mock(side_effect=full))
    with pytest.raises(OutputError, match="No space left on device"):
        loading.resolve(REPO)
