"""Core ML: the exported models, run without an Apple machine, equal the plain decoder."""

import functools
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import mil
import numpy as np
import pytest
import torch
from commands import ROOT, lines
from tiny_speech import speak
from tolerances import COREML_AUDIO_F32, COREML_HIDDEN_F16, COREML_HIDDEN_F32, ROUNDING_F32

from qwen_megakernel import TTSEngine
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.cli import export as cli_export
from qwen_megakernel.cli.main import main
from qwen_megakernel.decoders import backends
from qwen_megakernel.decoders.coreml import decoder as coreml_decoder
from qwen_megakernel.decoders.coreml import export as coreml_export
from qwen_megakernel.decoders.coreml.export import MANIFEST, MODELS, ExportOptions, export
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.decoders.prompt import PromptBuilder
from qwen_megakernel.decoders.quantization import QuantizedMatrix
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.engine.speech import Speech
from qwen_megakernel.errors import MissingPackageError, OutputError, SetupError, UsageError
from qwen_megakernel.speech_options import Sampling, SpeechOptions
from qwen_megakernel.text.tokenizer import TextTokenizer
from qwen_megakernel.vocoder.vocoder import Vocoder

# coremltools takes seconds to convert a model: a default run has one cheap model of each kind.
ci = pytest.mark.ci
CPU = torch.device("cpu")
NUM_POSITIONS, CHUNK_FRAMES = 24, 3


@pytest.fixture(scope="module")
def converted(load_checkpoint, tmp_path_factory):
    """A checkpoint, and the folder of its six models in float32."""
    loaded = load_checkpoint("tiny-random")
    folder = tmp_path_factory.mktemp("coreml")
    options = ExportOptions(NUM_POSITIONS, "float32", chunk_frames=CHUNK_FRAMES)
    export(loaded, folder, options)
    return loaded, folder


def plain_decoder(loaded):
    return PlainDecoder(loaded, DecoderSizes(1, NUM_POSITIONS, CPU, torch.float32))


def number(value):
    return np.array([value], dtype=np.int32)


def stack_of(folder, name):
    """Return one of the exported stacks, as a decoder uses it."""
    return coreml_decoder.CoreMLStack(mil.load(folder, name))


def distance(found, expected):
    """Return the largest difference, relative to the largest expected value."""
    return float((found - expected).abs().max() / expected.abs().max())


@ci
def test_every_model_is_there_with_what_an_app_needs(converted):
    loaded, folder = converted
    found = {path.name for path in folder.iterdir()}
    assert {f"{name}.mlpackage" for name in MODELS} <= found
    assert {MANIFEST, "config.json", "vocab.json"} <= found
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["models"] == list(MODELS) and manifest["num_positions"] == NUM_POSITIONS
    size = loaded.config.talker.stack.num_layers * loaded.config.talker.stack.kv_size
    state = mil.load(folder, "CodeDecoder").make_state()
    assert [tuple(s.shape) for s in state.values.values()] == [(1, size, 1, NUM_POSITIONS)] * 2


@ci
def test_no_program_has_an_inexact_inverse(converted):
    """Core ML's `inverse` adds 1e-4 to a divisor, and its batch_norm adds 1e-5."""
    _, folder = converted
    for name in MODELS:
        kinds = {operation.op_type for operation in mil.load(folder, name).operations}
        assert not kinds & {"inverse", "batch_norm"} and len(kinds) > 2


@ci
def test_embeddings_are_the_checkpoints(converted):
    loaded, folder = converted
    embeddings = plain_decoder(loaded).embeddings
    size = loaded.config.predictor.vocab_size
    text, code, codes = (mil.load(folder, name) for name in MODELS[:3])
    for index in (0, 7, 63):
        ids = torch.tensor([index])
        expected = {
            text: embeddings.text(ids)[0],
            code: embeddings.codec(ids)[0],
            codes: embeddings.code_tables[2][index],
        }
        for model, row in expected.items():
            token = index + 2 * size if model is codes else index
            found = model.predict({"token": number(token)})["embedding"]
            torch.testing.assert_close(torch.from_numpy(found.reshape(-1)), row, atol=0, rtol=0)


@ci
def test_the_talker_is_the_plain_decoders(converted):
    loaded, folder = converted
    talker, plain = stack_of(folder, "CodeDecoder"), plain_decoder(loaded)
    torch.manual_seed(0)
    x = torch.randn(NUM_POSITIONS, loaded.config.talker.stack.hidden_size)
    cache, plain_cache = talker.new_cache(NUM_POSITIONS), plain.talker.new_cache(NUM_POSITIONS)
    for begin, end in ((0, 5), (5, 6), (6, NUM_POSITIONS)):
        found = talker.run(x[begin:end], cache, begin)
        hidden = plain.talker.forward(x[begin:end], plain_cache, begin)[-1]
        assert distance(found["hidden"].flatten(), hidden) < COREML_HIDDEN_F32
        assert distance(found["logits"][0], torch.mv(plain.codec_head, hidden)) < COREML_HIDDEN_F32


@pytest.mark.parametrize("model", ["tiny-random", pytest.param("tiny-random-1.7b", marks=ci)])
def test_the_code_predictor_is_the_plain_decoders_in_every_frame(load_checkpoint, tmp_path, model):
    """One model has a projection before the predictor, the other has none."""
    loaded = load_checkpoint(model)
    export(loaded, tmp_path, ExportOptions(NUM_POSITIONS, "float32"), ["MultiCodeDecoder"])
    predictor, plain = stack_of(tmp_path, "MultiCodeDecoder"), plain_decoder(loaded)
    cache = predictor.new_cache(0)  # the same for all frames: no frame reads the cache of another
    torch.manual_seed(0)
    for _ in range(2):
        x = 3 * torch.randn(loaded.config.talker.num_code_groups, plain.codec_head.shape[1])
        for group in range(1, len(x)):
            first = 0 if group == 1 else group
            rows = x[first : group + 1]
            logits = predictor.run(rows, cache, first)["logits"]
            assert (
                distance(logits[group - 1], plain._predict(rows, first, group)) < COREML_HIDDEN_F32
            )


@ci
def test_chunks_of_the_speech_decoder_equal_the_whole(converted):
    loaded, folder = converted
    decoder, config = mil.load(folder, "SpeechDecoder"), loaded.codec_config.decoder
    num_frames = -(-(config.sliding_window + 5) // CHUNK_FRAMES) * CHUNK_FRAMES
    torch.manual_seed(0)
    codes = torch.randint(0, config.codebook_size, (num_frames, config.num_quantizers))
    pcm = mil.decode_speech(decoder, codes.int(), CHUNK_FRAMES)
    whole = Vocoder(loaded.codec_config, loaded.codec_decoder).decode(codes)
    np.testing.assert_allclose(pcm, whole, atol=COREML_AUDIO_F32, rtol=0)


@ci
def test_an_app_that_follows_the_page_speaks(converted):
    """The five steps of docs/coreml.md, "In an app", run with all six models and greedy draws."""
    loaded, folder = converted
    num_frames, talker = 2 * CHUNK_FRAMES, loaded.config.talker
    greedy = Sampling.greedy().override(repetition_penalty=1.0)
    plain = plain_decoder(loaded)
    ids = TextTokenizer(loaded.files.folder, loaded.config).encode("Hi.")
    prompts = PromptBuilder(loaded.config, plain.embeddings)
    prefill = prompts.build(ids, prompts.resolve(SpeechOptions()))
    text = [*prefill.trailing_text, *[prefill.pad_embed] * num_frames]
    plain.prefill(0, prefill, greedy, seed=0, part=0)
    expected = plain.step([0], num_frames).codes[0]

    models = {name: mil.load(folder, name) for name in MODELS}
    states = {name: models[name].make_state() for name in coreml_decoder.MODELS}

    def run(name, x, position):
        given = {"x": np.asarray(x, dtype=np.float32).reshape(1, -1, 1, 1)}
        return models[name].predict(given | {"position": number(position)}, states[name])

    def embedding(code, group):
        name = "MultiCodeEmbedder" if group else "CodeEmbedder"
        token = (group - 1) * loaded.config.predictor.vocab_size + code if group else code
        return models[name].predict({"token": number(token)})["embedding"].reshape(-1)

    for position, row in enumerate(prefill.embeds):  # 1
        found = run("CodeDecoder", row, position)
    codes, pcm = [], []
    past = np.zeros((1, models["SpeechDecoder"].description.input[1].type.multiArrayType.shape[1]))
    for frame in range(num_frames):
        logits = found["logits"][0]  # 2
        end = logits[talker.codec_eos_id] if frame >= 2 else -np.inf
        logits[talker.vocab_size - 1024 :] = -np.inf
        logits[talker.codec_eos_id] = end
        row = [int(logits.argmax())]
        run("MultiCodeDecoder", found["hidden"], 0)  # 3
        for group in range(1, talker.num_code_groups):
            logits = run("MultiCodeDecoder", embedding(row[-1], group - 1), group)["logits"]
            row.append(int(logits[group - 1].argmax()))
        codes.append(row)
        if len(codes) % CHUNK_FRAMES == 0:  # 4
            chunk = np.array(codes[-CHUNK_FRAMES:], dtype=np.int32).T[None].copy()
            found = models["SpeechDecoder"].predict(
                {"codes": chunk, "past": past.astype(np.float32)}
            )
            pcm, past = [*pcm, found["pcm"][0]], found["new_past"]
        x = sum(embedding(code, group) for group, code in enumerate(row)) + text[frame].numpy()  # 5
        found = run("CodeDecoder", x, len(prefill.embeds) + frame)
    np.testing.assert_array_equal(codes, expected)
    whole = Vocoder(loaded.codec_config, loaded.codec_decoder).decode(expected)
    np.testing.assert_allclose(np.concatenate(pcm), whole, atol=COREML_AUDIO_F32, rtol=0)


@ci
def test_half_precision_is_near(load_checkpoint, tmp_path):
    loaded = load_checkpoint("tiny-random")
    export(loaded, tmp_path, ExportOptions(8), ["CodeDecoder"])
    talker, plain = stack_of(tmp_path, "CodeDecoder"), plain_decoder(loaded)
    torch.manual_seed(0)
    x = torch.randn(8, plain.codec_head.shape[1])
    x[:, 0] = 600  # the square is infinite in float16
    found = talker.run(x, talker.new_cache(8), 0)["hidden"].flatten()
    expected = plain.talker.forward(x, plain.talker.new_cache(8), 0)[-1]
    assert 0 < distance(found[1:], expected[1:]) < COREML_HIDDEN_F16


@ci
@pytest.mark.parametrize(("weights", "is_int8"), [("int8-talker", False), ("int8", True)])
def test_8_bit_layers_are_those_of_the_other_decoders(load_checkpoint, tmp_path, weights, is_int8):
    loaded = load_checkpoint("tiny-random")
    options = ExportOptions(8, "float32", weights=weights)
    export(loaded, tmp_path, options, ["MultiCodeDecoder"])
    widened = [
        {part: np.asarray(op.inputs[part].val).squeeze() for part in ("data", "scale")}
        for op in mil.load(tmp_path, "MultiCodeDecoder").operations
        if op.op_type == "constexpr_blockwise_shift_scale"
    ]
    assert len(widened) == is_int8 * 7 * loaded.config.predictor.stack.num_layers
    down = QuantizedMatrix.of(loaded.talker["code_predictor.model.layers.0.mlp.down_proj.weight"])
    same = [each for each in widened if np.array_equal(each["data"], down.values.numpy())]
    assert len(same) == is_int8
    for each in same:
        np.testing.assert_allclose(each["scale"], down.scales.numpy(), rtol=ROUNDING_F32)


# ---- the decoder on two of them


@pytest.fixture
def apple(monkeypatch):
    """A stand-in for an Apple machine; it is slow."""
    monkeypatch.setattr(backends, "has_core_ml", lambda: True)
    monkeypatch.setattr(coreml_decoder, "load_model", lambda path: mil.EmulatedModel(str(path)))


def engine(model="tiny-random", **options):
    return TTSEngine.from_pretrained(
        model,
        **{"backend": "coreml", "dtype": "float32", "max_frames": 64, "warmup": False} | options,
    )


@ci
@pytest.mark.parametrize(
    "options", [{"do_sample": False, "subtalker_do_sample": False}, {"seed": 3}]
)
def test_an_engine_draws_the_plain_decoders_codes(apple, options):
    with engine() as tts:
        found = speak(tts, max_frames=6, **options)
        again = speak(tts, max_frames=6, **options)  # in the same slot
        assert tts.backend == "coreml" and tts.why == "requested"
    with engine(backend="torch") as tts:
        expected = speak(tts, max_frames=6, **options)
    np.testing.assert_array_equal(found.codes, expected.codes)
    np.testing.assert_array_equal(again.codes, expected.codes)


@ci
def test_streams_do_not_see_each_other(apple):
    with engine(num_slots=2) as tts:
        beside, alone = (
            [tts.stream("Hi.", seed=seed, voice="vivian", max_frames=2) for seed in seeds]
            for seeds in ((1, 2), (1,))
        )
        codes = [Speech.collect(stream).codes for stream in (*beside, *alone)]
    np.testing.assert_array_equal(codes[0], codes[2])
    assert not np.array_equal(codes[0], codes[1])


def test_models_are_converted_once_for_each_kind(apple, monkeypatch, load_checkpoint):
    convert = Mock(wraps=coreml_export._convert)
    monkeypatch.setattr(coreml_export, "_convert", convert)
    loaded = load_checkpoint("tiny-random-base")
    for options in (ExportOptions(8), ExportOptions(8), ExportOptions(9)):
        folder = coreml_export.exported(loaded, options, ["CodeEmbedder"])
        assert (folder / MANIFEST).exists()
    made = [call.args[1:3] for call in convert.call_args_list]
    assert made == [("CodeEmbedder", ExportOptions(8)), ("CodeEmbedder", ExportOptions(9))]


def test_two_processes_may_convert_at_once(load_checkpoint, monkeypatch):
    """Two threads stand in for the processes, and both reach the end of the conversion."""
    meeting = threading.Barrier(2)
    write = coreml_export.export

    def export_and_wait(*args):
        write(*args)
        meeting.wait(60)

    monkeypatch.setattr(coreml_export, "export", export_and_wait)
    monkeypatch.setattr(coreml_export, "_convert", lambda *args: NothingToSave())
    loaded = load_checkpoint("tiny-random")
    exported = functools.partial(coreml_export.exported, loaded, ExportOptions(11))
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(exported, [["CodeEmbedder"]] * 2, timeout=60))
    assert folders[0] == folders[1]
    assert (folders[0] / MANIFEST).exists()
    assert not list(folders[0].parent.glob(".coreml-*"))


def test_a_full_disk_is_an_error_of_the_output(load_checkpoint, monkeypatch):
    monkeypatch.setattr(coreml_export, "export", Mock(side_effect=OSError(28, "No space left")))
    with pytest.raises(OutputError, match=r"Cannot write coreml-.*No space left"):
        coreml_export.exported(load_checkpoint("tiny-random"), ExportOptions(12), ["CodeEmbedder"])


class NothingToSave:
    def save(self, path):
        loading.Path(path).mkdir()


# ---- what is refused


def test_without_an_apple_machine_it_is_refused_before_a_file_is_read(monkeypatch):
    monkeypatch.setattr(loading, "resolve", lambda *args, **options: pytest.fail("read"))
    with pytest.raises(SetupError, match="needs macOS 15; this is") as refused:
        engine()
    assert "export coreml" in refused.value.hint


@pytest.mark.parametrize(("version", "runs"), [("", False), ("14.7.1", False), ("15.0", True)])
def test_an_apple_machine_is_one_whose_models_have_states(monkeypatch, version, runs):
    monkeypatch.setattr("platform.mac_ver", lambda: (version, ("", "", ""), ""))
    assert backends.has_core_ml() == runs


def test_a_model_that_core_ml_does_not_take_is_named(monkeypatch, tmp_path):
    def refuse(path):
        raise RuntimeError("no such unit")

    monkeypatch.setattr("coremltools.models.MLModel", refuse)
    with pytest.raises(SetupError, match=r"not load X.mlpackage: no such unit") as refused:
        coreml_decoder.load_model(tmp_path / "X.mlpackage")
    assert str(tmp_path) in refused.value.hint


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "bfloat16"}, "precision is 'bfloat16'; Core ML computes in float16 or float32"),
        ({"device": "cuda"}, "cuda"),
    ],
)
def test_what_core_ml_cannot_do_is_a_usage_error(apple, options, says):
    with pytest.raises((UsageError, SetupError), match=says):
        engine(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "int4"},
        {"speech_precision": "float16"},
        {"weights": "int3"},
        {"num_positions": 0},
        {"chunk_frames": 0},
    ],
)
def test_options_that_do_not_exist_are_refused_with_their_value(options):
    with pytest.raises(UsageError, match=str(next(iter(options.values())))):
        ExportOptions(**{"num_positions": 8} | options)


def test_more_positions_than_the_model_has_are_refused(load_checkpoint, tmp_path):
    loaded = load_checkpoint("tiny-random")
    limit = loaded.config.talker.stack.max_positions
    with pytest.raises(UsageError, match=f"num_positions is {limit + 1}; this model has {limit}"):
        export(loaded, tmp_path / "out", ExportOptions(limit + 1))
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_named_with_its_cure(load_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "coremltools", None)
    with pytest.raises(MissingPackageError, match="coremltools") as refused:
        export(load_checkpoint("tiny-random"), tmp_path, ExportOptions(8))
    assert "[coreml]" in refused.value.hint


def test_the_command_writes_a_folder_and_names_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(coreml_export, "_convert", lambda *args: NothingToSave())
    folder = tmp_path / "out"
    command = ["export", "coreml", "tiny-random", "--to", str(folder), "--precision", "float32"]
    assert main([*command, "--weights", "int8", "--positions", "300"]) == 0
    assert capsys.readouterr().out == f"{folder}\n"
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["weights"] == "int8" and manifest["num_positions"] == 300


def test_the_command_offers_what_the_export_knows():
    assert cli_export.PRECISIONS == coreml_export.PRECISIONS


def test_a_folder_must_be_named(capsys):
    with pytest.raises(SystemExit) as left:
        main(["export", "coreml", "tiny-random"])
    assert left.value.code == 2 and "required: --to" in capsys.readouterr().err


@ci
def test_the_page_has_the_models_and_their_names(converted):
    _, folder = converted
    page = (ROOT / "docs" / "coreml.md").read_text(encoding="utf-8")
    told = {
        cells[0].strip("` "): cells[1:3]
        for line in page.splitlines()
        if line.startswith("| `") and (cells := line.strip("|").split(" | "))
    }
    assert list(told) == list(MODELS)
    for name, (takes, gives) in told.items():
        description = mil.load(folder, name).description
        assert re.findall(r"`(\w+)`", takes) == [each.name for each in description.input]
        assert re.findall(r"`(\w+)`", gives) == [each.name for each in description.output]


def test_the_pages_command_converts(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(coreml_export, "_convert", lambda *args: NothingToSave())
    monkeypatch.chdir(tmp_path)
    (command,) = (
        line for line in lines((ROOT / "docs" / "coreml.md").read_text()) if "export" in line
    )
    assert main(command.split()[3:]) == 0
    assert (tmp_path / "demo-coreml" / MANIFEST).exists()
