"""benchmarks/measure.py: every name has its measurement and help; imports come late."""

import argparse
import re
from types import SimpleNamespace

import pytest
import torch
from commands import ROOT

from benchmarks import common, machine, measure
from qwen_megakernel.cli import options
from qwen_megakernel.native import cpu_library

PUBLIC = ("ttfc", "rtf", "tok_s", "e2e")


@pytest.mark.parametrize("name", measure.MEASUREMENTS)
def test_every_name_has_its_options_and_a_result_file(name):
    args = measure.parser([name]).parse_args([name, "--json", "result.json"])
    assert callable(args.measure) and args.name == name and args.json == "result.json"
    assert args.quiet in (False, True) and args.debug is False  # `running.run` reads this


def test_help_lists_every_name_with_a_sentence(capsys):
    with pytest.raises(SystemExit) as ended:
        measure.main(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    for name, (_, description) in measure.MEASUREMENTS.items():
        assert f" {name} {description}" in printed and description.endswith(".")


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
    assert re.search(r"--runs RUNS +number of runs whose figures count \(default:\s+\d", named)
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


def test_the_machine_is_looked_at_before_the_run_and_only_for_a_result_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    events = []
    monkeypatch.setattr(common, "_conditions", None)
    monkeypatch.setattr(machine, "Conditions", lambda idle: events.append(f"idle {idle}"))
    main = lambda args: events.append("run") or 0  # noqa: E731
    for file, code in ((None, 0), ("result.json", 0), ("no/result.json", 5)):
        args = argparse.Namespace(json=file, idle=7, debug=False, quiet=True)
        assert common.run(main, args) == code
    assert events == ["run", "idle 7", "run"]


def test_a_result_file_of_a_run_that_was_not_observed_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(common, "_conditions", None)
    with pytest.raises(AssertionError, match=r"common\.run"):
        common.write_json(str(tmp_path / "result.json"), {"machine": {}})


def test_the_threads_and_the_instruction_set_of_native_decoding_are_kept(monkeypatch):
    monkeypatch.setenv(cpu_library.FORCED, "plain")
    engine = SimpleNamespace(
        files=SimpleNamespace(name="m", is_synthetic=True),
        device=torch.device("cpu"),
        dtype_name="float32",
        num_threads=2,
    )
    engine.backend = "cpu"
    found = common.engine_header(engine)
    assert (found["instruction_set"], found["threads"]) == ("plain", 2)
    engine.backend = "torch"
    found = common.engine_header(engine)
    assert "instruction_set" not in found and found["threads"] == 2
    engine.device = torch.device("cuda")
    assert "threads" not in common.engine_header(engine)


def test_every_program_that_writes_a_result_file_looks_at_the_machine():
    folders = ("benchmarks", "tools", "examples", "tests")
    files = [*ROOT.glob("*.py"), *(path for f in folders for path in ROOT.glob(f"{f}/**/*.py"))]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    writers = {
        path: text
        for path, text in texts.items()
        if '\nif __name__ == "__main__"' in text and "common.write_json(" in text
    }
    assert len(writers) >= 7
    for path, text in writers.items():
        assert "common.run(" in text or "common.observe(" in text, path
