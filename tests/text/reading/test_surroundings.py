"""What stands around an expression changes neither its words nor the marks of the sentence."""

import re
import unicodedata
from itertools import count
from pathlib import Path

import pytest

from qwen_megakernel.text.reading.reader import Reading

FILES = sorted((Path(__file__).parent / "expressions").glob("*.tsv"))
READING = Reading()
SEE = dict(
    english="see", german="sieh", french="vois", italian="vedi", spanish="ve", portuguese="veja",
    russian="вот", chinese="看", japanese="見て", korean="봐",
)  # fmt: skip
AROUND = [
    *(("", mark) for mark in (".", ",", "!", "?", ";", ":", "...", "…", "?!", "\n", ".)", '."')),
    *(("(", ")"), ("[", "]"), ('"', '"'), ("“", "”"), ("‘", "’"), ("„", "“"), ("«", "»")),
    *(("**", "**"), ("(“", ".”)"), ("«", "»,"), ("_", "_"), ("'", "'.")),
]
_MARKDOWN = re.compile(r"\*\*|[\[\]_]")
HYPHENS, SPACES = "‐‑﹣－", "\u00a0\u202f\u2009"


def words(language: str, text: str, step: int = 0) -> str:
    reader = READING.reader("on", language, None)
    assert reader
    if not step:
        return reader.whole(text)
    return "".join(reader.feed(text[at : at + step]) for at in range(0, len(text), step)) + (
        reader.end()
    )


def expressions(path: Path) -> list[str]:
    """Return the expressions of a table that end with no mark of a sentence."""
    rows = (line.split("\t")[0] for line in path.read_text("utf-8").splitlines())
    return [row for row in rows if row[-1] not in ".!?,:;)" and not (" " in row and len(row) > 25)]


def unmarked(text: str) -> str:
    """Return a text without the marks of Markdown, and with plain characters for marks it keeps."""
    plain = unicodedata.normalize("NFKC", _MARKDOWN.sub("", text)).replace("’", "'")
    return " ".join(re.sub("[‐‑]", "-", plain).split())


def differences(language: str, written: str, around: list[tuple[str, str]]) -> list[tuple]:
    """Return the surroundings that change the words of an expression."""
    see = SEE[language]
    plain = words(language, f"{see} {written} ok").removesuffix(" ok").removeprefix(f"{see} ")
    found = []
    for before, after in around:
        if '"' in written and after == '."':
            continue  # quotation marks that do not pair
        text = f"{see} {before}{written}{after}"
        expected = unmarked(f"{see} {before}{plain}{after}")
        for said in (words(language, text), words(language, text, step=1)):
            if unmarked(said) != expected:
                found.append((text, said, expected))
    return found


def forms(language: str, written: str) -> list[str]:
    """Return an expression with other characters for its hyphens, spaces, letters and digits."""
    found = [unicodedata.normalize("NFD", written), written.replace("'", "’")]
    if "://" not in written and "@" not in written:
        found += [written.replace("-", hyphen) for hyphen in HYPHENS]
    found += [written.replace(" ", space) for space in SPACES]
    if language in ("chinese", "japanese", "korean"):
        wide = {ord(char): chr(ord(char) + 0xFEE0) for char in "0123456789:%$-+/"}
        found.append(written.translate(wide))
    return [form for form in found if form != written]


def check(path: Path, share: int) -> None:
    """Try every `share`th pair of an expression and its surroundings, or its form."""
    language, number, wrong = path.stem, count(), list[tuple]()
    for written in expressions(path):
        around = [each for each in AROUND if next(number) % share == 0]
        wrong += differences(language, written, around)
        for form in forms(language, written):
            if next(number) % share:
                continue
            said, plain = words(language, form), words(language, written)
            if unmarked(said) != unmarked(plain):
                wrong.append((form, said, plain))
    assert not wrong


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_marks_around_an_expression_and_forms_of_its_characters_change_no_word(path: Path):
    check(path, share=5)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_all_marks_around_all_expressions_change_no_word(path: Path):
    check(path, share=1)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("５ｋｇ", [("five kilograms", "５ｋｇ")]),
        (
            "le cafe\u0301 de\u00a0Jo’s",
            [("le cafe\u0301 de\u00a0Jo’s", "le cafe\u0301 de\u00a0Jo’s")],
        ),
        ("a 10‑km race", [("a ", "a "), ("ten-kilometer", "10‑km"), (" race", " race")]),
        ("2½ cups", [("two and one half", "2½"), (" cups", " cups")]),
        (
            "the ㎏ is Ⅷ x",
            [("the ", "the "), ("kg", "㎏"), (" is ", " is "), ("VIII", "Ⅷ"), (" x", " x")],
        ),
        ("\u202a555-0199\u202c", [("five five five, zero one nine nine", "555-0199")]),
    ],
)
def test_pieces_stand_for_the_text_as_it_is_written(text: str, pieces: list[tuple[str, str]]):
    for step in (len(text), 1):
        reader = READING.reader("on", "english", None)
        for at in range(0, len(text), step):
            reader.feed(text[at : at + step])
        reader.end()
        found = [(piece.text, text[piece.start : piece.end]) for piece in reader.spoken.pieces]
        assert found == pieces
