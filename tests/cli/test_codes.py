"""The command `codes`: statistics of dumped codes, and which of them are unusual."""

import json
import re

import numpy as np
import pytest


def test_codes_compare_prints_figures_and_overlaps(run_here, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a.tsv", "b.tsv"):
        np.savetxt(tmp_path / name, rng.integers(0, 9, (20, 4)), fmt="%d", delimiter="\t")
    compare = ("-m", "qwen_megakernel", "codes", "compare", tmp_path / "a.tsv")
    done = run_here(*compare, tmp_path / "b.tsv")
    assert done.returncode == 0 and "entropy_bits" in done.stdout and "overlap" in done.stdout
    narrow = tmp_path / "c.tsv"
    narrow.write_text("1\t2\n")
    assert run_here(*compare, narrow).returncode == 2


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ([[1, 2], [3, 4], [5, 6]], "are equal: 3 frames"),
        ([[1, 2], [3, 5], [5, 6]], "(3 and 3 frames) differ from frame 1 on"),
        ([[1, 2], [3, 4]], "(3 and 2 frames) differ from frame 2 on"),
    ],
)
def test_compared_codes_begin_with_their_first_difference(run_here, tmp_path, other, words):
    for name, codes in (("a.tsv", [[1, 2], [3, 4], [5, 6]]), ("b.tsv", other)):
        np.savetxt(tmp_path / name, codes, fmt="%d", delimiter="\t")
    paths = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
    done = run_here("-m", "qwen_megakernel", "codes", "compare", *paths)
    assert done.stdout.startswith(f"{paths[0]} and {paths[1]} {words}\n")


@pytest.mark.parametrize(
    ("codes", "suspicious"),
    [
        ([[(7 * i * (g + 1)) % 97 for g in range(4)] for i in range(40)], []),
        ([[i % 2, 5, i, 9] for i in range(40)], ["stuck_groups", "unique_code_0"]),
        ([[3, i, 2 * i, 3 * i] for i in range(40)], ["repeat_rate"]),
        ([[1, 2, 3, 4]] * 3, []),
        (
            [[2047 if (3 * g + i) % 10 else 5 * i + g for g in range(4)] for i in range(40)],
            ["top_code_share", "max_code_share", "single_value_groups"],
        ),
        (  # one group, whose value is not the largest
            [
                [700 if i % 10 else i, *((17 * i * g) % 2039 for g in (1, 2, 3, 5))]
                for i in range(80)
            ],
            ["single_value_groups"],
        ),
        (  # too short to judge groups, and not too short to judge all codes
            [[2047 if (3 * g + i) % 10 else 5 * i + g for g in range(16)] for i in range(4)],
            ["top_code_share", "max_code_share"],
        ),
    ],
    ids=["healthy", "stuck", "repeating", "too short", "one value", "one group", "short"],
)
def test_compared_codes_come_with_what_is_usual(run_here, tmp_path, codes, suspicious):
    dumps = [tmp_path / name for name in ("a.tsv", "b.tsv")]
    for dump in dumps:
        np.savetxt(dump, codes, fmt="%d", delimiter="\t")
    compare = ("-m", "qwen_megakernel", "codes", "compare", *dumps)
    done = run_here(*compare)
    shown = done.stdout.partition("\n")[2]
    first, pair = shown.split(str(dumps[1]), 1)[0], shown.splitlines()[-1]
    _, frames, *figures = first.splitlines()
    marked = [line.split()[0] for line in figures if "SUSPICIOUS" in line]
    assert set(suspicious) <= set(marked) and bool(marked) == bool(suspicious)
    judged = [line for line in figures if re.search("usual: .*; suspicious: ", line)]
    assert len(judged) == (9 if len(codes) >= 20 else 2 if len(codes) * len(codes[0]) >= 64 else 0)
    assert ("too few to judge" in frames) == (len(codes) < 20)
    assert done.returncode == 0
    as_json = run_here(*compare, "--json", "--strict")
    assert as_json.returncode == run_here(*compare, "--strict").returncode == bool(marked)
    assert json.loads(as_json.stdout)["anomalies"] == dict.fromkeys(map(str, dumps), marked)
    assert "overlap 1.000" in pair and "suspicious: above 0.8" in pair
    assert " -0.000" not in shown
