"""csrc/README.md: the path through a frame exists, and has the length that the page states."""

import re

from commands import ROOT

CSRC = ROOT / "csrc"
PAGES, PAGE_LINES = 12, 60  # at most; lines of a printed page
DEFINITION = r"^ *(?:(?:__device__ .*?|class )\b{name}\b).*$"


def lines_of(file: str, name: str) -> int:
    """Return the lines of the longest definition of `name`, with the comment in front of it."""
    text = (CSRC / file).read_text()
    found = []
    for match in re.finditer(DEFINITION.format(name=name), text, re.MULTILINE):
        body, end = text.find("{", match.start()), text.find(";", match.start())
        if body < 0 or -1 < end < body:  # a call or a declaration
            continue
        depth, at = 1, body + 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        comment = re.search(r"(?:^ *//.*\n)*\Z", text[: match.start()], re.MULTILINE)
        found.append(comment[0].count("\n") + text.count("\n", match.start(), at) + 1)
    assert found, f"{file} has no {name}"
    return max(found)


def test_a_frame_reads_in_one_sitting():
    section = (CSRC / "README.md").read_text().split("## A frame in one sitting")[1].split("##")[0]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", section, re.MULTILINE)
    assert [file for file, _ in rows][::5] == ["frame.cuh", "barrier.cuh"]
    places = [(file, name) for file, names in rows for name in re.findall(r"`(\w+)`", names)]
    lines = sum(lines_of(*place) for place in places)
    assert len(places) == 11 and lines <= PAGES * PAGE_LINES
    assert "Eleven pages" in section and round(lines / PAGE_LINES) == 11
