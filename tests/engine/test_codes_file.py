"""Dumps of codes: written, read back, described."""

import numpy as np
import pytest
from tolerances import FOUR_DIGITS, nearly

from qwen_megakernel.engine import codes_file
from qwen_megakernel.errors import OutputError, UsageError


def test_codes_survive_the_file(tmp_path):
    codes = np.random.default_rng(0).integers(0, 2048, (7, 16))
    path = tmp_path / "codes.tsv"
    codes_file.write(path, codes)
    assert path.read_text().splitlines()[0] == "\t".join(str(code) for code in codes[0])
    assert np.array_equal(codes_file.read(path), codes)
    codes_file.write(path, codes[:2], append=True)
    assert np.array_equal(codes_file.read(path), np.concatenate((codes, codes[:2])))


def test_a_known_distribution_has_its_known_entropy():
    uniform = np.tile(np.arange(16), 8)
    codes = np.stack([uniform, np.zeros(128, dtype=int), uniform % 4], axis=1)
    figures = codes_file.describe(codes)
    assert figures["entropy_bits"] == nearly((4 + 0 + 2) / 3)
    assert figures["stuck_groups"] == [1]
    assert figures["repeat_rate"] == 0.0
    assert figures["entropy_drop_bits"] == nearly(0)
    assert (figures["entropy_min_bits"], figures["entropy_max_bits"]) == (0, nearly(4))
    assert figures["unique_code_0"] == 16
    assert (figures["code_0_mean"], figures["code_0_std"]) == (7.5, nearly(21.25**0.5))
    assert (figures["others_mean"], figures["others_std"]) == (
        0.75,
        pytest.approx(1.0897, abs=FOUR_DIGITS),
    )


def test_the_commonest_value_is_reported_with_its_share():
    codes = np.arange(400).reshape(40, 10)  # 0 to 399: the largest value once
    codes[:32, 3] = codes[0, 3]
    figures = codes_file.describe(codes)
    assert (figures["frames"], figures["groups"]) == (40, 10)
    assert (figures["top_code"], figures["top_code_share"]) == (3, 32 / 400)
    assert (figures["max_code"], figures["max_code_share"]) == (399, 1 / 400)
    assert (figures["single_value_groups"], figures["stuck_groups"]) == ([3], [])


def test_a_dump_that_gets_stuck_shows_it():
    codes = np.concatenate((np.arange(64), np.full(64, 9)))[:, None]
    figures = codes_file.describe(codes)
    assert figures["entropy_drop_bits"] == nearly(6)
    assert figures["repeat_rate"] == nearly(63 / 127)


def test_overlap_is_one_for_equal_and_zero_for_disjoint_dumps():
    low, high = np.arange(-1, 31)[:, None], 10**12 + np.arange(32)[:, None]  # no codes of any codec
    assert codes_file.overlap(low, low[::-1]) == nearly(1)
    assert codes_file.overlap(low, high) == 0
    assert codes_file.overlap(low, np.arange(15, 47)[:, None]) == nearly(0.5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("content", ["", "\n \n", "1\t2\n3\n", "a\tb\n"])
def test_a_file_that_is_not_a_dump_is_refused(tmp_path, content):
    path = tmp_path / "bad.tsv"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"bad\.tsv"):
        codes_file.read(path)


def test_missing_and_unwritable_files_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.tsv: No such file"):
        codes_file.read(tmp_path / "none.tsv")
    with pytest.raises(OutputError, match="no/such"):
        codes_file.write(tmp_path / "no/such/dir.tsv", np.zeros((1, 2), dtype=int))
