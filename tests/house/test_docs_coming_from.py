"""docs/coming-from.md: this project accepts the new commands and none of the old names."""

import re
import shlex

import pytest
from commands import ROOT

from qwen_megakernel.cli import main

PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
# (what a reader typed, what to type instead), a pair for each row that has both
ROWS = [
    (old, re.findall(r"`(python [^`]+)`", new))
    for old, new in re.findall(r"^\| `([^`]+)` \| (.+) \|$", PAGE, re.MULTILINE)
]


@pytest.mark.parametrize(("old", "commands"), ROWS)
def test_what_is_to_be_typed_is_taken(run_here, old, commands):
    [command] = commands
    words = shlex.split(command)[1:]
    if words[:2] == ["-m", "qwen_megakernel"]:
        assert main.parser().parse_args(words[2:]).run
        return
    done = run_here(words[0], "--help")
    assert done.returncode == 0
    options = [word for word in words if word.startswith("--")]
    assert options and all(option in done.stdout for option in options)


def test_every_old_name_that_the_page_replaces_is_gone(capsys):
    options = {name for old, _ in ROWS for name in re.findall(r"--[\w-]+", old)}
    new = {name for _, commands in ROWS for name in re.findall(r"--[\w-]+", commands[0])}
    replaced = sorted(options - new)
    assert replaced == [
        *("--engine", "--fp16", "--model-id", "--output-dir", "--quantize-w8", "--samples"),
        *("--tts-max-steps", "--tts-model"),
    ]
    for name in replaced:
        commands = (["serve"], ["speak", "Hello."], ["export", "coreml", "M", "--to", "D"])
        for command in commands:
            if (command[0], name) == ("speak", "--output-dir"):
                continue  # it has an option of this name, for --batch
            with pytest.raises(SystemExit):
                main.parser().parse_args([*command, name, "1"])
            assert f"unrecognized arguments: {name}" in capsys.readouterr().err
    scripts = {word for old, _ in ROWS for word in old.split() if word.endswith(".py")}
    assert len(scripts) == 6 and not [name for name in scripts if (ROOT / name).exists()]


def test_names_that_are_the_same_exist():
    same = re.findall(
        r"`([\w/]+\.py)`", PAGE.split("These names are the same as in other implementations")[1]
    )
    assert len(same) == 10 and all((ROOT / name).is_file() for name in same)
    assert len(ROWS) == 13
