"""Voice files: complete ones, damaged ones, and those of other programs."""

import os
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import torch as safetensors_torch
from safetensors.numpy import save_file

from qwen_megakernel import Voice
from qwen_megakernel.errors import (
    OutputError,
    QwenTTSError,
    RecordingError,
    UnknownVoice,
    UsageError,
)
from qwen_megakernel.voice import is_uploaded, save_presets


def make(name="mario", in_context=True, dim=128):
    rng = np.random.default_rng(len(name))
    return Voice(
        name,
        x_vector=rng.standard_normal(dim).astype(np.float32),
        codes=rng.integers(0, 2048, (7, 16)).astype(np.int32) if in_context else None,
        transcript="It’s-a me, 你好!" if in_context else None,
        fingerprint="0b6-0123456789abcdef",
    )


@pytest.mark.parametrize("in_context", [False, True])
def test_a_voice_survives_its_file(tmp_path, in_context):
    voice, path = make(in_context=in_context), tmp_path / "other.voice.safetensors"
    voice.save(path)
    loaded = Voice.load(path)
    assert np.array_equal(loaded.x_vector, voice.x_vector)
    assert in_context == loaded.in_context
    assert not in_context or np.array_equal(loaded.codes, voice.codes)
    for name in ("name", "transcript", "fingerprint"):
        assert getattr(loaded, name) == getattr(voice, name)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_consent_and_the_mark_of_an_upload_survive_the_file(tmp_path):
    path = tmp_path / "mario.voice.safetensors"
    for consent, is_mine in (("Mario, by letter", True), (None, False)):
        replace(make(), consent=consent, is_uploaded=is_mine).save(path)
        loaded = Voice.load(path)
        assert loaded.consent == consent
        assert loaded.is_uploaded == is_uploaded(path) == is_mine
    assert not is_uploaded(tmp_path / "absent.voice.safetensors")


def test_a_file_of_an_earlier_version_is_read(tmp_path):
    path = tmp_path / "old.voice.safetensors"
    metadata = {"format": "qwen_megakernel voice 1", "name": " old\u202e"}
    save_file({"x_vector": np.zeros(4, np.float32)}, path, metadata)
    voice = Voice.load(path)
    assert voice.name == " old\u202e" and voice.consent is None and not voice.is_uploaded


@pytest.mark.parametrize("old_mode", [None, 0o644])
def test_only_the_owner_may_read_what_is_written(tmp_path, old_mode):
    path, presets = tmp_path / "mario.voice.safetensors", tmp_path / "voice_presets.bin"
    for each in (path, presets) if old_mode else ():
        each.touch(old_mode)
    before = os.umask(0)
    try:
        make().save(path)
        save_presets(presets, [make()])
    finally:
        os.umask(before)
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
    assert len(list(tmp_path.iterdir())) == 2


def test_errors_name_the_file_and_not_its_folder(tmp_path):
    path, presets = tmp_path / "mario.voice.safetensors", tmp_path / "voice_presets.bin"
    path.write_bytes(b"")
    presets.write_bytes(b"x")
    save_file({"y": np.zeros(4, np.float32)}, tmp_path / "other.voice.safetensors")
    for call in (
        lambda: Voice.load(path),
        lambda: Voice.load(tmp_path / "other.voice.safetensors"),
        lambda: Voice.load_presets(presets),
        lambda: make().save(tmp_path / "no" / path.name),
    ):
        with pytest.raises(QwenTTSError) as caught:
            call()
        assert str(tmp_path) not in str(caught.value)
        assert ".voice.safetensors" in str(caught.value) or presets.name in str(caught.value)


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_a_truncated_voice_file_is_refused(tmp_path, size):
    path = tmp_path / "mario.voice.safetensors"
    make().save(path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(RecordingError, match="damaged"):
        Voice.load(path)


def test_a_file_that_is_not_a_voice_is_refused(tmp_path):
    path = tmp_path / "weights.voice.safetensors"
    save_file({"x_vector": np.zeros(4, np.float32)}, path)
    with pytest.raises(RecordingError, match="not a voice file"):
        Voice.load(path)
    with pytest.raises(UnknownVoice, match="no voice file"):
        Voice.load(tmp_path / "absent.voice.safetensors")


@pytest.mark.parametrize(
    ("name", "dtype", "seen"),
    [
        ("x_vector", torch.bfloat16, "BF16"),
        ("x_vector", torch.float8_e4m3fn, "F8_E4M3"),
        ("x_vector", torch.float8_e5m2, "F8_E5M2"),
        ("x_vector", torch.int32, "I32"),
        ("x_vector", torch.bool, "BOOL"),
        ("x_vector", torch.complex64, "C64"),
        ("codes", torch.bfloat16, "BF16"),
        ("codes", torch.float32, "F32"),
        ("codes", torch.bool, "BOOL"),
    ],
)
def test_a_tensor_of_another_dtype_is_named(tmp_path, name, dtype, seen):
    path = tmp_path / "mario.voice.safetensors"
    metadata = {"format": "qwen_megakernel voice 1", "name": "mario", "transcript": "Hello."}
    tensors = {"x_vector": torch.zeros(4), "codes": torch.zeros(3, 16, dtype=torch.int32)}
    tensors[name] = tensors[name].to(dtype)
    safetensors_torch.save_file(tensors, path, metadata)
    with pytest.raises(RecordingError, match=f"{name} is {seen}; it must be one of [FI]32, "):
        Voice.load(path)


def test_what_cannot_be_saved_is_refused_and_leaves_nothing(tmp_path):
    for voice, path, error in (
        (make(), tmp_path / "mario.bin", UsageError),
        (Voice("ryan"), tmp_path / "ryan.voice.safetensors", UsageError),
        (make(), tmp_path / "no" / "mario.voice.safetensors", OutputError),
    ):
        with pytest.raises(error):
            voice.save(path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["", "../mario", "a/b", "a\\b", ".hidden", "a\0b", "x" * 81, "c:d"]
)
def test_names_that_are_paths_are_refused(name):
    with pytest.raises(UsageError, match="name of a voice"):
        Voice(name)


@pytest.mark.parametrize("dim", [128, 1024, 2048])
def test_presets_are_written_and_read_in_the_old_format(tmp_path, dim):
    path = tmp_path / "voice_presets.bin"
    voices = [make("alloy", dim=dim), make("Élise", in_context=False, dim=dim)]
    save_presets(path, voices)
    expected = struct.pack("<i", 2)
    for voice in voices:
        expected += struct.pack(f"<64s{dim}f", voice.name.encode(), *voice.x_vector)
    assert path.read_bytes() == expected
    loaded = Voice.load_presets(path)
    assert list(loaded) == ["alloy", "Élise"]
    for voice in voices:
        assert np.array_equal(loaded[voice.name].x_vector, voice.x_vector)
        assert not loaded[voice.name].in_context


def test_damaged_presets_are_refused(tmp_path):
    path = tmp_path / "voice_presets.bin"
    save_presets(path, [make("a", dim=128), make("b", dim=128)])
    whole = path.read_bytes()
    evenly = 2 * 4 * 16  # the same bytes of both voices: the size does not show it
    traversal = whole.replace(b"a\0\0\0\0\0\0\0\0\0", b"../../../a")
    nan = whole[:-4] + struct.pack("<f", float("nan"))
    for data in (whole[:-1], whole[:3], b"", whole[:-evenly], b"\xff" * 100, traversal, nan):
        path.write_bytes(data)
        with pytest.raises(RecordingError, match="damaged"):
            Voice.load_presets(path)
    path.write_bytes(struct.pack("<i", 0))
    assert Voice.load_presets(path) == {}


def test_presets_that_cannot_be_written_are_refused(tmp_path):
    path = tmp_path / "voice_presets.bin"
    for voices in ([make("n" * 64)], [make(dim=4), make(dim=8)], [Voice("ryan")]):
        with pytest.raises(UsageError):
            save_presets(path, voices)
    assert not path.exists()
