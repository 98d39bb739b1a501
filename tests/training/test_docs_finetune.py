"""docs/finetune.md is followed to the letter, with the demonstration voice that it begins with."""

from pathlib import Path

import pytest
import soundfile
from commands import ROOT, package_commands

from qwen_megakernel.cli import main
from qwen_megakernel.training import speech_data
from qwen_megakernel.training.job import PLOT

PAGE = (ROOT / "docs" / "finetune.md").read_text(encoding="utf-8")


@pytest.mark.ci
def test_every_command_runs_without_a_download(tmp_path, monkeypatch, capsys):
    pytest.importorskip("peft", reason="pip install -e '.[train]'")
    monkeypatch.chdir(tmp_path)
    for words in package_commands(PAGE, monkeypatch):
        if words[0] == "serve":  # tests/server serves
            assert main.parser().parse_args(words).run
            continue
        if words[:2] in (["train", "run"], ["train", "verify"]):
            words += ["--device", "cpu"]
        if "anna-model" in words and words[0] == "speak":
            words += ["--max-frames", "4", "--device", "cpu"]
        assert main.main(words) == 0, capsys.readouterr()
    assert len(speech_data.read(Path("data.jsonl"))) == 10
    said = capsys.readouterr().out
    assert "10 recordings added" in said and "my-voice: 40 steps" in said
    assert "after step 40:" in said and "all passed" in said
    assert Path("my-voice", PLOT).stat().st_size
    assert soundfile.info("my-voice/sample-000040.wav").duration > 0
    assert soundfile.info("morning.wav").duration > 0
