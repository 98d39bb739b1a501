"""docs/tools.md: its commands run in their order."""

import shlex

import numpy as np
from commands import ROOT, CommandsHere, blocks

from qwen_megakernel.engine import codes_file

PAGE = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")


def run_line(run_here: CommandsHere, monkeypatch, line: str) -> None:
    """Run a command as a shell would, with a VARIABLE=value in front of it."""
    words = shlex.split(line)
    with monkeypatch.context() as patch:
        while "=" in words[0]:
            patch.setenv(*words.pop(0).split("=", 1))
        assert words.pop(0) == "python"
        done = run_here(*words)
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_commands_write_the_same_codes(run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    dumps = []
    for line in blocks(PAGE, "bash")[0].splitlines():
        run_line(run_here, monkeypatch, f"{line} --seed 1")
        dumps.append((tmp_path / "codes.tsv").read_bytes())
        (tmp_path / "codes.tsv").unlink()
    assert len(dumps) == 2 and dumps[0] == dumps[1]


def test_dumps_are_compared(run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("a.tsv", "b.tsv", "codes.tsv")):
        codes_file.write(tmp_path / name, np.random.default_rng(seed).integers(0, 2048, (50, 16)))
    for line in blocks(PAGE, "bash")[1].splitlines():
        run_line(run_here, monkeypatch, line)


def test_the_limits_of_the_page_are_those_that_judge():
    """Three frames of four, a quarter and 15 % of all codes, 20 frames, 64 codes."""
    assert codes_file.MOST_OF_A_GROUP == 3 / 4
    for frames, groups in ((20, 4), (19, 4), (16, 4), (9, 7)):
        for share in (0.15, 0.16, 0.25, 0.26):
            figures = codes_file.describe(np.arange(frames * groups).reshape(frames, groups))
            judged = codes_file.expectations(
                figures | {"top_code_share": share, "max_code_share": share}
            )
            enough = frames * groups >= 64
            assert judged["top_code_share"].is_suspicious == (enough and share > 0.25)
            assert judged["max_code_share"].is_suspicious == (enough and share > 0.15)
            assert ("too few" in judged["frames"].description) == (frames < 20)


def test_a_checkpoint_is_compared_with_another(run_here, monkeypatch, tmp_path, model_folder):
    monkeypatch.chdir(tmp_path)
    for folder in ("MODEL_FOLDER", "OTHER_FOLDER"):
        (tmp_path / folder).symlink_to(model_folder("tiny-random-1.7b"))
    for line in blocks(PAGE, "bash")[2].splitlines():
        run_line(run_here, monkeypatch, line)


def test_page_and_program_agree_on_the_overlap():
    assert codes_file.OVERLAP.description in " ".join(PAGE.split())
