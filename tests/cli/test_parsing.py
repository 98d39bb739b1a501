"""The options of commands: what their kinds parse, and the defaults that the help names."""

import argparse
from pathlib import Path

import pytest

from benchmarks import option_types
from qwen_megakernel.cli import main, parsing


@pytest.fixture
def parser() -> parsing.Parser:
    made = parsing.Parser(prog="p")
    add = parsing.adder(made, "a group")
    add("text WORDS", "text to read", nargs="?")
    add("-n --number", "how many", parsing.at_least(1), 4)
    add("--share", "part of all", float, 600.0)
    add("--form", "form (default: by size)", ("small", "large"), "small")
    add("--quiet", "print nothing", bool)
    add("--name K=V", "name, repeatedly", list)
    add("--plain", "nothing by default", str, "")
    add("--fast", "be fast", argparse.BooleanOptionalAction)
    add("--to DIR", "folder", parsing.file_name)
    add("--folder", "another", Path)
    return made


def test_kinds_say_how_values_are_read(parser):
    args = parser.parse_args([])
    assert vars(args) == {
        **{"text": None, "number": 4, "share": 600.0, "form": "small", "quiet": False},
        **{"name": [], "plain": "", "fast": None, "to": None, "folder": None},
    }
    given = ["hello", *("-n", "2", "--share", ".5", "--form", "large", "--quiet")]
    args = parser.parse_args([*given, "--name", "a=1", "--name", "b=2", "--no-fast"])
    assert (args.text, args.number, args.share, args.form) == ("hello", 2, 0.5, "large")
    assert args.quiet and args.name == ["a=1", "b=2"] and args.fast is False


@pytest.mark.parametrize(
    "given", [["-n", "0"], ["--form", "huge"], ["--share", "half"], ["--to", ""], ["--folder", ""]]
)
def test_values_of_another_kind_are_refused(parser, given, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(given)
    assert given[1] in capsys.readouterr().err


def test_the_help_names_each_default_once(parser):
    words = " ".join(parser.format_help().split())
    for shown in ("how many (default: 4)", "part of all (default: 600)", "form (default: by size)"):
        assert shown in words
    assert words.count("(default") == 3
    assert "a group:" in words and "WORDS text to read" in words and "K=V" in words


@pytest.mark.parametrize(
    "words",
    [
        "train prepare FILE -o x",
        "train prepare x -o FILE",
        "train run x -o FILE",
        "train merge FILE -o x",
        "sheen prepare x -o FILE",
        "sheen train x -o FILE",
        "voices create x -o FILE",
        "voices mix x -o FILE",
        "speak x --voice-sample FILE",
        "detect x --mark-key FILE",
        "speak x -o FILE",
        "speak --file FILE",
        "speak x --lexicon FILE",
        "speak --batch FILE",
        "speak x --voices FILE",
        "serve --adapter FILE",
    ],
)
def test_an_empty_text_names_no_file(words, capsys):
    given = ["" if word == "FILE" else word for word in words.split()]
    with pytest.raises(SystemExit, match="2"):
        main.parser().parse_args(given)
    shown = capsys.readouterr().err
    assert "an empty text names no file" in shown
    assert given[given.index("") - 1] in shown  # the option, or the command


@pytest.mark.parametrize(
    "name, why", [("a.xyz", "one of .*png"), ("a", "one of .*png"), ("no/a.png", "no folder no")]
)
def test_a_plot_that_cannot_be_written_is_refused_before_the_work(name, why, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(argparse.ArgumentTypeError, match=why):
        option_types.plot_file(name)
    assert option_types.plot_file("a.png") == "a.png" and not list(tmp_path.iterdir())
