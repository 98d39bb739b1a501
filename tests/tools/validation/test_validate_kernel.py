"""validate_kernel.py: how many frames it compares, and when it prints what it has found."""

import sys
from unittest.mock import Mock

import pytest
import torch

import validate_kernel
from qwen_megakernel.errors import MissingPackageError, UsageError
from tools.validation.compare import Report, Row

GOOD = Row("good", 3, 1e-6, 1e-5)


@pytest.fixture
def compared(monkeypatch, capsys):
    """compared(*words): run the program with comparisons that cost nothing; returns its exit code,
    and for each of them its title, its frames and what had been printed before it."""
    found = []

    def compare(title, args):
        found.append((title, args.steps, capsys.readouterr().out))
        return Report(title, [GOOD])

    def validate_plain(loaded, args, title):
        return compare("plain", args)

    def validate_fast(loaded, backend, dtype, args):
        return compare(f"{backend.name} {dtype}".replace("torch.", ""), args)

    monkeypatch.setattr(validate_kernel, "validate_plain", validate_plain)
    monkeypatch.setattr(validate_kernel, "validate_fast", validate_fast)

    def run(*words):
        found.clear()
        monkeypatch.setattr(sys, "argv", ["validate_kernel.py", *words])
        return validate_kernel.main(validate_kernel.parse_args()), list(found)

    return run


@pytest.mark.parametrize(
    ("words", "has_gpu", "steps"),
    [
        ((), False, 30),
        (("--backend", "emulation"), False, 30),
        (("--backend", "torch"), False, 200),  # no emulation, so all frames
        (("--full",), False, 200),
        (("--full", "--backend", "emulation"), False, 200),
        (("--steps", "7"), False, 7),
        ((), True, 200),
    ],
)
def test_it_compares_so_many_frames(compared, monkeypatch, words, has_gpu, steps):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    if has_gpu:  # this machine has no GPU
        monkeypatch.setattr(validate_kernel, "fast_backends", lambda *_: [])
    code, found = compared(*words)
    assert code == 0 and found and {frames for _, frames, _ in found} == {steps}


@pytest.mark.parametrize(
    ("weights", "compared_with"),
    [
        ("int8", ["cpu", "emulation", "graph"]),
        ("int8-groups", ["cpu", "graph"]),
        ("int8-heads", ["cpu"]),
        ("int4", ["cpu"]),
    ],
)
def test_backends_that_do_not_run_the_weights_are_left_out(
    compared, capsys, monkeypatch, weights, compared_with
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, found = compared("--weights", weights)
    assert code == 0 and list(dict.fromkeys(title.split()[0] for title, *_ in found)) == (
        compared_with
    )
    last = capsys.readouterr().out.splitlines()[-1]
    left_out = [name for name in ("emulation", "graph") if name not in compared_with]
    assert last.endswith(f"Not compared: {', '.join(left_out)}.") or not left_out
    for name in left_out:
        with pytest.raises(UsageError, match=f"weights is '{weights}'; backend {name}"):
            compared("--backend", name, "--weights", weights)


def test_the_official_package_is_loaded_before_the_estimate_begins(monkeypatch, capsys):
    package = Mock(side_effect=MissingPackageError("planted"))
    monkeypatch.setattr(validate_kernel.official, "package", package)
    monkeypatch.setattr(sys, "argv", ["validate_kernel.py", "--backend", "torch"])
    validate_kernel.main(validate_kernel.parse_args())
    told = capsys.readouterr().err
    assert told.index("loading the official package") < told.index("planted")
    assert "frames" not in told


def test_full_and_a_number_of_frames_exclude_each_other(compared, capsys):
    with pytest.raises(SystemExit) as ended:
        compared("--full", "--steps", "7")
    assert ended.value.code == 2 and "not allowed with" in capsys.readouterr().err


def test_a_table_is_printed_before_the_next_is_made(compared, capsys):
    code, found = compared()
    titles = [title for title, _, _ in found]
    assert titles[:2] == ["plain", "cpu float32"]
    assert titles[2:4] == ["emulation float32", "emulation bfloat16"]
    first, *before = [printed for _, _, printed in found]
    assert first == "tiny-random, 30 frames\n"
    assert before == [f"{Report(title, [GOOD])}\n" for title in titles[:-1]]
    last = capsys.readouterr().out
    assert code == 0 and titles[-1] in last and len(last.splitlines()[-1]) > 10  # the verdict
