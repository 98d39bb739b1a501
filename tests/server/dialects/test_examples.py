"""examples/pipecat_elevenlabs.py and livekit_elevenlabs.py, run against a server on loopback."""

import os
import sys
import wave
from pathlib import Path

import pytest
from commands import ROOT, captured
from fake_engine import FakeEngine
from live_server import LiveServer, serving

LIVEKIT = ROOT / ".venv-livekit" / "bin" / "python"
SAID = "Your table is ready. Please follow me."


def run(python: str | Path, name: str, url: str, folder: Path) -> tuple[list[str], bytes]:
    """Return the lines that an example prints, and the samples of its file."""
    done = captured(
        [python, ROOT / "examples" / name, SAID, "--url", url],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    with wave.open(str(folder / "elevenlabs.wav")) as file:
        assert file.getframerate() == 24000
        return done.stdout.splitlines(), file.readframes(file.getnframes())


def heard(live: LiveServer) -> bytes:
    """Return all that the engine has said, which is all of the text."""
    streams = live.engine.streams
    assert " ".join(" ".join(stream.text.spoken for stream in streams).split()) == SAID
    assert {stream.request.voice for stream in streams} == {"vivian"}
    return b"".join(stream.sent for stream in streams)


def test_pipecats_service_speaks_with_the_server(tmp_path: Path):
    pytest.importorskip("pipecat")
    with serving(FakeEngine(rtf=0.01), voice_fallback="vivian") as live:
        url = live.url.replace("http", "ws")
        lines, samples = run(sys.executable, "pipecat_elevenlabs.py", url, tmp_path)
        assert lines == SAID.split() and samples == heard(live)


def test_without_a_server_pipecats_example_fails_and_keeps_the_older_file(tmp_path: Path):
    pytest.importorskip("pipecat")
    older = tmp_path / "elevenlabs.wav"
    older.write_bytes(b"older")
    with pytest.raises(AssertionError, match="No speech came from ws:"):
        run(sys.executable, "pipecat_elevenlabs.py", "ws://127.0.0.1:9", tmp_path)
    assert older.read_bytes() == b"older"


@pytest.mark.ci  # starts one of LiveKit's processes
@pytest.mark.skipif(not LIVEKIT.exists(), reason=".ci/run makes .venv-livekit; there is none")
def test_livekits_plugin_speaks_with_the_server(tmp_path: Path):
    with serving(FakeEngine(rtf=0.01), voice_fallback="vivian") as live:
        lines, samples = run(LIVEKIT, "livekit_elevenlabs.py", live.url, tmp_path)
        assert " ".join(line.partition(": ")[2] for line in lines) == SAID
        assert samples == heard(live)
