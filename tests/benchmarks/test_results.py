"""Committed result files have the present schema, are complete, and name a commit that exists."""

import json
import re

import pytest

from benchmarks import common, page_parts

FACTS = ("created", "commit", "command", "machine")
OF_THE_MACHINE = ("processor", "instruction_sets", "cores", "online_cores", "platform", "python")
OF_THE_MACHINE += ("torch", "load_before_run", "stolen_share", "read_bandwidth_gb_s")
# A result file has one of these keys, with a value that is not empty.
FIGURES = ("runs", "rows", "summary", "levels", "sets", "operations", "signal_to_noise_db")
FIGURES += ("word_error_rate", "voices")


def faults(found: dict) -> list[str]:
    """Return what a result file lacks."""
    wrong = [name for name in FACTS if not found.get(name)]
    machine = found.get("machine", {})
    wrong += [f"machine: {name}" for name in OF_THE_MACHINE if machine.get(name) is None]
    if found.get("schema") != common.SCHEMA:
        wrong.append(f"schema {found.get('schema')}")
    if not re.fullmatch("[0-9a-f]{7,40}", found.get("commit", "")):
        wrong.append(f"commit {found.get('commit')}")
    if not any(found.get(name) for name in FIGURES):
        wrong.append("figures")
    return wrong


RESULTS = sorted(path.name for path in page_parts.RESULTS.glob("*.json"))


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_of_this_schema_complete_and_from_a_clean_tree(name):
    assert not faults(page_parts.load_result(name))


GOOD = "benchmark_cpu_demo-voice.json"


@pytest.mark.parametrize(
    ("fact", "value", "fault"),
    [
        ("commit", "1dd7a0c636d6-dirty", "commit 1dd7a0c636d6-dirty"),
        ("commit", "unknown", "commit unknown"),
        ("schema", 1, "schema 1"),
        ("command", "", "command"),
        ("machine", {}, "machine: cores"),
    ],
)
def test_what_a_file_lacks_is_found(fact, value, fault):
    found = page_parts.load_result(GOOD)
    assert not faults(found)
    assert fault in faults(json.loads(json.dumps(found)) | {fact: value})
    assert "figures" in faults({name: found[name] for name in (*FACTS, "schema")})
