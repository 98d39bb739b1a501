"""benchmarks/measure.py: every name measures, says what, and is as ready as the engine it loads."""

import argparse
import re

import pytest
from commands import ROOT

from benchmarks import common, measure
from qwen_megakernel.cli import options

PUBLIC = ("ttfc", "rtf", "tok_s", "e2e")


@pytest.mark.parametrize("name", measure.MEASUREMENTS)
def test_every_name_has_its_options_and_a_result_file(name):
    args = measure.parser([name]).parse_args([name, "--json", "result.json"])
    assert callable(args.measure) and args.name == name and args.json == "result.json"
    assert args.quiet in (False, True) and args.debug is False  # which `options.run` asks for


def test_help_lists_every_name_with_a_sentence(capsys):
    with pytest.raises(SystemExit) as ended:
        measure.main(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    for name, (_, description) in measure.MEASUREMENTS.items():
        assert f" {name} {description}" in told and description.endswith(".")


@pytest.mark.parametrize("words", [[], ["nothing"]])
def test_a_name_that_is_missing_or_unknown_is_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        measure.main(words)
    assert ended.value.code == 2 and "NAME" in capsys.readouterr().err


def test_pages_and_tools_name_only_what_there_is():
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("tools/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    named = re.findall(r"`(?:python )?(?:benchmarks/)?measure\.py ([a-z][\w-]*)", text)
    called = re.findall(r'\b(?:_scripts\(|measure\(\s*context, )"([\w-]+)"', text)
    assert len(named) > 5 and len(called) > 5
    assert {*named, *called} <= set(measure.MEASUREMENTS)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_script_of_its_own_takes_what_its_name_takes(run_here, name):
    alone = run_here(f"benchmarks/measure_{name}.py", "--help").stdout
    named = run_here("benchmarks/measure.py", name.replace("_", "-"), "--help").stdout
    assert f"usage: measure_{name}.py [-h]" in alone and "NAME" not in alone
    assert alone[alone.index("options:") :] == named[named.index("options:") :]


def test_benchmarks_speak_with_an_engine_that_is_warm(monkeypatch):
    class Loaded(Exception):
        pass

    def load_engine(args, **engine_options):
        assert engine_options.get("warmup", True)
        raise Loaded

    monkeypatch.setattr(options, "engine_from_args", load_engine)
    with pytest.raises(Loaded):
        common.measure(argparse.Namespace())
