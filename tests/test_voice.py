"""Voice files: complete ones, damaged ones, and those of other programs."""

import os
import struct
from dataclasses import replace
from time import process_time
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors import torch as safetensors_torch
from safetensors.numpy import save_file
from tolerances import X_VECTOR_F32

from qwen_megakernel import Voice
from qwen_megakernel.cloning.mixing import mix, mix_of
from qwen_megakernel.errors import (
    OutputError,
    QwenTTSError,
    RecordingError,
    UnknownVoice,
    UsageError,
    VoiceMismatch,
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("x_vector", value) for value in ("abc", ["a"] * 4, np.zeros(4, complex), [None] * 4)],
        *[("codes", value) for value in ("abc", [["a"]], [[1, 2], [3]])],
        *[(field, 5) for field in ("name", "transcript", "fingerprint", "consent")],
        *[("name", value) for value in (None, b"mario")],
    ],
)
def test_what_is_no_part_of_a_voice_is_refused_when_it_is_made(field, value):
    with pytest.raises(UsageError) as caught:
        replace(make(), **{field: value})
    assert field in str(caught.value) and repr(value)[:3] in str(caught.value)


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_a_voice_may_be_made_of_lists_and_tensors(kind):
    voice = make()
    same = replace(voice, x_vector=kind(voice.x_vector.tolist()), codes=kind(voice.codes.tolist()))
    assert same.codes.tobytes() == voice.codes.astype(np.int64).tobytes()
    assert np.array_equal(same.x_vector.astype(np.float32), voice.x_vector)


def test_voices_are_compared_by_their_numbers(tmp_path):
    voice, path = make(), tmp_path / "mario.voice.safetensors"
    voice.save(path)
    assert Voice.load(path) == voice and voice in [make("luigi"), Voice.load(path)]
    others = [make("luigi"), make(in_context=False), replace(voice, x_vector=-voice.x_vector)]
    assert voice not in others and len({voice, Voice.load(path), *others}) == 4
    assert Voice("ryan") == Voice("ryan") != "ryan"


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
    for absent in (tmp_path / "absent.voice.safetensors", f"{'x' * 300}.voice.safetensors"):
        with pytest.raises(UnknownVoice, match="no voice file"):
            Voice.load(absent)


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
        (make("m\udcc3"), tmp_path / "m.voice.safetensors", UsageError),
        (replace(make(), transcript="\udcc3"), tmp_path / "m.voice.safetensors", UsageError),
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


def test_a_voice_that_cannot_be_read_is_there(tmp_path, monkeypatch):
    path = tmp_path / "mario.voice.safetensors"
    make().save(path)
    monkeypatch.setattr("builtins.open", Mock(side_effect=PermissionError(13, "Not yours")))
    with pytest.raises(RecordingError, match=r"^mario[.a-z]* cannot be read: Not yours\.$"):
        Voice.load(path)


def test_presets_that_cannot_be_read_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "voice_presets.bin"
    with pytest.raises(UnknownVoice, match="no presets file"):
        Voice.load_presets(path)
    save_presets(path, [make()])
    refusal = PermissionError(13, "Not yours")
    monkeypatch.setattr(type(path), "read_bytes", Mock(side_effect=refusal))
    with pytest.raises(RecordingError, match=r"^voice_presets.bin cannot be read: Not yours\.$"):
        Voice.load_presets(path)


def test_presets_that_cannot_be_written_are_refused(tmp_path):
    path = tmp_path / "voice_presets.bin"
    for voices in ([make("n" * 64)], [make(dim=4), make(dim=8)], [Voice("ryan")]):
        with pytest.raises(UsageError):
            save_presets(path, voices)
    assert not path.exists()


# ---- styles and mixes ----------------------------------------------------------------------------


def test_styles_survive_the_file_and_one_recording_is_a_file_as_before(tmp_path):
    path, styles = tmp_path / "anna.voice.safetensors", [make("sad"), make("neutral", False)]
    Voice.of_styles("anna", styles).save(path)
    loaded = Voice.load(path)
    assert loaded.name == "anna" and loaded.style_names == ["neutral", "sad"]
    assert not loaded.in_context and loaded.in_style("sad").transcript == styles[0].transcript
    assert np.array_equal(loaded.in_style("sad").codes, styles[0].codes)
    alone = Voice.of_styles("mario", [make()])
    assert alone.style_names == ["neutral"] and alone.in_style("neutral") is alone
    alone.save(tmp_path / "1.voice.safetensors")
    make().save(tmp_path / "2.voice.safetensors")
    one, two = ((tmp_path / f"{n}.voice.safetensors").read_bytes() for n in (1, 2))
    assert len(one) == len(two) and all(b"qwen_megakernel voice 1" in data for data in (one, two))
    for wrong in ([], [make(), make()]):
        with pytest.raises(UsageError, match="has the styles"):
            Voice.of_styles("anna", wrong)
    with pytest.raises(VoiceMismatch, match="different models"):
        Voice.of_styles("anna", [make("a"), replace(make("b"), fingerprint="1b7-0")])


@pytest.mark.parametrize(
    "styles",
    ["", "7", "[]", '["a"]', '[["a", null]]', '[["a/b", null]]', "[[7, null]]", "[" * 100_000],
)
def test_damaged_styles_are_an_error(tmp_path, styles):
    path = tmp_path / "anna.voice.safetensors"
    metadata = {"format": "qwen_megakernel voice 2", "name": "anna", "styles": styles}
    save_file(dict.fromkeys(["sad.x_vector", "7.x_vector"], np.ones(4, np.float32)), path, metadata)
    with pytest.raises(UsageError):
        Voice.load(path)


def test_a_transcript_that_is_no_string_is_refused(tmp_path):
    path = tmp_path / "anna.voice.safetensors"
    metadata = {"format": "qwen_megakernel voice 2", "name": "anna", "styles": '[["sad", 7]]'}
    tensors = {"sad.x_vector": np.ones(4, np.float32), "sad.codes": np.ones((3, 16), np.int32)}
    save_file(tensors, path, metadata)
    with pytest.raises(RecordingError, match="'sad': transcript is 7; it must be a string"):
        Voice.load(path)


def away(voice, x_vector):
    """The largest difference of a voice's x-vector from another."""
    return np.abs(voice.x_vector - np.array(x_vector)).max()


def test_a_mix_lies_on_the_sphere_between_its_voices():
    a, b = Voice("a", np.float32([2, 0, 0])), Voice("b", np.float32([0, 4, 0]), consent="b: yes")
    for share in (0.0, 0.25, 0.5, 1.0):
        mixed = mix("c", [(a, 1 - share), (b, share)])
        angle, length = share * np.pi / 2, 2 + 2 * share
        assert away(mixed, [length * np.cos(angle), length * np.sin(angle), 0]) < X_VECTOR_F32
    assert np.array_equal(mix("c", [(a, 7), (b, 0)]).x_vector, a.x_vector)
    assert np.array_equal(mix("c", [(a, 0), (b, 0.1)]).x_vector, b.x_vector)
    assert mix("c", [(a, 1), (b, 1)]).consent == "b: yes"
    longer = mix("c", [(a, 1), (Voice("d", 3 * a.x_vector), 3)])
    assert away(longer, [5, 0, 0]) < X_VECTOR_F32
    three = mix("c", [(a, 1), (a, 2), (b, 3)])
    assert away(three, mix("c", [(a, 1), (b, 1)]).x_vector) < X_VECTOR_F32


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "none"),
        ([(make("a", False), 0.0)], "not all of them 0"),
        ([(make("a", False), -1.0), (make("b", False), 2.0)], "must be 0 or more"),
        ([(make("a", False), float("nan"))], "must be 0 or more"),
        ([(make("a"), 1.0), (make("b", False), 1.0)], "'a' cannot be mixed: it speaks in context"),
        ([(Voice("ryan"), 1.0)], "it is a speaker of the checkpoint"),
        ([(Voice("a", np.float32([1, 0])), 1), (Voice("b", np.float32([-2, 0])), 1)], "opposite"),
        ([(make("a", False), 1.0), (make("b", False, dim=64), 1.0)], "'a' 128, 'b' 64"),
    ],
)
def test_what_cannot_be_mixed_is_refused(parts, message):
    with pytest.raises(UsageError, match=message):
        mix("c", parts)


def test_a_mix_is_named_as_a_sum_of_names_with_weights():
    voices = {name: Voice(name, np.float32([len(name), 1])) for name in ("anna", "b en", "c-3")}
    for text, parts in {
        "anna(2)+b en": {"anna": 2, "b en": 1},
        " anna (.5) + c-3(1.5)": {"anna": 0.5, "c-3": 1.5},
        "c-3+b en+anna(3)": {"c-3": 1, "b en": 1, "anna": 3},
    }.items():
        want = mix("x", [(voices[name], weight) for name, weight in parts.items()])
        mixed = mix_of(text, voices.__getitem__)
        assert np.array_equal(mixed.x_vector, want.x_vector) and mixed.name == text
    files = "a/anna.voice.safetensors(2)+b.voice.safetensors"  # no name can have a slash
    assert mix_of(files, lambda _: voices["anna"]).name == "mix"
    for text in ("anna", "anna(2)", "anna(x)+b en", "anna(2)(3)+b en", "+anna", "a+", ""):
        assert mix_of(text, voices.__getitem__) is None
    begin = process_time()
    assert mix_of("anna" + 30_000 * " " + "b(+anna", voices.__getitem__) is None
    assert process_time() - begin < 2
    with pytest.raises(UsageError, match="a mix of 11; the limit is 10"):
        mix_of("+".join(["anna"] * 11), voices.__getitem__)
