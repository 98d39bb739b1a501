"""measure.py start measures new processes, each from its start to its end or its first line."""

import pytest

from benchmarks import cpu_page
from benchmarks.measures import start
from qwen_megakernel.errors import QwenTTSError

CASES = ("import_torch", "import", "help", "first_sound", "speak")


@pytest.mark.ci
def test_every_case_has_its_seconds_and_the_page_its_row(measured, monkeypatch):
    code, found = measured("start", "--runs", "1")
    assert code == 0
    seconds = {name: found["summary"][f"{name}_s"]["p50"] for name in CASES}
    assert 0 < seconds.pop("import") < min(seconds.values())
    monkeypatch.setattr(cpu_page, "load_results", lambda pattern: [found | {"file": pattern}])
    assert any("| demo-voice" in line for line in cpu_page.start_table())


def test_a_time_ends_with_the_first_line_or_with_the_process():
    slow_to_end = ["-c", "import time; print(1, flush=True); time.sleep(.5)"]
    first, whole = (start.run(slow_to_end, until_line=each) for each in (True, False))
    assert whole >= 0.5 and first < whole


def test_a_process_that_fails_is_no_time():
    with pytest.raises(QwenTTSError, match="ended with 3: no"):
        start.run(["-c", "import sys; sys.stderr.write('no'); sys.exit(3)"], until_line=False)
