"""The handwritten text of documents is at most 120 columns wide."""

import re

import pytest
from commands import ROOT

from benchmarks import page_parts, pages

COLUMNS = 120
WRITTEN = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/samples/README.md"),
    *("csrc/README.md", "csrc/cpu/README.md", "examples/qwen3_text/README.md"),
    "tools/demo_voice/README.md",
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/*.md"))),
]
CODE = re.compile(r"`[^`]*`")


def by_hand(page: str, text: str) -> str:
    """Return a page without the parts that `benchmarks/pages.py` writes; line breaks stay."""
    if page in pages.PAGES and page_parts.BEGIN not in text:
        return ""
    generated = f"{page_parts.BEGIN}.*?{page_parts.END}"
    return re.sub(generated, lambda found: "\n" * found[0].count("\n"), text, flags=re.S)


def faults(text: str) -> list[str]:
    """Return the lines that are too wide or end inside inline code, with their numbers.

    Fenced code and tables are as wide as they need to be, and so is a line that cannot be broken
    because it is one word, such as a link, or one piece of inline code.
    """
    wrong = []
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*```", line):
            fenced = not fenced
        elif not fenced and not line.startswith("|"):
            breakable = " " in CODE.sub("", re.sub(r"^\s*([-*]|\d+\.) ", "", line).strip())
            if len(line) > COLUMNS and breakable:
                wrong.append(f"line {number} has {len(line)} columns")
            if CODE.sub("", line).count("`"):
                wrong.append(f"line {number} breaks inline code")
    return wrong


@pytest.mark.parametrize("page", WRITTEN)
def test_a_page_is_120_columns_wide(page):
    assert not faults(by_hand(page, (ROOT / page).read_text(encoding="utf-8")))


WIDE = "word " * 25
LINK = f"https://example.org/{'a' * 120}"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (WIDE, ["line 1 has 125 columns"]),
        (f"- {WIDE}", ["line 1 has 127 columns"]),
        (f"See {LINK}", ["line 1 has 144 columns"]),
        (f"```\n{WIDE}\n```\n{WIDE}", ["line 4 has 125 columns"]),
        ("Use `--model\nNAME` here.", ["line 1 breaks inline code", "line 2 breaks inline code"]),
        (f"| {WIDE} |", []),
        (f"- {LINK}", []),
        (f"`{WIDE}`", []),
    ],
)
def test_wide_lines_and_broken_code_are_found(text, wrong):
    assert faults(text) == wrong


def test_generated_parts_are_not_looked_at():
    text = f"One.\n{page_parts.BEGIN}\n{WIDE}\n{page_parts.END}\n{WIDE}"
    assert faults(by_hand("README.md", text)) == ["line 5 has 125 columns"]
    assert by_hand("docs/performance.md", WIDE) == ""
