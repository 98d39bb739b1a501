"""docs/ledger.md: no row is missing, and the checks that it names are there."""

import re

import pytest
from commands import ROOT

ROWS = {
    cells[0]: cells[1:]
    for line in (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| [A-EX]\d+ ", line)
    for cells in [[cell.strip() for cell in line.strip("|").split(" | ")]]
}
COUNTS = {"A": 20, "B": 8, "C": 15, "D": 8, "E": 24, "X": 9}
OPEN = {"A19"}
FOLDERS = ("", "tests/", "tests/decoders/kernel/", "benchmarks/", "tools/")


def files_of(check: str) -> list[str]:
    """The files that a row names, with `{a,b}` written out."""
    names = []
    for name in re.findall(r"`([\w/.*{},-]+\.(?:py|md|sh))`", check):
        choice = re.search(r"\{(.*)\}", name)
        names += [name.replace(choice[0], c) for c in choice[1].split(",")] if choice else [name]
    return names


def found(name: str) -> list:
    return [path for folder in FOLDERS for path in ROOT.glob(folder + name)]


def test_every_row_of_the_seeds_is_there():
    assert list(ROWS) == [f"{letter}{i}" for letter, n in COUNTS.items() for i in range(1, n + 1)]


@pytest.mark.parametrize("row", ROWS)
def test_the_checks_that_a_row_names_are_there(row):
    _, check, *_ = ROWS[row]
    names = files_of(check)
    assert bool(names) == (row not in OPEN), "a row without a check is open, and told at the top"
    assert not [name for name in names if not found(name)]
    tests = "".join(
        path.read_text(encoding="utf-8") for name in names for path in found(name)
    ) + "".join(path.name for name in names for path in found(name))
    for part in re.findall(r"\(`(\w+)`|, `(\w+)`\)", check):
        assert "".join(part) in tests
