"""Converted checkpoints: mapped weights speak as packed ones do, and broken files end in errors."""

import dataclasses
import functools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from commands import run
from fixtures import module_value
from spies import watch

from qwen_megakernel import Speech, TTSEngine
from qwen_megakernel.checkpoint import loading, packed_form, safetensors_file
from qwen_megakernel.choices import VOCODER_WEIGHTS, WEIGHTS
from qwen_megakernel.cli import doctor, main
from qwen_megakernel.decoders.cpu import conversion
from qwen_megakernel.errors import (
    BuildError,
    ModelFilesError,
    OutputError,
    UnsupportedModel,
    UsageError,
)
from qwen_megakernel.native import cpu_library
from qwen_megakernel.vocoder.cpu.vocoder import PACKED, TABLES, CpuVocoder
from qwen_megakernel.vocoder.vocoder import Vocoder

MODELS = ["tiny-random", "tiny-random-base", "demo-voice"]
TEXT = "The table is ready."
OTHER_SETS = [pytest.param(name, marks=pytest.mark.ci) for name in cpu_library.supported_sets()[1:]]
HOW = {"seed": 3, "max_frames": 12}
CODEC = Path(loading.CODEC_FOLDER) / loading.WEIGHTS


def converted(model: str, weights: str | None, folder: Path, *options: str) -> Path:
    conversion.convert(loading.load(loading.resolve(model)), weights, folder, *options)
    return folder


@pytest.fixture(scope="module")
def whole_of(tmp_path_factory) -> Callable[[str], Path]:
    """whole_of(vocoder_weights) is a converted model, which tests copy before they break it."""
    return functools.cache(
        lambda form: converted(
            "tiny-random", "int8", tmp_path_factory.mktemp("converted") / "model", form
        )
    )


whole = module_value(lambda whole_of: whole_of("float32"))


@pytest.fixture(params=VOCODER_WEIGHTS)
def broken(request, whole_of, tmp_path) -> Path:
    return Path(shutil.copytree(whole_of(request.param), tmp_path / "broken"))


def spoken(model: str | Path, **options) -> Speech:
    with TTSEngine.from_pretrained(model, backend="cpu", warmup=False, **options) as tts:
        voice = tts.voices[0] if tts.voices else None
        return tts.synthesize(TEXT, voice=voice, **HOW)


def codes(model: str | Path, **options) -> np.ndarray:
    return spoken(model, **options).codes


def assert_same(found: Speech, expected: Speech) -> None:
    assert np.array_equal(found.codes, expected.codes)
    assert np.array_equal(found.audio, expected.audio)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "weights",
    [
        pytest.param(
            form, marks=[] if form in (None, "int8", "int4-int8-heads") else pytest.mark.ci
        )
        for form in (None, *WEIGHTS)
    ],
)
def test_mapped_weights_speak_as_those_packed_at_the_start(model, weights, tmp_path):
    folder = converted(model, weights, tmp_path / "model")
    expected = spoken(model, weights=weights)
    assert len(expected.codes)
    for options in ({}, {"num_threads": 1}, {"weights": weights}):
        assert_same(spoken(folder, **options), expected)


@pytest.mark.ci  # compiles each library once
@pytest.mark.parametrize("weights", ["int8", "int8-rows-heads", None])
def test_every_instruction_set_reads_the_same_file(weights, tmp_path, monkeypatch):
    folder = converted("tiny-random", weights, tmp_path / "model")
    for name in cpu_library.supported_sets():
        monkeypatch.setenv(cpu_library.FORCED, name)
        with TTSEngine.from_pretrained(folder, warmup=False) as tts:
            assert name in tts.why
        assert_same(spoken(folder), spoken("tiny-random", weights=weights))


@pytest.mark.parametrize(("model", "is_random"), [("tiny-random", True), ("demo-voice", False)])
def test_a_converted_model_says_what_it_was_made_from(model, is_random, tmp_path, caplog):
    folder = converted(model, "int8", tmp_path / "model")
    caplog.clear()
    files = loading.resolve(folder)
    assert files.is_synthetic == is_random
    assert ("RANDOM WEIGHTS" if is_random else "not Qwen's model") in files.banner
    assert files.banner.startswith(str(folder)) and files.banner in caplog.text


def test_a_converted_model_is_complete_and_says_what_it_is(whole):
    original = loading.load(loading.resolve("tiny-random"))
    checkpoint = loading.load(loading.resolve(str(whole)))
    assert checkpoint.form and checkpoint.form.weights == "int8"
    assert checkpoint.form.source == "tiny-random" and len(checkpoint.form.source_sha256) == 64
    assert checkpoint.config == original.config
    for name, values in checkpoint.talker.items():
        if name.startswith(packed_form.PREFIX):
            assert values.data_ptr() % packed_form.ALIGNMENT == 0
        elif values.is_meta:
            assert values.shape == original.talker[name].shape
        else:
            assert torch.equal(values, original.talker[name])
    assert {path.name for path in whole.iterdir()} >= {*loading.MODEL_FILES, "speech_tokenizer"}
    with TTSEngine.from_pretrained(whole, warmup=False) as tts:
        assert tts.weights == "int8" and "int8 weights mapped from the file" in tts.why


@pytest.mark.parametrize("name", cpu_library.supported_sets()[:1] + OTHER_SETS)
def test_the_vocoders_weights_may_be_float16(tmp_path, monkeypatch, name):
    """The samples are those of weights that are rounded in float32."""
    monkeypatch.setenv(cpu_library.FORCED, name)
    folder = tmp_path / "model"
    words = ["convert", "demo-voice", "--vocoder-weights", "float16", "-o", str(folder), "--quiet"]
    assert main.main(words) == 0
    with TTSEngine.from_pretrained(folder, warmup=False) as tts:
        assert tts.weights is None and tts.vocoder_weights == "float16"
        assert tts.why.endswith("; weights mapped from the file; the vocoder's in float16")
        found = tts.synthesize(TEXT, **HOW).codes
    pool = cpu_library.CpuPool(cpu_library.open_library(), 2)
    mapped, original = (loading.load(loading.resolve(each)) for each in (folder, "demo-voice"))
    half = CpuVocoder(mapped.codec_config, mapped.codec_decoder, pool)
    assert half.packed.data_ptr() == mapped.codec_decoder[PACKED].data_ptr()
    full = CpuVocoder(original.codec_config, original.codec_decoder, pool)
    weights = full.packed.view(torch.float32)
    assert half.packed.dtype == torch.float16 and torch.equal(half.packed, weights.half())
    weights.copy_(half.packed)  # native code reads them here
    assert torch.equal(half.tables, full.tables.half())
    full.tables.copy_(half.tables)
    np.testing.assert_array_equal(half.decode(found), full.decode(found))


def test_voices_are_cloned_as_before(tmp_path):
    folder = converted("tiny-random-base", "int8", tmp_path / "model")
    sound = np.sin(np.arange(48000) / 9).astype(np.float32) / 3
    vectors = []
    for model in ("tiny-random-base", folder):
        with TTSEngine.from_pretrained(model, backend="cpu", warmup=False) as tts:
            vectors.append(tts.create_voice(sound, TEXT, rate=24000))
    assert np.array_equal(vectors[0].x_vector, vectors[1].x_vector)
    assert np.array_equal(vectors[0].codes, vectors[1].codes)


def speak_elsewhere(folder: Path, found: "multiprocessing.Queue[list]") -> None:
    found.put(codes(folder).tolist())


@pytest.mark.ci
def test_processes_speak_at_the_same_time(whole):
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    processes = [context.Process(target=speak_elsewhere, args=(whole, found)) for _ in range(2)]
    for process in processes:
        process.start()
    first, second = (found.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert first == second == codes(whole).tolist()


def test_packed_weights_are_kept_for_the_next_start(tmp_path, monkeypatch):
    original = Path(shutil.copytree(loading.resolve("tiny-random").folder, tmp_path / "original"))
    monkeypatch.setenv("QWEN_MEGAKERNEL_CACHE", str(tmp_path / "cache"))
    expected, calls = codes(original, weights="int8"), []
    watch(monkeypatch, conversion, "convert", lambda *given: calls.append(given[1]))
    for weights in ("int8", "int8", None):
        with TTSEngine.from_pretrained(
            original, warmup=False, weights=weights, keep_packed=True
        ) as tts:
            assert "mapped from the file" in tts.why and tts.weights == weights
            assert tts.files.name == str(original)
    assert calls == ["int8", None]
    assert doctor.report()["kept_packed"] == [f"{original}, int8", f"{original}, as stored"]
    assert np.array_equal(codes(original, weights="int8", keep_packed=True), expected)
    os.utime(original / loading.WEIGHTS)  # another file, perhaps
    codes(original, weights="int8", keep_packed=True)
    assert calls == ["int8", None, "int8"]
    (original / loading.GENERATION_CONFIG).write_text('{"top_k": 7}')  # it is copied, too
    with TTSEngine.from_pretrained(original, warmup=False, weights="int8", keep_packed=True) as tts:
        assert tts._defaults.sampling.talker.top_k == 7
    assert calls == ["int8", None, "int8", "int8"]
    old = min((tmp_path / "cache").glob("packed-int8-*"))
    edited(old / loading.WEIGHTS, version=1)
    (unusable, *_) = doctor.report()["kept_packed"]
    assert unusable.startswith(f"{old.name}, unusable: ") and "has version 1" in unusable
    with pytest.raises(UsageError, match="the backend is torch"):
        TTSEngine.from_pretrained(original, backend="torch", keep_packed=True)


# ---- what cannot be read -------------------------------------------------------------------------


@pytest.mark.parametrize("form", VOCODER_WEIGHTS)
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"backend": "torch"}, "backend torch cannot read it.\nUse backend cpu"),
        ({"backend": "emulation"}, "backend emulation cannot read it"),
        ({"dtype": "bfloat16"}, "backend torch cannot read it"),
        ({"weights": "int8-talker"}, "was converted to 'int8'.\nLeave weights out"),
    ],
)
def test_what_cannot_read_it_refuses_by_name(whole_of, form, options, told):
    with pytest.raises(UsageError) as caught:
        TTSEngine.from_pretrained(whole_of(form), warmup=False, **options)
    assert told in str(caught.value) and "tiny-random" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("decoders.cpu.decoder.open_library", BuildError("There is no compiler.")),
        ("tts_engine.CpuVocoder", UnsupportedModel("This codec is too odd.")),
    ],
)
def test_without_native_code_nothing_replaces_it(whole, monkeypatch, name, error):
    monkeypatch.setattr(f"qwen_megakernel.{name}", Mock(side_effect=error))
    with pytest.raises(type(error), match=error.what):
        TTSEngine.from_pretrained(whole, warmup=False)


def test_half_a_converted_model_is_refused_or_speaks(whole, broken):
    """A codec may be shared by several models, so either file may be the original's."""
    original = loading.resolve("tiny-random")
    shutil.copy(original.speech_tokenizer / loading.WEIGHTS, broken / CODEC)
    assert_same(spoken(broken), spoken("tiny-random", weights="int8"))
    shutil.copy(whole / CODEC, broken / CODEC)
    shutil.copy(original.folder / loading.WEIGHTS, broken / loading.WEIGHTS)
    with pytest.raises(ModelFilesError, match="is part of a converted model, and the file of"):
        codes(broken)


def header_of(path: Path) -> tuple[dict, bytes]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write_header(path: Path, header: dict, data: bytes) -> None:
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % packed_form.ALIGNMENT)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def edited(path: Path, **changes) -> None:
    """Change what a file says of itself; its tensors stay."""
    header, data = header_of(path)
    form = json.loads(header["__metadata__"][packed_form.KEY])
    header["__metadata__"][packed_form.KEY] = json.dumps(form | changes)
    write_header(path, header, data)


def rewrite(path: Path, form: packed_form.PackedForm, changes: dict) -> None:
    """Write a file with another form, and with other values of some tensors, or without them."""
    described, values = safetensors_file.describe(path), {}
    # The packed ones come first, where they are aligned.
    for name in sorted(described, key=lambda name: ".packed." not in name):
        mapped = safetensors_file.MappedTensors(path, "")[name]
        if (value := changes.get(name, mapped)) is not None:
            values[name] = value
    tensors = {name: (described[name][0], tuple(value.shape)) for name, value in values.items()}
    data = [value.reshape(-1).view(torch.uint8).numpy() for value in values.values()]
    new = path.with_name("new")
    safetensors_file.write(new, tensors, data, form.metadata(), alignment=64, summed=True)
    new.rename(path)


@pytest.mark.parametrize("file", [loading.WEIGHTS, CODEC])
@pytest.mark.parametrize("place", [0.001, 0.3, 0.6, 0.999])
def test_a_flipped_byte_anywhere_in_the_data_is_noticed(broken, file, place):
    path = broken / file
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    content[start + int(place * (len(content) - start))] ^= 4
    path.write_bytes(content)
    with pytest.raises(ModelFilesError, match="its bytes are not those that were written"):
        loading.load(loading.resolve(str(broken)))


@pytest.mark.parametrize("num_bytes", [16, 4096, 70_001])
def test_the_sum_is_that_of_all_words_in_pieces_of_any_number(tmp_path, monkeypatch, num_bytes):
    monkeypatch.setattr(safetensors_file, "SCAN_BYTES", 4096)
    monkeypatch.setattr(safetensors_file, "SUM_BYTES", 8192)
    values = np.random.default_rng(1).integers(0, 256, num_bytes, np.uint8)
    path, tensors = tmp_path / "a.safetensors", {"a": ("U8", (num_bytes,))}
    safetensors_file.write(path, tensors, [values], {}, summed=True)
    words = np.pad(values, (0, -num_bytes % 8)).view("<u8")
    expected = sum(map(int, words)) % 2**64
    assert safetensors_file.metadata(path)[safetensors_file.SUM] == f"{expected:016x}"
    safetensors_file.check(path, {"a": (num_bytes,)}, is_summed=True)


@pytest.mark.parametrize("file", [loading.WEIGHTS, CODEC])
def test_a_file_that_was_cut_short_is_refused(broken, file):
    path = broken / file
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelFilesError, match="is damaged"):
        loading.load(loading.resolve(str(broken)))


@pytest.mark.parametrize("file", [loading.WEIGHTS, CODEC])
def test_a_process_whose_file_is_shortened_says_so_when_it_ends(broken, file):
    source = f"""
import os
from qwen_megakernel import TTSEngine
with TTSEngine.from_pretrained({str(broken)!r}, warmup=False) as tts:
    os.truncate({str(broken / file)!r}, 4096)
    tts.synthesize("Hello.", voice="vivian")
"""
    how = {"capture_output": True, "text": True, "cwd": broken}  # where a core may be written
    done = subprocess.run([sys.executable, "-c", source], **how)
    assert done.returncode == -signal.SIGBUS
    assert "error: a file of the model was shortened or overwritten" in done.stderr


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"version": 1}, f"it has version 1 of the packed form, not {packed_form.VERSION}"),
        ({"parts": {}}, "does not fit its config.json"),
        ({"parts": {"x": ["model.no.weight"]}}, "it has packed talker.model.no.weight, which is"),
        ({"parts": {"x": [3]}}, "a name is no text"),
        ({"parts": 3}, "cannot be read"),
        ({"dtype": "U8"}, "its form is 'int8' of 'U8'"),
        ({"weights": "int3"}, "its form is 'int3'"),
    ],
)
def test_a_file_of_another_version_is_refused(broken, changes, told):
    edited(broken / loading.WEIGHTS, **changes)
    with pytest.raises(ModelFilesError) as caught:
        loading.load(loading.resolve(str(broken)))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("file", "packed", "norm", "told"),
    [
        (
            *(loading.WEIGHTS, "model.layers.0.self_attn.q+k+v", "talker.model.norm.weight"),
            "are not those of its config",
        ),
        (
            *(CODEC, "vocoder", "decoder.pre_transformer.norm.weight"),
            "does not have the packed tensors",
        ),
    ],
)
def test_no_other_tensor_passes_for_a_packed_one(broken, file, packed, norm, told):
    """Native code would read a norm without values."""
    path = broken / file
    form = packed_form.read(path)
    parts = {name: list(names) for name, names in form.parts.items()}
    parts[packed].append(norm.partition(".")[2])
    rewrite(path, dataclasses.replace(form, parts=parts), {norm: None})
    with pytest.raises(ModelFilesError, match=told):
        codes(broken)


def test_a_form_that_the_bytes_do_not_have_is_refused(broken):
    edited(broken / loading.WEIGHTS, weights=None)
    with pytest.raises(ModelFilesError, match="packed matrices are not those of its config"):
        codes(broken)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("vocoder", "packed vocoder has {} bytes"),
        ("codebooks", "bytes of codebooks.* it has {} at"),
    ],
)
def test_a_packed_vocoder_of_another_size_is_refused(broken, name, told):
    path, name = broken / CODEC, f"decoder.packed.{name}"
    short = safetensors_file.MappedTensors(path, "")[name][:-64]
    rewrite(path, packed_form.read(path), {name: short})
    with pytest.raises(ModelFilesError, match=told.format(short.nbytes)):
        codes(broken)


@pytest.mark.parametrize(
    ("form", "dtype"), [("float32", "F16"), ("float16", "U8"), ("float16", "BF16")]
)
def test_a_vocoder_of_another_number_format_is_refused(whole_of, tmp_path, form, dtype):
    """The codebooks, which have the same format, are looked at first."""
    path = Path(shutil.copytree(whole_of(form), tmp_path / "model")) / CODEC
    header, data = header_of(path)
    packed = header["decoder.packed.vocoder"]
    start, end = packed["data_offsets"]
    packed |= {"dtype": dtype, "shape": [(end - start) // safetensors_file.DTYPES[dtype].itemsize]}
    write_header(path, header, data)
    with pytest.raises(ModelFilesError, match=r"needs \d+ bytes of codebooks, .*; it has"):
        codes(tmp_path / "model")


def test_the_codebooks_are_read_where_they_are_mapped(whole):
    loaded = loading.load(loading.resolve(whole))
    pool = cpu_library.CpuPool(cpu_library.open_library(), 1)
    vocoder = CpuVocoder(loaded.codec_config, loaded.codec_decoder, pool)
    assert vocoder.tables.data_ptr() == loaded.codec_decoder[TABLES].data_ptr()
    original = loading.load(loading.resolve("tiny-random"))
    computed = Vocoder(original.codec_config, original.codec_decoder)._codebooks.tables
    assert torch.equal(vocoder.tables, computed)


def test_the_config_of_another_model_is_refused(broken):
    other = loading.resolve("tiny-random-1.7b").folder
    shutil.copy(other / loading.CONFIG, broken / loading.CONFIG)
    with pytest.raises(ModelFilesError):
        codes(broken)


# ---- writing -------------------------------------------------------------------------------------


def test_a_folder_that_exists_stays_as_it_is(whole, tmp_path):
    before = sorted(path.name for path in whole.iterdir())
    with pytest.raises(OutputError, match="exists"):
        converted("tiny-random", None, whole)
    assert sorted(path.name for path in whole.iterdir()) == before


def test_a_converted_model_is_not_converted_again(whole, tmp_path):
    with pytest.raises(UsageError, match="it has been converted already"):
        converted(str(whole), "int8", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    write = safetensors_file.write

    def full(path, *arguments, **options):
        write(path, *arguments, **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors_file, "write", full)
    with pytest.raises(OutputError, match="No space left on device"):
        converted("tiny-random", "int8", tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_of_two_conversions_at_once_one_is_whole_and_one_an_error(tmp_path, monkeypatch):
    write = safetensors_file.write

    def slow(path, *arguments, **options):
        write(path, *arguments, **options)
        monkeypatch.setattr(safetensors_file, "write", write)
        converted("tiny-random", "int8", tmp_path / "model")

    monkeypatch.setattr(safetensors_file, "write", slow)
    with pytest.raises(OutputError):
        converted("tiny-random", "int8", tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert len(codes(tmp_path / "model"))


def test_a_replaced_or_deleted_file_goes_on_speaking(broken):
    with TTSEngine.from_pretrained(broken, backend="cpu", warmup=False) as tts:
        voice = tts.voices[0]
        before = tts.synthesize(TEXT, voice=voice, **HOW).codes
        path = broken / loading.WEIGHTS
        path.rename(path.with_suffix(".old"))
        path.write_bytes(b"something else")
        shutil.rmtree(broken)
        assert np.array_equal(tts.synthesize(TEXT, voice=voice, **HOW).codes, before)


def test_tensors_without_values_import_nothing(whole):
    """Some of PyTorch's functions for them are Python code: a second and 100 MB to import."""
    program = (
        "import sys; from qwen_megakernel import TTSEngine; "
        f"TTSEngine.from_pretrained({str(whole)!r}, backend='cpu').close(); "
        "print('sympy' in sys.modules)"
    )
    done = run("-c", program)
    assert done.stdout == "False\n", done.stderr
