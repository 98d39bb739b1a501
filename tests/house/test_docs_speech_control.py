"""docs/speech-control.md: its Python code runs, and its claims hold."""

import re
from pathlib import Path

import pytest

from qwen_megakernel.server.schemas import MAX_LEXICON_WORDS
from qwen_megakernel.text.reading import lexicon
from qwen_megakernel.text.reading.languages import known_languages
from qwen_megakernel.text.reading.segments import MAX_OPEN_CHARS

PAGE = (Path(__file__).parents[2] / "docs" / "speech-control.md").read_text("utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (rows,) = blocks("text")
    (tmp_path / "names.tsv").write_text(rows, "utf-8")
    examples = blocks("python")
    assert len(examples) == 6 and all("assert" in example for example in examples)
    names: dict[str, object] = {}
    try:
        for example in examples:
            exec(compile(example, "speech-control.md", "exec"), names)
    finally:
        names["tts"].close()


def test_limits_and_languages_are_those_of_the_code():
    page = " ".join(PAGE.split())
    for number in (lexicon.MAX_ENTRIES, lexicon.MAX_WORD_CHARS, lexicon.MAX_RESPELLING_CHARS):
        assert f"{number:,}".replace(",", " ") in page
    assert f"{lexicon.MAX_FILE_BYTES // 2**20} MiB" in page
    assert f"over HTTP {MAX_LEXICON_WORDS} entries" in page
    assert f"{MAX_OPEN_CHARS} characters long" in page
    assert ", ".join(name.capitalize() for name in known_languages()) in page
