"""`mark new-key`, --mark-key and `detect`."""

import json
from pathlib import Path

import pytest
import soundfile

from qwen_megakernel import families
from qwen_megakernel.cli import main

TEXT = "Your table for two is ready, and we will meet you at the hotel on Friday evening."
SPEAK = ("speak", TEXT, "--model", "demo-voice", "--backend", "torch", "--seed", "1", "--quiet")


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = str(tmp_path / "mark.key")
    assert main.main(["mark", "new-key", path, "--operator", "515"]) == 0
    return path


def test_speech_names_its_operator_after_opus_and_other_speech_has_no_mark(
    tmp_path: Path, key: str, capsys
):
    output, opus = str(tmp_path / "out.wav"), str(tmp_path / "out.ogg")
    assert main.main([*SPEAK, "-o", output, "--mark-key", key]) == 0
    samples, rate = soundfile.read(output)
    soundfile.write(opus, samples, rate, format="OGG", subtype="OPUS", compression_level=0.9)
    assert main.main(["detect", opus, "--mark-key", key]) == 0
    assert "marked as synthetic, operator 515, chance of a false alarm" in capsys.readouterr().out
    assert main.main(["detect", opus, "--mark-key", key, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["operator"], found["speed"], found["start_s"]) == (515, 1, 0)

    assert main.main([*SPEAK, "-o", output]) == 0
    for more in ((), ("--json",)):
        assert main.main(["detect", output, "--mark-key", key, "--own-speed", *more]) == 1
        assert capsys.readouterr().out.strip() in ("no mark found", "[]")


@pytest.mark.parametrize("command", [SPEAK, ("serve", "--port", "0"), ("detect", "none.wav")])
def test_a_bad_key_is_refused_before_a_model_is_loaded(
    tmp_path: Path, key: str, monkeypatch, capsys, command: tuple[str, ...]
):
    monkeypatch.setattr(families, "load_engine", lambda *_, **__: pytest.fail("loaded"))
    Path(key).chmod(0o640)
    assert main.main([*command, "--mark-key", key]) == 2
    assert "has mode 640; other users may read it" in capsys.readouterr().err
