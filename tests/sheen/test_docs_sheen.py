"""docs/sheen.md is followed to the letter, with small random models for the released ones."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import soundfile
from commands import ROOT, blocks, lines

from qwen_megakernel.cli import main

PAGE = (ROOT / "docs" / "sheen.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def reader(tmp_path_factory, recordings):
    """Where the reader works, with the recordings of the page."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(recordings, folder / "recordings")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def small(base_folder, snac_folder):
    """What each command gets besides what the page says: small models and few steps."""
    snac = ["--snac", str(snac_folder)]
    steps = ["--precision", "fp32", "--learning-rate", "0.01", "--device", "cpu"]
    training = [*snac, "--model", str(base_folder), *steps]
    return {
        "prepare": snac,
        "verify snac": snac,
        "verify training": [*training, "--max-steps", "4"],
        "train": [*training, "--max-steps", "2"],
        "infer": ["--max-frames", "4"],
        "speak": ["--max-frames", "4"],
    }


def test_every_command_runs(reader, small, capsys):
    commands = lines(PAGE)
    assert len(commands) == 10
    for command in commands:
        words = shlex.split(command)
        assert words[:3] == ["python", "-m", "qwen_megakernel"]
        words = words[3:]
        name = " ".join(words[words[0] == "sheen" :][: 1 + (words[1] == "verify")])
        if name == "serve":  # test_adapters.py serves
            assert main.parser().parse_args(words).run
            continue
        assert main.main([*words, *small.get(name, [])]) == 0, capsys.readouterr()
    assert "FAIL" not in capsys.readouterr().out
    for name in ("hello.wav", "morning.wav"):
        assert soundfile.info(name).duration > 0
    assert Path("my-voice", "loss.png").is_file()


@pytest.mark.parametrize("block", blocks(PAGE, "python"), ids=["engine", "agent"])
async def test_every_example_runs(voice_folder, monkeypatch, block):
    monkeypatch.chdir(voice_folder.parent)
    names = {}
    if "pipecat" in block:
        pytest.importorskip("pipecat")
        exec(block, names)
        await names["tts"].cleanup()
    else:
        exec(block, names)
        assert names["chunk"].is_last


def test_the_layout_that_the_page_shows_is_what_prepare_reads(recordings):
    shown = re.search(r"metadata\.csv +(\S+\|.*)\n +(\S+\|.*)\n", PAGE).groups()
    assert list(shown) == (recordings / "metadata.csv").read_text("utf-8").splitlines()
