"""What the tests of measurements share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import measure


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., tuple[int, Any]]:
    """measured("memory", "--runs", "1"): its exit code, and what it writes."""

    def run(*words: object) -> tuple[int, Any]:
        file = tmp_path / "result.json"
        code = measure.main([*map(str, words), "--json", str(file)])
        return code, json.loads(file.read_text())

    return run
