"""Resolving a name to files and loading them: accepted folders, and the errors of others."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tolerances import ROUNDING_F32

from qwen_megakernel import TTSEngine
from qwen_megakernel.checkpoint import codec_layout, loading, random_weights, safetensors_file
from qwen_megakernel.checkpoint.codec_config import parse_codec_config
from qwen_megakernel.checkpoint.random_configs import RECIPES, speech_tokenizer_config
from qwen_megakernel.checkpoint.tensor_shapes import codec_tensors
from qwen_megakernel.decoders.coreml.export import MANIFEST, ExportOptions, export
from qwen_megakernel.errors import ModelFilesError, UnsupportedModel
from qwen_megakernel.families import load_engine
from qwen_megakernel.speech_options import Sampling

Q_PROJ = "talker.model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path, model_folder) -> Path:
    """A copy of tiny-random to damage, alone in its folder."""
    return Path(shutil.copytree(model_folder("tiny-random"), tmp_path / "shelf" / "model"))


def load(folder: Path) -> loading.Checkpoint:
    return loading.load(loading.resolve(str(folder)))


def edit_json(path: Path, change: Callable[[dict], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def edit_weights(path: Path, change: Callable[[dict], object]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


# Layouts of a folder


@pytest.mark.parametrize(
    "place",
    ["model/speech_tokenizer", "Qwen3-TTS-Tokenizer-12Hz", "speech_tokenizer"],
    ids=["inside", "hub-sibling", "sibling"],
)
def test_the_speech_tokenizer_is_found_in_three_places(folder, place):
    target = folder.parent / place
    (folder / "speech_tokenizer").rename(target)
    files = loading.resolve(str(folder))
    assert files.speech_tokenizer.samefile(target)
    assert files.banner is None
    assert not files.is_synthetic
    assert len(loading.load(files).codec_decoder) > 100


def test_a_fourth_place_fails_and_names_the_three(folder):
    (folder / "speech_tokenizer").rename(folder / "codec")
    with pytest.raises(ModelFilesError, match="has no speech tokenizer") as caught:
        loading.resolve(str(folder))
    for place in ("model/speech_tokenizer", "Qwen3-TTS-Tokenizer-12Hz", "shelf/speech_tokenizer"):
        assert place in caught.value.why
    assert caught.value.exit_code == 4


def test_a_codec_without_encoder_loads_but_half_an_encoder_does_not(folder):
    path = folder / "speech_tokenizer" / "model.safetensors"

    def drop(tensors: dict, keep: int) -> None:
        for name in [name for name in tensors if name.startswith("encoder.")][keep:]:
            del tensors[name]

    edit_weights(path, lambda tensors: drop(tensors, keep=3))
    with pytest.raises(ModelFilesError, match="Tensors missing: 150, unknown: 0"):
        load(folder)
    edit_weights(path, lambda tensors: drop(tensors, keep=0))
    assert not load(folder).has_codec_encoder


# Folders without some of the config files


@pytest.fixture(scope="module")
def official_heads(tmp_path_factory) -> Path:
    """A small folder with the heads, windows and bases of the released codec, which no tensor's
    shape shows."""
    config = speech_tokenizer_config("tiny-random")
    released = speech_tokenizer_config("random-0.6b")
    for section, keys in codec_layout.UNTOLD.items():
        config[section] |= {key: released[section][key] for key in keys}
    config["encoder_config"]["upsample_groups"] = 512  # the encoder does not use it
    folder = tmp_path_factory.mktemp("shelf") / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_weights, "speech_tokenizer_config", lambda _: config)
        random_weights.write_checkpoint("tiny-random-base", folder)
    return folder


@pytest.fixture
def bare(official_heads, tmp_path) -> Path:
    """`official_heads` without generation_config.json, and of the codec only the weights."""
    folder = Path(shutil.copytree(official_heads, tmp_path / "shelf" / "model"))
    (folder / "generation_config.json").unlink()
    for path in (folder / "speech_tokenizer").glob("*.json"):
        path.unlink()
    return folder


@pytest.mark.parametrize("place", ["model/speech_tokenizer", "Qwen3-TTS-Tokenizer-12Hz"])
def test_sizes_of_a_codec_without_config_are_those_of_its_tensors(
    official_heads, bare, place, caplog
):
    (bare / "speech_tokenizer").rename(bare.parent / place)
    ours, told = load(bare), [record.getMessage() for record in caplog.records]
    complete = load(official_heads)
    assert ours.codec_config == complete.codec_config
    assert ours.codec_config.decoder.hidden_size == 32  # and not the released 512
    assert ours.has_codec_encoder
    assert (ours.sampling, ours.max_new_tokens) == (Sampling(), 2048)
    [codec] = [line for line in told if line.startswith(str(bare.parent.resolve() / place))]
    for value in (
        "decoder num_attention_heads 16",
        "decoder sliding_window 72",
        "rope_theta 10000",
    ):
        assert value in codec
    [drawn] = [line for line in told if "generation_config.json" in line]
    assert "temperature 0.9" in drawn and "max_new_tokens 2048" in drawn


def test_a_bare_folder_speaks_as_the_complete_one(official_heads, bare):
    said = []
    for folder in (official_heads, bare):
        with TTSEngine.from_pretrained(folder, backend="torch", warmup=False) as tts:
            said.append(tts.synthesize("Hello.", seed=1, max_frames=4))
    assert np.array_equal(said[0].codes, said[1].codes)
    assert np.array_equal(said[0].audio, said[1].audio)


def test_a_bare_folder_is_exported_with_what_it_has(bare, tmp_path):
    pytest.importorskip("coremltools")
    export(load(bare), tmp_path / "out", ExportOptions(16), names=())
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {MANIFEST, *loading.NEEDED_FILES} - {loading.WEIGHTS}


def test_the_released_codec_is_read_from_its_shapes():
    values = speech_tokenizer_config("random-0.6b")
    assert codec_layout.layout_of(codec_tensors(parse_codec_config(values))) == values


HEADS = "decoder.pre_transformer.layers.0.self_attn.q_proj.weight"
UPSAMPLING = "decoder.decoder.1.block.1.conv.weight"
LAYER = "decoder.pre_transformer.layers.1.mlp.gate_proj.weight"
CODEBOOK = "decoder.quantizer.rvq_rest.vq.layers.14._codebook.embedding_sum"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors.update({HEADS: tensors[HEADS][:64]}), HEADS),
        (lambda tensors: tensors.update({UPSAMPLING: tensors[UPSAMPLING][..., :-2]}), UPSAMPLING),
        (lambda tensors: tensors.update({LAYER: tensors[LAYER][:-1]}), LAYER),
        (lambda tensors: tensors.update({CODEBOOK: tensors[CODEBOOK][:-1]}), CODEBOOK),
        (lambda tensors: tensors.pop(LAYER), f"{LAYER} [64, 32] missing"),
    ],
    ids=["heads", "rate", "layer", "codebook", "missing"],
)
def test_a_codec_without_config_that_is_not_the_official_one_is_refused_by_name(
    bare, change, named
):
    def damage(tensors: dict) -> None:
        change(tensors)
        tensors.update({name: tensor.contiguous() for name, tensor in tensors.items()})

    edit_weights(bare / "speech_tokenizer" / "model.safetensors", damage)
    with pytest.raises(ModelFilesError, match="has no config") as caught:
        load(bare)
    assert named in caught.value.why and "model.safetensors" in caught.value.what


def test_a_folder_without_the_codecs_weights_is_refused(bare):
    (bare / "speech_tokenizer" / "model.safetensors").unlink()
    with pytest.raises(ModelFilesError, match=r"speech_tokenizer has no model\.safetensors"):
        load(bare)


# Wrong folders


def test_a_folder_of_something_else_lists_what_is_there(tmp_path):
    (tmp_path / "a.bin").touch()
    (tmp_path / "b.txt").touch()
    with pytest.raises(ModelFilesError, match=r"has no config\.json") as caught:
        loading.resolve(str(tmp_path))
    assert caught.value.why == "Looked for Qwen3-TTS files; found: a.bin, b.txt."
    (tmp_path / "voice.json").touch()
    with pytest.raises(ModelFilesError, match=r"has no config\.json") as caught:
        loading.resolve(str(tmp_path))
    hint = "It is a voice of `train run`: give it as the adapter, or use `train merge`."
    assert caught.value.hint == hint


def test_the_codec_folder_alone_is_recognised(folder):
    with pytest.raises(ModelFilesError, match="is the codec") as caught:
        loading.resolve(str(folder / "speech_tokenizer"))
    assert "talker" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model_type": "qwen3"}, ModelFilesError, "'qwen3' is not a Qwen3-TTS model"),
        (
            {"tokenizer_type": "qwen3_tts_tokenizer_25hz"},
            UnsupportedModel,
            "tokenizer_type qwen3_tts_tokenizer_25hz is not supported",
        ),
        ({"talker_config": None}, ModelFilesError, "talker_config is None, not an object"),
    ],
    ids=["a text model", "25 Hz", "another type"],
)
def test_a_config_of_another_model_is_refused(folder, change, error, message):
    edit_json(folder / "config.json", lambda values: values.update(change))
    with pytest.raises(error, match=message):
        loading.resolve(str(folder))


@pytest.mark.parametrize("name", loading.NEEDED_FILES)
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ModelFilesError, match=f"has no {name}"):
        loading.resolve(str(folder))


def test_a_misspelt_name_is_corrected():
    with pytest.raises(ModelFilesError) as caught:
        loading.resolve("tiny-randon")
    assert all(name in caught.value.why for name in RECIPES)
    assert caught.value.hint == 'Did you mean "tiny-random"?'


@pytest.mark.parametrize(
    "name",
    [
        *("a/b--c", "a/..", "a/b.git", "a/b.", "-a/b", "modèles/voix", "~no_such_user/voice"),
        *("a" * 300, "a\0b"),
    ],
)
def test_a_name_that_no_hub_has_is_called_no_folder(name):
    with pytest.raises(ModelFilesError, match="no built-in model of that name"):
        loading.resolve(name)
    with pytest.raises(ModelFilesError, match="There is no folder"):
        load_engine(name)


def test_a_file_instead_of_its_folder_is_recognised(folder):
    with pytest.raises(ModelFilesError, match="is a file"):
        loading.resolve(str(folder / "model.safetensors"))


# Damaged contents


def test_a_missing_key_of_a_config_is_named(folder):
    edit_json(folder / "config.json", lambda values: values["talker_config"].pop("head_dim"))
    with pytest.raises(ModelFilesError, match="has no key 'head_dim'"):
        loading.resolve(str(folder))


def test_wrong_sampling_values_are_a_fault_of_the_file(folder):
    edit_json(folder / "generation_config.json", lambda values: values.update(temperature=0))
    with pytest.raises(ModelFilesError, match=r"generation_config\.json: temperature is 0"):
        load(folder)


def test_max_new_tokens_has_the_official_default(folder):
    edit_json(folder / "generation_config.json", lambda values: values.pop("max_new_tokens"))
    assert load(folder).max_new_tokens == 2048


@pytest.mark.parametrize("size", [0, 7, 5000, -1])
@pytest.mark.parametrize("path", ["model.safetensors", "speech_tokenizer/model.safetensors"])
def test_a_truncated_file_is_called_damaged(folder, path, size):
    data = (folder / path).read_bytes()
    (folder / path).write_bytes(data[:size])
    with pytest.raises(ModelFilesError, match="is damaged") as caught:
        load(folder)
    assert path in caught.value.what


@pytest.mark.timeout(20)
def test_a_file_that_is_cut_short_while_it_is_checked_is_no_endless_loop(folder, monkeypatch):
    path, describe = folder / "model.safetensors", safetensors_file.describe

    def cut(path: Path) -> dict:
        found = describe(path)
        os.truncate(path, path.stat().st_size - 1024)
        return found

    monkeypatch.setattr(safetensors_file, "describe", cut)
    with pytest.raises(ModelFilesError, match="It was cut short after it had been checked"):
        safetensors_file.check(path, {name: shape for name, (_, shape) in describe(path).items()})


def test_a_file_that_may_not_be_read_is_not_called_damaged(folder, monkeypatch):
    path = folder / "model.safetensors"
    refusal = FileNotFoundError(f"No such file or directory: {path}")  # as safetensors has it
    monkeypatch.setattr(safetensors_file, "safe_open", Mock(side_effect=refusal))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ModelFilesError) as caught:
        load(folder)
    assert str(caught.value) == f"Cannot read {path}: Permission denied."


def test_a_git_lfs_pointer_is_called_damaged(folder):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "model.safetensors").write_text(pointer)
    with pytest.raises(ModelFilesError, match="is damaged") as caught:
        load(folder)
    assert "LFS" in caught.value.why


def test_missing_unknown_and_misshapen_tensors_are_counted_and_shown(folder):
    def damage(tensors: dict) -> None:
        tensors[Q_PROJ] = tensors[Q_PROJ][:-1].contiguous()
        for layer in range(3):
            del tensors[f"talker.model.layers.{layer}.mlp.up_proj.weight"]
        tensors["talker.extra.weight"] = torch.zeros(2, 3)
        tensors["lm_head.weight"] = torch.zeros(4)

    edit_weights(folder / "model.safetensors", damage)
    with pytest.raises(ModelFilesError) as caught:
        load(folder)
    assert "Tensors missing: 3, unknown: 2, of another shape: 1." in caught.value.what
    assert f"{Q_PROJ} [511, 128] should be [512, 128]" in caught.value.why
    assert "talker.model.layers.0.mlp.up_proj.weight [256, 128] missing" in caught.value.why
    assert "lm_head.weight [4] unknown" in caught.value.why
    assert caught.value.why.count(";") == 5
    assert caught.value.why.endswith("and 1 more.")


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop(Q_PROJ),
        lambda tensors: tensors.update(extra=torch.zeros(1)),
        lambda tensors: tensors.update({Q_PROJ: tensors[Q_PROJ].T.contiguous()}),
    ],
    ids=["missing", "unknown", "transposed"],
)
def test_one_wrong_tensor_is_enough(folder, change):
    edit_weights(folder / "model.safetensors", change)
    with pytest.raises(ModelFilesError, match=r"does not fit its config\.json"):
        load(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_value_that_is_not_finite_is_found_wherever_it_is(folder, dtype, value):
    names = ("talker.codec_head.weight", "talker.text_projection.linear_fc1.bias")

    def damage(tensors: dict) -> None:
        for name in names:
            tensors[name] = tensors[name].to(dtype)
            tensors[name].view(-1)[-1] = value

    edit_weights(folder / "model.safetensors", damage)
    with pytest.raises(ModelFilesError, match="NaN or Inf: 2") as caught:
        load(folder)
    assert all(name in caught.value.why for name in names)


def test_a_damaged_codec_value_is_found(folder):
    path = folder / "speech_tokenizer" / "model.safetensors"
    edit_weights(path, lambda tensors: tensors["decoder.decoder.0.conv.bias"].fill_(float("nan")))
    with pytest.raises(ModelFilesError, match="NaN or Inf: 1"):
        load(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_storage_dtypes_are_kept_for_the_talker(folder, dtype):
    before = load(folder).talker["codec_head.weight"].clone()
    edit_weights(
        folder / "model.safetensors",
        lambda tensors: tensors.update({k: t.to(dtype) for k, t in tensors.items()}),
    )
    loaded = load(folder)
    assert {tensor.dtype for tensor in loaded.talker.values()} == {dtype}
    assert torch.allclose(
        loaded.talker["codec_head.weight"].float(), before.float(), atol=ROUNDING_F32, rtol=0
    )


def test_the_codec_is_converted_to_float32(folder):
    edit_weights(
        folder / "speech_tokenizer" / "model.safetensors",
        lambda tensors: tensors.update({k: t.bfloat16() for k, t in tensors.items()}),
    )
    loaded = load(folder)
    tensors = {**loaded.codec_decoder, **loaded.load_prefix("encoder.")}
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e4m3fn])
def test_another_dtype_is_refused(folder, dtype):
    edit_weights(
        folder / "model.safetensors",
        lambda tensors: tensors.update({Q_PROJ: tensors[Q_PROJ].to(dtype)}),
    )
    with pytest.raises(ModelFilesError, match="not supported: 1") as caught:
        load(folder)
    assert Q_PROJ in caught.value.why
    assert caught.value.hint == "Known: BF16, F16, F32."


def test_a_talker_and_a_codec_of_different_models_do_not_mix(folder):
    shutil.rmtree(folder / "speech_tokenizer")
    demo = loading.resolve("demo-voice").speech_tokenizer
    shutil.copytree(demo, folder / "speech_tokenizer")
    with pytest.raises(ModelFilesError, match=r"draws 16 codes of 2048 .* decodes 8 of 256"):
        load(folder)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_tensors_are_views_of_the_mapped_file(model_folder):
    path = model_folder("tiny-random") / "model.safetensors"
    tensors = load(path.parent).talker
    ranges = [
        tuple(int(address, 16) for address in line.split()[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(path))
    ]
    for name, tensor in tensors.items():
        assert any(first <= tensor.data_ptr() < last for first, last in ranges), name
