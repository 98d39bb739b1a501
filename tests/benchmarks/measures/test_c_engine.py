"""benchmarks/measures/c_engine.py: the engines speak alternately, and each reports its own
figures."""

import json

import pytest

from benchmarks import measure
from benchmarks.measures import c_engine
from qwen_megakernel.errors import QwenTTSError

SAYS = """Model loaded in 2443 ms
  Generated 4 frames (0.3s audio)
Audio: 0.3s generated in 0.6s (RTF 1.75)
  TTFA: 415 ms (first audio chunk, 10-frame chunk)
"""


@pytest.fixture
def program(tmp_path):
    """Return program(text), which makes a stand-in that records its options and prints `text`."""

    def build(text):
        path = tmp_path / "qwen_tts"
        path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncat <<END\n{text}END\n')
        path.chmod(0o755)
        return path

    return build


def test_both_engines_have_a_row_for_each_form_of_weights(cache_folder, program, tmp_path):
    file = tmp_path / "result.json"
    words = ["--program", str(program(SAYS)), "--model", "tiny-random", "--frames", "4"]
    assert measure.main(["c-engine", *words, "--runs", "2", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    rows = {(row["engine"], row["weights"]): row for row in found["rows"]}
    assert list(rows) == [
        (engine, form) for form in ("stored", "int8") for engine in ("this project", "C engine")
    ]
    for (engine, _), row in rows.items():
        assert row["frames"]["p50"] == 4 and row["rtf"]["p50"] > 0
        if engine == "C engine":
            assert row["rtf"]["p50"] == 1.75 and row["first_chunk_ms"]["p50"] == 415
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 2 * 3 and ["--int8" in call for call in calls] == 3 * [False] + 3 * [True]


def test_a_report_without_figures_is_an_error(program, tmp_path):
    with pytest.raises(QwenTTSError, match="Killed by hunger"):
        c_engine.speak(program("Killed by hunger\n"), tmp_path, "stored", 4, 1)


def test_a_program_that_is_not_there_is_refused_before_a_model_is_loaded(tmp_path):
    words = ["c-engine", "--program", str(tmp_path / "nothing"), "--model", "random-0.6b"]
    assert measure.main(words) == 2
