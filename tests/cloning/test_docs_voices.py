"""docs/voices.md is followed to the letter, with random weights in place of the model."""

import shlex
import shutil

import pytest
import soundfile
from commands import ROOT, blocks, lines

PAGE = (ROOT / "docs" / "voices.md").read_text(encoding="utf-8")
MODEL = "tiny-random-base"


def test_every_command_runs(run_here, monkeypatch, reader_folder):
    monkeypatch.chdir(reader_folder)
    (reader_folder / "anna").mkdir()
    for style in ("neutral", "happy"):
        shutil.copy(reader_folder / "mario.wav", reader_folder / "anna" / f"{style}.wav")
        (reader_folder / "anna" / f"{style}.txt").write_text("It is cold today, and we are late.")
    commands = lines(PAGE)
    assert len(commands) == 10
    for command in commands:
        words = shlex.split(command.replace("$MODEL", MODEL))
        assert words[0] == "python"
        done = run_here(*words[1:])
        assert done.returncode == 0, done.stderr
        if "show" in words:
            assert "It is cold today" in done.stdout
    assert soundfile.info(reader_folder / "out.wav").duration > 0


@pytest.mark.parametrize(
    "block", blocks(PAGE, "python"), ids=["engine", "agent", "compat", "conversation"]
)
def test_every_example_runs(run_here, monkeypatch, reader_folder, block):
    if "pipecat" in block:
        pytest.importorskip("pipecat")
    monkeypatch.chdir(reader_folder)
    out = run_here("-c", f"MODEL = {MODEL!r}\n{block}").stdout
    if "in_context" in block:
        assert out.splitlines() == ["1", "mario True It is cold today, and we are late."]
    if "num_bytes" in block:
        assert int(out.split()[0]) > 0
