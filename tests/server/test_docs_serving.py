"""docs/serving.md is followed to the letter, against a live server with random weights."""

import argparse
import re
import shlex
import shutil
import subprocess

import pytest
from commands import ROOT, blocks, lines
from live_server import serving
from tiny_speech import tiny_engine

from qwen_megakernel.cli import main, options
from qwen_megakernel.server import app as server_app
from qwen_megakernel.server.schemas import SpeechBody
from qwen_megakernel.server.settings import ServerSettings

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:8090"


@pytest.fixture(scope="module")
def address(reader_folder):
    """The URL of a server as the page describes it, with uploads allowed."""
    with (
        tiny_engine("tiny-random-base", voices=reader_folder, max_frames=40) as tts,
        serving(tts, voices=reader_folder, allow_upload=True) as live,
    ):
        yield live.url.removeprefix("http://")


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_every_curl_command_works(reader_folder, address):
    commands = [line for line in lines(PAGE) if line.startswith("curl")]
    assert len(commands) == 7
    outputs = []
    for line in commands:
        words = ["curl", "-sS", *shlex.split(line.replace(ADDRESS, address))[1:]]
        done = subprocess.run(words, cwd=reader_folder, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0 and '"error"' not in done.stdout, done
        outputs.append(done.stdout)
    assert outputs[2].endswith("data: [DONE]\n\n")
    for name in ("out.wav", "mario-says.wav"):
        assert (reader_folder / name).read_bytes().startswith(b"RIFF")


@pytest.mark.parametrize("block", blocks(PAGE, "python"), ids=["websocket", "openai"])
def test_every_example_runs(run_here, monkeypatch, reader_folder, address, block):
    monkeypatch.chdir(reader_folder)
    done = run_here("-c", block.replace(ADDRESS, address))
    assert done.returncode == 0 and '"error"' not in done.stdout, done
    assert re.search(r"^\d+ bytes", done.stdout, re.MULTILINE)


def test_the_page_names_every_field_option_and_endpoint():
    assert all(f"`{name}`" in PAGE for name in SpeechBody.model_fields)
    serve = main.parser()._subparsers._group_actions[0].choices["serve"]
    shared = argparse.ArgumentParser()
    options.add_model_options(shared)  # of every command that loads a model
    names = [
        {name for action in each._actions for name in action.option_strings}
        for each in (serve, shared)
    ]
    named = names[0] - names[1] - {"--max-frames"}
    missing = {name for name in named if name not in PAGE}
    assert not missing
    own = ServerSettings(dialects=())  # docs/dialects.md has the others' paths
    for path in server_app.create_app(lambda: None, own).openapi()["paths"]:
        path = path.replace("{request_id}", "{request id}")
        assert path in PAGE or path.removeprefix("/v1/audio/models") == "", path


def test_every_metric_is_on_the_page():
    app = server_app.create_app(lambda: None)
    families = {family.name for family in app.state.service.metrics.registry.collect()}
    ours = {name for name in families if name.startswith("tts_")}
    assert ours and all(name in PAGE for name in ours)
