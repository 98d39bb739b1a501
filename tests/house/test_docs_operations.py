"""docs/operations.md: the parsers accept its commands, and its names exist."""

import re
import shlex

import pytest
from commands import EXTRAS, ROOT, lines

from benchmarks.load_test import __main__ as load_test
from qwen_megakernel.cli import main
from qwen_megakernel.server import app as server_app

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
COMMANDS = lines(PAGE)


def test_extras_and_files_exist() -> None:
    for extra in re.findall(r'qwen_megakernel\[(\w+)\]"', PAGE):
        assert extra in EXTRAS
    files = re.findall(r"`((?:deploy|benchmarks)/[\w./-]+)`", PAGE)
    files += [word for line in COMMANDS for word in shlex.split(line) if word.startswith("deploy/")]
    assert files and all((ROOT / name).exists() for name in files)


def test_every_option_that_is_named_exists() -> None:
    serve = main.parser()._subparsers._group_actions[0].choices["serve"]
    known = {name for action in serve._actions for name in action.option_strings}
    known |= {n for action in load_test.parser()._actions for n in action.option_strings}
    known |= {"--build-arg", "--stop-timeout"}  # Docker's own
    assert set(re.findall(r"`(--[\w-]+)", PAGE)) <= known


def test_alarms_are_promql_about_metrics_that_exist() -> None:
    promql = pytest.importorskip("promql_parser")
    alarms = re.findall(r"^\| `([^`]*tts_[^`]*)` \|", PAGE, re.MULTILINE)
    assert len(alarms) == 4
    app = server_app.create_app(lambda: None)
    families = {family.name for family in app.state.service.metrics.registry.collect()}
    for alarm in alarms:
        alarm = alarm.replace(r"\|", "|")  # how a table writes it
        promql.parse(alarm)
        for name in re.findall(r"\btts_\w+", alarm):
            assert re.sub(r"_(total|bucket)$", "", name) in families
