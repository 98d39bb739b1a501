"""The codes of some twenty requests are those of `truths.json`."""

import json
from pathlib import Path

import pytest
import truths

EXPECTED = json.loads(truths.FILE.read_text())
CASES = [case for case in truths.cases() if case.is_exact]


@pytest.fixture(scope="module")
def sheen_voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untrained") / truths.SHEEN
    truths.write_sheen_voice(folder)
    return folder


def test_the_file_has_every_case():
    assert list(EXPECTED) == [case.name for case in CASES]


# Each of these cases compiles a kernel of its own.
COMPILED = ("emulation: voice design", "emulation: int8", "emulation: sheen")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.ci] if case.name in COMPILED else [])
        for case in CASES
    ],
)
def test_codes_are_those_of_the_file(case: truths.Case, sheen_voice: Path):
    made = [codes.tolist() for codes, _ in truths.speak(case, sheen_voice)]
    assert made == EXPECTED[case.name]
