"""docs/tools.md: its commands run, in their order."""

import shlex

from commands import ROOT, CommandsHere, blocks

PAGE = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")


def run_line(run_here: CommandsHere, monkeypatch, line: str) -> str:
    """Run a command as a shell would, VARIABLE=value before it included; what it printed."""
    words = shlex.split(line)
    with monkeypatch.context() as patch:
        while "=" in words[0]:
            patch.setenv(*words.pop(0).split("=", 1))
        assert words.pop(0) == "python"
        done = run_here(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_commands_write_the_same_codes(run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    dumps = []
    for line in blocks(PAGE, "bash")[0].splitlines():
        run_line(run_here, monkeypatch, f"{line} --seed 1")
        dumps.append((tmp_path / "codes.tsv").read_bytes())
        (tmp_path / "codes.tsv").unlink()
    assert len(dumps) == 2 and dumps[0] == dumps[1]
