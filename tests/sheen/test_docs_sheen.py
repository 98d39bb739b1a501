"""docs/sheen.md is followed to the letter, with the small random models that it begins with."""

from pathlib import Path

import pytest
import soundfile
from commands import ROOT, blocks, package_commands

from qwen_megakernel.cli import main

PAGE = (ROOT / "docs" / "sheen.md").read_text(encoding="utf-8")


# What a command gets besides what the page says, so that it takes less time.
SHORTER = {
    "verify training": ["--max-steps", "4"],
    "train": ["--max-steps", "2"],
    "infer": ["--max-frames", "4"],
    "speak": ["--max-frames", "4"],
}


@pytest.mark.ci
def test_every_command_runs_without_a_download(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    num_commands, printed = 0, ""
    for words in package_commands(PAGE, monkeypatch):
        num_commands += 1
        name = " ".join(words[words[0] == "sheen" :][: 1 + (words[1] == "verify")])
        if name == "serve":  # test_adapters.py serves
            assert main.parser().parse_args(words).run
            continue
        cpu = ["--device", "cpu"] if "--model" in words else []
        assert main.main([*words, *SHORTER.get(name, []), *cpu]) == 0, capsys.readouterr()
        said = capsys.readouterr()
        printed += said.out
        if name != "verify dataset" and "demo-voice" not in words:  # these load at once
            assert said.err.startswith("loading ")  # before what takes seconds
        if name == "verify training":
            assert "4/4" in said.err  # two of the steps are taken again, to check resuming
    assert num_commands == 12
    assert "all passed" in printed and "FAIL" not in printed
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
        assert len(names["chunk"].samples)
