"""--normalize and --lexicon of the commands that speak."""

from pathlib import Path

import pytest

from qwen_megakernel import families
from qwen_megakernel.cli import main

SPEAK = ("--model", "demo-voice", "--backend", "cpu", "--seed", "1", "--max-frames", "6", "--quiet")


def codes(tmp_path: Path, text: str, *options: str) -> str:
    dump = tmp_path / "codes.txt"
    command = ("speak", text, *SPEAK, "-o", str(tmp_path / "out.wav"), "--dump-codes", str(dump))
    assert main.main([*command, *options]) == 0
    return dump.read_text()


def test_numbers_are_spoken_as_words_and_words_as_the_lexicon_spells_them(tmp_path: Path):
    lexicon = tmp_path / "names.tsv"
    lexicon.write_text("Qwen\tkwen\n")
    spoken = codes(tmp_path, "5 Qwen", "--lexicon", str(lexicon))
    assert spoken == codes(tmp_path, "five kwen")
    assert spoken != codes(tmp_path, "5 Qwen", "--normalize", "off")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a\tb\nword\n", "names.tsv, line 2: 'word' has no tab."),
        ("a\tb\nA\tc\n", "names.tsv, line 2: 'A' is respelled 'c', but line 1 respells 'a' 'b'."),
    ],
)
@pytest.mark.parametrize("command", ["speak", "serve"])
def test_a_faulty_lexicon_is_refused_with_its_line_before_a_model_is_loaded(
    command: str,
    rows: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(families, "load_engine", lambda *_, **__: pytest.fail("loaded"))
    lexicon = tmp_path / "names.tsv"
    lexicon.write_text(rows)
    text = ["Hello"] if command == "speak" else ["--port", "0"]
    words = [command, *text, "--model", "demo-voice", "--lexicon", str(lexicon)]
    assert main.main(words) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_normalize_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main.main(["speak", "Hello", "--normalize", "yes"])
    assert ended.value.code == 2
    assert "invalid choice: 'yes'" in capsys.readouterr().err
