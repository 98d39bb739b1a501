"""docs/speech-control.md: its Python code runs, and its claims hold."""

import re
import shlex
from pathlib import Path

import pytest
import soundfile
from commands import ROOT, blocks, run

from qwen_megakernel.server.schemas import MAX_LEXICON_WORDS
from qwen_megakernel.text.markup import ssml, values
from qwen_megakernel.text.reading import lexicon
from qwen_megakernel.text.reading.languages import known_languages
from qwen_megakernel.text.reading.reader import Reading
from qwen_megakernel.text.reading.segments import MAX_OPEN_CHARS

PAGE = (ROOT / "docs" / "speech-control.md").read_text("utf-8")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (rows,) = blocks(PAGE, "text")
    (tmp_path / "names.tsv").write_text(rows, "utf-8")
    examples = blocks(PAGE, "python")
    assert len(examples) == 8 and all("assert" in example for example in examples)
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
    assert f"{MAX_OPEN_CHARS} characters have followed" in page
    *others, last = (name.capitalize() for name in known_languages())
    assert f"{', '.join(others)} and {last}" in page


def test_elements_values_and_limits_of_markup_are_those_of_the_code():
    page = " ".join(PAGE.split())
    for name, attributes in ssml._ATTRIBUTES.items():
        assert f"<{name}" in page
        assert all(each in page for each in attributes)
    for words in (values.STRENGTHS, values.RATES, values.VOLUMES, values.SAY_AS, values.DATE_FORMS):
        assert all(
            f"`{word}`" in page or f'"{word}"' in page for word in words if word != "default"
        )
    assert (
        f"at most {values.MAX_PAUSE_S:g} s, and all pauses of a request {values.MAX_PAUSES_S:g} s"
        in page
    )
    assert f"nested {ssml.MAX_DEPTH} deep" in page
    assert f"at most {ssml.MAX_TAG_CHARS} characters" in page
    assert f"`<phoneme>` {ssml.MAX_READ_AS_CHARS}" in page
    for strength, seconds in values.STRENGTHS.items():
        assert f"`{strength}` {seconds:g}" in page
    for rate, factor in values.RATES.items():
        assert rate == "default" or f"`{rate}` {factor:g}" in page


def test_the_command_speaks_a_pause(tmp_path: Path):
    (command,) = (block for block in blocks(PAGE, "bash") if "--text-format" in block)
    done = run(*shlex.split(command)[1:-1], tmp_path / "out.wav")
    assert done.returncode == 0, done.stderr
    samples, rate = soundfile.read(tmp_path / "out.wav", dtype="int16")
    assert b"\0" * (2 * rate) in samples.tobytes()


def test_the_kinds_of_expressions_are_read_as_the_table_says():
    rows = re.findall(r"^\| [^|]+ \| ([A-Z][a-z]+) \| `([^`|]+)` \| ([^`|]+) \|$", PAGE, re.M)
    assert {language.lower() for language, _, _ in rows} == set(known_languages())
    for language, written, spoken in rows:
        reader = Reading().reader("on", language.lower(), None)
        assert reader and reader.whole(written) == spoken
