"""A file is replaced whole, or stays as it was."""

import errno
import json
import os
import pwd
import sys
from pathlib import Path

import numpy as np
import pytest

from qwen_megakernel import Voice, audio
from qwen_megakernel.errors import OutputError, SetupError, UsageError
from qwen_megakernel.marking import MarkKey
from qwen_megakernel.native import compiling
from qwen_megakernel.output_files import cache_folder, check_writable, replacing, writing
from qwen_megakernel.voice import save_presets


def test_the_cache_is_the_variables_or_in_the_users_home(tmp_path: Path, monkeypatch):
    for name in ("QWEN_MEGAKERNEL_CACHE", "QWEN_MEGAKERNEL_BUILD_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / ".cache" / "qwen_megakernel"
    assert (cache_folder(), compiling.build_cache()) == (home, home / "kernels")
    monkeypatch.setenv("QWEN_MEGAKERNEL_CACHE", str(tmp_path))
    assert (cache_folder(), compiling.build_cache()) == (tmp_path, tmp_path / "kernels")


def test_a_user_without_a_home_is_told_to_name_a_cache(monkeypatch, run_here):
    """As in a container whose user is a number that its list of users lacks."""

    def unknown(user: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {user}")

    for name in ("HOME", "QWEN_MEGAKERNEL_CACHE", "QWEN_MEGAKERNEL_BUILD_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for find in (cache_folder, compiling.build_cache):
        with pytest.raises(SetupError, match="has no home") as caught:
            find()
        assert "QWEN_MEGAKERNEL_CACHE" in caught.value.hint
    facts = json.loads(run_here("-m", "qwen_megakernel", "doctor", "--json").stdout)
    assert facts["kernel_cache"] == facts["model_cache"] == f"none: {caught.value.what}"
    assert facts["kept_packed"] == []


@pytest.mark.parametrize("name", ["a" * 300, "a\0b"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path, name: str):
    path = tmp_path / f"{name}.wav"
    voice = Voice("a", np.zeros(8, np.float32))
    for write in (
        lambda: check_writable(path, "codes"),
        lambda: audio.check_path(path),
        lambda: audio.WavWriter(path, 24000),
        lambda: voice.save(path.with_name(f"{name}.voice.safetensors")),
        lambda: save_presets(path, [voice]),
    ):
        with pytest.raises(OutputError, match=r"Cannot write .*: (File name too|embedded null)"):
            write()
    for read in (Voice.load_presets, MarkKey.read):
        with pytest.raises(UsageError, match=r"annot be read|Cannot read"):
            read(path)


def test_the_file_is_replaced_when_it_is_complete(tmp_path: Path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with replacing(path) as partial:
        partial.write_bytes(b"new")
        assert path.read_bytes() == b"old" and partial.name.startswith(".")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_after_an_error_the_file_is_what_it_was(tmp_path: Path, error: type[BaseException]):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(error), replacing(path) as partial:
        partial.write_bytes(b"half")
        raise error
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("name", ["y" * 251 + ".wav", "\u00fc" * 127])
def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path, name: str):
    with replacing(tmp_path / name) as partial:
        partial.write_text("new")
    assert os.listdir(tmp_path) == [name]


def test_a_name_needs_no_characters_of_the_locale(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    with replacing(tmp_path / "\u00fc.wav") as partial:
        assert str(partial).isascii()


def test_two_writers_do_not_share_a_hidden_file(tmp_path: Path):
    path = tmp_path / "a.bin"
    with replacing(path) as first, replacing(path) as second:
        first.write_bytes(b"first")
        second.write_bytes(b"second")
    assert path.read_bytes() == b"first"  # it was renamed last


def test_a_folder_stays_and_no_hidden_file_is_left(tmp_path: Path):
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError), replacing(tmp_path / "a"):
        pass
    assert os.listdir(tmp_path) == ["a"]
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "none" / "a"):
        pass


def test_the_permissions_are_those_asked_for_whatever_the_umask(tmp_path: Path):
    before = os.umask(0)
    try:
        with replacing(tmp_path / "a", 0o600) as partial:
            assert partial.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_a_link_to_a_file_that_does_not_exist_yet_stays(tmp_path: Path):
    link = tmp_path / "latest.srt"
    link.symlink_to("first.srt")
    check_writable(link, "subtitles")
    assert link.is_symlink() and os.listdir(tmp_path) == ["latest.srt"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LookupError("it is full"), "it is full"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
    ],
)
def test_an_error_of_a_library_is_reported_as_that_of_a_file(error: Exception, reason: str):
    with (
        pytest.raises(OutputError, match=f"^Cannot write here: {reason}\\.$"),
        writing("here", LookupError),
    ):
        raise error
    with pytest.raises(ValueError, match="another"), writing("here", LookupError):
        raise ValueError("another")
