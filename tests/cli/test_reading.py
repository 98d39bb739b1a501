"""--normalize and --lexicon of the commands that speak."""

from pathlib import Path

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
