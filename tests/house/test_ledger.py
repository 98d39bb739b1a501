"""docs/ledger.md: no row is missing, its checks exist, and CI has run them."""

import ast
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from commands import ROOT

ROWS = {
    cells[0]: cells[1:]
    for line in (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| [A-EX]\d+ ", line)
    for cells in [[cell.strip() for cell in line.strip("|").split(" | ")]]
}
COUNTS = {"A": 20, "B": 8, "C": 15, "D": 10, "E": 24, "X": 14}
OPEN = {"A19"}
FOLDERS = ("", "tests/", "tests/decoders/kernel/", "benchmarks/", "tools/")


def files_of(check: str) -> list[str]:
    """Return the files that a row names, with `{a,b}` written out."""
    names = []
    for name in re.findall(r"`([\w/.*{},-]+\.(?:py|md|sh))`", check):
        choice = re.search(r"\{(.*)\}", name)
        names += [name.replace(choice[0], c) for c in choice[1].split(",")] if choice else [name]
    return names


def found(name: str) -> list[Path]:
    return [path for folder in FOLDERS for path in ROOT.glob(folder + name)]


def named_tests(check: str) -> list[str]:
    paths = [path.relative_to(ROOT).as_posix() for name in files_of(check) for path in found(name)]
    return [path for path in paths if re.match(r"tests/.*test_\w+\.py$", path)]


def parts_of(check: str) -> list[str]:
    """Return the tests that a row names by a part of their name."""
    return re.findall(r"`([a-z]+\w*_\w+)`", check)


def missing(check: str, tests: set[tuple[str, str]]) -> list[str]:
    """Return files and name parts of a row to which no test of `(file, name)` belongs."""
    files = named_tests(check)
    names = [name for file, name in tests if file in files]
    found_files = {file for file, _ in tests}
    return [file for file in files if file not in found_files] + [
        part for part in parts_of(check) if not any(part in name for name in names)
    ]


def finished(report: str) -> set[tuple[str, str]]:
    """Return (file, name) of the tests of a JUnit report that were not skipped."""
    return {
        (case.get("classname").replace(".", "/") + ".py", case.get("name"))
        for case in ElementTree.fromstring(report).iter("testcase")
        if case.find("skipped") is None
    }


def never_run(rows: dict[str, list[str]], tests: set[tuple[str, str]]) -> dict[str, str]:
    """Return rows none of whose tests ran, or none of a part that they name, with the reason; rows
    that wait for a GPU or for the released weights are excepted."""
    wrong = {}
    for row, (_, check, waits) in rows.items():
        if row in OPEN or re.search(r"\b[GW]\b", waits):
            continue
        files = set(named_tests(check))
        names = [name for file, name in tests if file in files]
        lacking = [part for part in parts_of(check) if not any(part in name for name in names)]
        if lacking or not names:
            wrong[row] = ", ".join(lacking or sorted(files))
    return wrong


def test_every_row_of_the_seeds_is_there():
    assert list(ROWS) == [f"{letter}{i}" for letter, n in COUNTS.items() for i in range(1, n + 1)]


@pytest.mark.parametrize("row", ROWS)
def test_the_checks_that_a_row_names_are_there(row):
    _, check, *_ = ROWS[row]
    names = files_of(check)
    assert bool(named_tests(check)) == (row not in OPEN), "a row without a test is open, as it says"
    assert not [name for name in names if not found(name)]
    tests = "".join(
        path.read_text(encoding="utf-8") for name in names for path in found(name)
    ) + "".join(path.name for name in names for path in found(name))
    assert not [part for part in parts_of(check) if part not in tests]


def test_the_files_that_the_rows_name_have_these_tests():
    files = sorted({file for _, check, *_ in ROWS.values() for file in named_tests(check)})
    tests = {
        (file, node.name)
        for file in files
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_"
    }
    lacking = {row: missing(check, tests) for row, (_, check, _) in ROWS.items()}
    assert not {row: names for row, names in lacking.items() if names}


def test_every_row_was_tested_in_the_run_of_the_reports(request):
    """.ci/run runs this after all other tests."""
    reports = request.config.getoption("--report")
    if not reports:
        pytest.skip("no --report of a run: it is .ci/run that has them")
    tests = set().union(*(finished(Path(report).read_text("utf-8")) for report in reports))
    assert not never_run(ROWS, tests)


def test_every_part_that_a_row_names_is_looked_for():
    assert parts_of(ROWS["A10"][1])[-1] == "the_seeds_curl"  # after a semicolon
    check = (
        "`tests/a_b.py` (`one_two`, `three_four`; `five_six`: slow, `slow`), `a/b_{c,d}.py`, `x.py`"
    )
    assert parts_of(check) == ["one_two", "three_four", "five_six"]


def test_a_row_whose_tests_were_all_skipped_is_found():
    file, other = "tests/house/test_ledger.py", "tests/house/test_readme.py"
    report = """<testsuites><testsuite>
      <testcase classname="tests.house.test_ledger" name="test_one[a]"><skipped/></testcase>
      <testcase classname="tests.house.test_ledger" name="test_two"/>
      <testcase classname="tests.house.test_readme" name="test_three"><skipped/></testcase>
    </testsuite></testsuites>"""
    rows = {
        "A1": ["", f"`{file}`", ""],
        "A2": ["", f"`{file}` (`test_two`)", ""],
        "A3": ["", f"`{file}` (`test_one`)", "by ear"],
        "A4": ["", f"`{other}`", ""],
        "A5": ["", f"`{other}`", "codec on a GPU: G"],
        "A6": ["", f"`{other}`, `{file}`", ""],
        "A7": ["", "`docs/pipecat.md`", ""],
    }
    assert set(never_run(rows, finished(report))) == {"A3", "A4", "A7"}
    assert missing(rows["A2"][1], {(file, "test_three")}) == ["test_two"]
    assert missing(rows["A6"][1], {(file, "test_three")}) == [other]
