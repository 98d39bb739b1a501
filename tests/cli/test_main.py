"""The command line as a whole: every option has a help text, and typing errors are explained."""

import argparse
import errno
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module

import pytest
import torch
from commands import start
from programs import ROOT

from qwen_megakernel import families
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.cli import main, parsing
from qwen_megakernel.errors import UsageError


def silent(parser: argparse.ArgumentParser, path: str = "") -> Iterator[str]:
    """Options and commands of a parser without a help text."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            shown = {choice.dest for choice in action._choices_actions}
            for name, command in action.choices.items():
                yield from () if name in shown else [f"{path} {name}"]
                yield from silent(command, f"{path} {name}")
        elif not action.help:
            yield f"{path} {action.option_strings or action.dest}"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["spek", "Hi."], "); did you mean speak?\n"),
        (["speak", "Hi.", "--dtype", "floot32"], "); did you mean float32?\n"),
        (["speak", "Hi.", "--dtype", "8"], "predictor=float32')\n"),
    ],
)
def test_a_mistyped_command_or_value_gets_the_nearest_one(capsys, words, hint):
    with pytest.raises(SystemExit, match="2"):
        main.main(words)
    assert hint in capsys.readouterr().err


def test_help_says_something_about_everything():
    assert not list(silent(main.parser()))


def test_every_command_can_be_quiet_and_groups_have_more_than_one_option():
    for command in parsing.commands_of(main.parser()):
        assert {"--quiet", "--debug"} < command._option_string_actions.keys()
        titles = [each.title for each in command._action_groups if len(each._group_actions) == 1]
        assert set(titles) <= {"positional arguments", "voice"}, command.prog


def test_a_trained_voice_speaks_what_a_file_contains(tmp_path):
    (tmp_path / "a.txt").write_text("Grüße.", encoding="utf-8")
    words = ["sheen", "infer", "--file", str(tmp_path / "a.txt"), "--model", "my-voice"]
    assert main.parser().parse_args(words).text == "Grüße."


@pytest.mark.parametrize("command", ["speak", "serve"])
def test_help_is_in_groups_the_machine_last_and_ends_with_an_example(command, capsys):
    with pytest.raises(SystemExit):
        main.main([command, "--help"])
    shown = capsys.readouterr().out
    titles = [line for line in shown.splitlines() if re.fullmatch(r"[a-z][a-z ]+:", line)]
    assert titles[-1] == "options:" and "\n\nExample: qwen-megakernel " in shown[-200:]
    assert shown.index("--voice") < shown.index("model and machine:") and len(titles) >= 6
    if command == "speak":
        assert titles[:-1] == [
            *("text and output:", "voice:", "reading:", "sampling:", "sound:"),
            *("marks of synthetic speech:", "model and machine:"),
        ]


def test_the_help_of_voices_create_begins_with_recording_output_and_transcript(capsys):
    with pytest.raises(SystemExit):
        main.main(["voices", "create", "--help"])
    shown = capsys.readouterr().out.partition("recording and voice:\n")[2]
    first = shown.partition("\n\n")[0]
    names = re.findall(r"^  ([^\s,]+)", first, re.MULTILINE)  # Python 3.13 writes "-o, --output"
    assert names == ["DIR|FILE", "-o", "--ref-text"]
    assert "--force" in shown and "options:" in shown


def test_the_help_of_serve_shows_its_defaults(capsys):
    with pytest.raises(SystemExit):
        main.main(["serve", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for default in ("8090", "default: 1)", "8)", "4096", "wav)", "600)", "120)", "1000)"):
        assert default in shown


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("speak", "Hello.", "--outptu", "a.wav"), "--outptu a.wav; did you mean --output?"),
        (("voices", "list", "--jsno"), "--jsno; did you mean --json?"),
        (("speak", "Hello.", "--temprature=1"), "did you mean --temperature?"),
        (("doctor", "now"), "unrecognized arguments: now"),
        (("speak", "Hello.", "--seed", "abc"), "argument --seed: 'abc' is not a whole number"),
        (("speak", "Hello.", "--top-p", "a"), "argument --top-p: 'a' is not a number"),
        (("speak", "Hello.", "--speed", "fast"), "argument --speed: 'fast' is not a number"),
        (
            ("speak", "Hello.", "--normalize", "yes"),
            "argument --normalize: invalid choice: 'yes' (choose from 'auto', 'on', 'off')",
        ),
        (("speak", "Hello.", "--temperature", "a"), "argument --temperature: 'a' is not a number"),
        (("speak", "Hello", "there"), "unrecognized arguments: there; put the text in quotes"),
        (("speak", "Hello.", "-m", "a"), "-m a; did you mean --mark or --model or --mark-key?"),
        (("speak", "--txt", "Hello."), "--txt; did you mean --text?"),
        (("speak", "Hello.", "--format", "mp3"), "names the format: -o out.mp3"),
        (("speak",), "--file FILE a file; write --text=TEXT if the text begins with -"),
        (("speak", "Hello.", "--text", "Hi."), "the text is given twice"),
        (("speak", "--file", "/no/such"), "-f/--file: /no/such: No such file or directory"),
        (("serve", "--ssl"), "--ssl; a reverse proxy does TLS; docs/operations.md"),
        (("serve", "--workers", "2"), "--slots sets how many requests are spoken at a time"),
        (("serve", "--reload"), "--reload; start the command again instead"),
        (("serve", "--port", "a"), "argument --port: 'a' is not a whole number"),
        (("serve", "--slots", "a"), "argument --slots: 'a' is not a whole number"),
    ],
)
def test_what_the_command_line_refuses_takes_two_lines(words, shown, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(list(words))
    error = capsys.readouterr().err
    first, second = error.splitlines()
    assert ended.value.code == 2 and first.endswith(shown)
    assert first.startswith(f"qwen-megakernel {words[0]}")
    assert second.startswith(f"qwen-megakernel {words[0]}") and "--help explains" in second


def test_threads_are_set_before_a_model_is_loaded(monkeypatch, capsys):
    done = []
    monkeypatch.setattr(torch, "set_num_threads", lambda count: done.append(count))

    def load_engine(*args, num_threads, **options):
        done.append(f"loaded for {num_threads}")
        raise UsageError("planted")

    monkeypatch.setattr(families, "load_engine", load_engine)
    command = ["speak", "Hello.", "--model", "demo-voice", "--stdout"]
    assert main.main(command) == main.main([*command, "--threads", "1"]) == 2
    # Without the option the engine chooses; other threads keep PyTorch's limit.
    assert done == [torch.get_num_threads(), "loaded for None", 1, "loaded for 1"]
    with pytest.raises(SystemExit):
        main.main(["serve", "--threads", "0"])
    assert "0 is less than 1" in capsys.readouterr().err


def test_half_precision_by_part_is_an_option_of_speak_and_refused_where_it_cannot_be(
    run_here, tmp_path
):
    dtype = "talker=bfloat16,predictor=float32"
    words = ("speak", "Hi.", "--model", "tiny-random", "--max-frames", 2, "--dtype", dtype)
    words = ("-m", "qwen_megakernel", *words, "--output", tmp_path / "a.wav", "--backend")
    done = run_here(*words, "graph", "--device", "cpu")
    assert done.returncode == 0 and f", cpu, {dtype}, " in done.stderr
    done = run_here(*words, "cpu")
    assert done.returncode == 2
    assert f"dtype is '{dtype}'; backend cpu computes in float32" in done.stderr


def test_ctrl_c_during_the_imports_of_the_installed_command_is_no_traceback(monkeypatch, capsys):
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "qwen_megakernel.cli.main":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "qwen_megakernel.cli.main")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, function = project["scripts"]["qwen-megakernel"].split(":")
    try:
        assert getattr(import_module(module), function)() == 130
    except KeyboardInterrupt:
        pytest.fail("Python would print a traceback")
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("words", [["speak", "Hello."], ["voices", "list"]])
def test_ctrl_c_during_numpys_import_is_no_traceback(tmp_path, monkeypatch, words):
    (tmp_path / "numpy.py").write_text("""
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    raise ImportError("numpy says that its installation is broken")
""")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    command = start("-m", "qwen_megakernel", *words)
    _, errors = command.communicate(timeout=200)
    assert (command.returncode, errors) == (130, "interrupted\n")


def test_the_package_imports_nothing_that_ctrl_c_could_interrupt_for_long():
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import qwen_megakernel
assert not {{"pathlib", "typing"}} & set(sys.modules)
assert qwen_megakernel.PACKAGE_FOLDER.name == "qwen_megakernel"
"""
    done = subprocess.run(
        [sys.executable, "-ISc", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("codec", ["speech_tokenizer", "../Qwen3-TTS-Tokenizer-12Hz"])
def test_a_copy_of_a_model_has_its_codec_inside(model_folder, tmp_path, codec, capsys):
    source = tmp_path / "shelf" / "model"
    shutil.copytree(model_folder("tiny-random"), source)
    (source / "speech_tokenizer").rename(source / codec)
    assert main.main(["download", str(source), "--to", str(tmp_path / "copy"), "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "copy")
    files = loading.resolve(str(tmp_path / "copy"))
    assert files.speech_tokenizer == tmp_path / "copy" / "speech_tokenizer"


def test_a_copy_that_cannot_be_written_is_one_line_that_names_its_folder(
    model_folder, tmp_path, monkeypatch, capsys
):
    def fill(source, target, **how):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source, None, target)

    source, to = model_folder("tiny-random"), tmp_path / "new" / "copy"
    (tmp_path / "file").touch()
    words = ["download", str(source), "--quiet", "--to"]
    assert main.main([*words, str(tmp_path / "file")]) == 5
    error = f"error: Cannot write {tmp_path / 'file'}: File exists.\n"
    assert capsys.readouterr().err == error
    monkeypatch.setattr(shutil, "copy2", fill)
    assert main.main([*words, str(to)]) == 5
    assert capsys.readouterr().err == f"error: Cannot write {to}: No space left on device.\n"
    assert not to.parent.exists()
