"""The options of commands: what their kinds parse, and the defaults that the help names."""

import argparse

import pytest

from qwen_megakernel.cli import parsing


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
    return made


def test_kinds_say_how_values_are_read(parser):
    args = parser.parse_args([])
    assert vars(args) == {
        **{"text": None, "number": 4, "share": 600.0, "form": "small", "quiet": False},
        **{"name": [], "plain": "", "fast": None},
    }
    given = ["hello", *("-n", "2", "--share", ".5", "--form", "large", "--quiet")]
    args = parser.parse_args([*given, "--name", "a=1", "--name", "b=2", "--no-fast"])
    assert (args.text, args.number, args.share, args.form) == ("hello", 2, 0.5, "large")
    assert args.quiet and args.name == ["a=1", "b=2"] and args.fast is False


@pytest.mark.parametrize("given", [["-n", "0"], ["--form", "huge"], ["--share", "half"]])
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
