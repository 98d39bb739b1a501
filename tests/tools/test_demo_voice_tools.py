"""The trainer of the demonstration voice: prompts, network, updates, packaging."""

import dataclasses
import importlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures import module_value
from tolerances import TRAINER_HIDDEN

from qwen_megakernel.checkpoint import loading
from qwen_megakernel.checkpoint.loading import DEMO_VOICE, DEMO_VOICE_FOLDER
from qwen_megakernel.checkpoint.tensor_shapes import CODEC_DECODER_PREFIX, CODEC_ENCODER_PREFIX
from qwen_megakernel.speech_options import Sampling
from tools.demo_voice import (
    batches,
    decode,
    package,
    recipe,
    shards,
    talker_net,
    tokenizer,
    train_talker,
)
from tools.demo_voice.batches import Layout, Packer
from tools.demo_voice.codebooks import Codebooks
from tools.demo_voice.evaluate import REFERENCES, Reader
from tools.demo_voice.optimizer import orthogonalize
from tools.demo_voice.training_run import TrainingRun

SILENCE = Codebooks.load().silence
LAYOUTS = [
    Layout(full, auto, speaker)
    for full in (False, True)
    for auto in (False, True)
    for speaker in (False, True)
]

references = module_value(lambda: shards.read(REFERENCES))
reader = module_value(lambda: Reader(DEMO_VOICE))


@pytest.fixture(scope="module")
def weights(reader: Reader) -> talker_net.Weights:
    return {name: tensor.float() for name, tensor in reader.checkpoint.talker.items()}


# ---- prompts and network -------------------------------------------------------------------------


def test_the_recipe_is_the_shipped_checkpoints(tmp_path):
    tokenizer.write(tmp_path)
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        assert (tmp_path / name).read_text() == (DEMO_VOICE_FOLDER / name).read_text()
    configs = {
        "config.json": recipe.model_config(),
        "generation_config.json": recipe.generation_config(),
        "speech_tokenizer/config.json": recipe.codec_config(),
    }
    for name, values in configs.items():
        assert json.loads((DEMO_VOICE_FOLDER / name).read_text()) == values
    ids = tokenizer.load()("<|im_start|>assistant\n")["input_ids"]
    assert ids == tokenizer.role_ids()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_training_network_is_the_plain_decoder(
    reader, weights, references, layout, monkeypatch
):
    """Hidden states along a whole sentence, two sentences packed into one row."""
    config = recipe.parsed_model_config()
    pair = references[0], references[3]
    pieces = [batches.lay_out(config, tokenizer.role_ids(), u, layout) for u in pair]
    lengths = [len(piece.text) for piece in pieces]
    rows = batches.Rows.empty((1, sum(lengths)), config.talker.num_code_groups, 0)
    rows.put(0, 0, pieces[0])
    rows.put(0, lengths[0], pieces[1])
    names = ("text", "control", "codes", "is_frame")
    batch = {name: torch.from_numpy(getattr(rows, name)) for name in names}
    batch["owner"] = torch.from_numpy(np.repeat([[1, 2]], lengths, axis=1))
    with torch.no_grad():
        hidden = talker_net.talker_hidden(weights, config, batch, torch.float32)[0]
    with monkeypatch.context() as patch:
        plain = _plain_hidden(reader, pair[1], layout, patch)
    ours = hidden[-len(plain) :]
    assert (ours - plain).abs().max() <= plain.abs().max() * TRAINER_HIDDEN


def _plain_hidden(
    reader: Reader, reference: shards.Utterance, layout: Layout, patch: pytest.MonkeyPatch
) -> torch.Tensor:
    """Return the package's hidden states of every frame and of the end, teacher-forced."""
    decoder = reader._decoder
    states: list[torch.Tensor] = []
    codes = torch.from_numpy(reference.codes.astype(np.int64))
    forced = torch.cat([codes, codes[-1:]])[None]
    step = decoder.step

    def tap(name: str, value: torch.Tensor) -> None:
        if name == "talker.hidden":
            states.append(value[-1].clone())

    patch.setattr(decoder.talker, "tap", tap)
    patch.setattr(decoder, "step", lambda slots, count: step(slots, count, forced=forced))
    reader.codes(
        reference.text,
        len(forced[0]),
        text_feed="full" if layout.is_full else "stepwise",
        voice=recipe.SPEAKER if layout.has_speaker else None,
        language="auto" if layout.is_auto else recipe.LANGUAGE,
    )
    return torch.stack(states)


def test_greedy_decoding_for_training_draws_what_the_package_draws(reader, weights, references):
    config = recipe.parsed_model_config()
    some = references[:3]
    greedy = Sampling.greedy().override(repetition_penalty=1.0)
    ours = decode.greedy(weights, config, some, 60, Layout(is_full=True))
    for reference, codes in zip(some, ours, strict=True):
        expected, _ = reader.codes(reference.text, 60, sampling=greedy)
        np.testing.assert_array_equal(codes, expected)


def packer(references: list[shards.Utterance], **options: object) -> Packer:
    shape = {"num_rows": 2, "row_length": 256, "num_frames": 32}
    config = recipe.parsed_model_config()
    return Packer(config, tokenizer.role_ids(), SILENCE, references, **shape, **options)


def test_a_batch_holds_whole_utterances_and_is_the_same_for_the_same_seed(references):
    first, count = packer(references, seed=3).batch()
    again, _ = packer(references, seed=3).batch()
    assert all(torch.equal(first[name], again[name]) for name in first)
    eos = recipe.parsed_model_config().talker.codec_eos_id
    assert int((first["labels"] == eos).sum()) == count == int(first["owner"].max())
    at_once = {tuple(u.codes[:, 0].tolist()) for u in references}
    stepwise = {tuple(u.delayed(SILENCE).codes[:, 0].tolist()) for u in references}
    found = set()
    labels, owner = first["labels"], first["owner"]
    for number in range(1, count + 1):
        said = labels[(owner == number) & (labels >= 0) & (labels != eos)]
        found.add(tuple(said.tolist()))
    assert found <= at_once | stepwise and found & at_once and found & stepwise


def test_what_the_talker_hears_of_itself_is_spoilt_and_what_it_learns_is_not(references):
    def share(spoil: tuple[float, float]) -> float:
        batch, _ = packer(references, spoil=spoil, full_share=0.0, seed=1).batch()
        heard = batch["codes"][:, 1:][batch["is_frame"][:, 1:]][:, 0]
        meant = batch["labels"][:, :-1][batch["is_frame"][:, 1:]]
        return float((heard == meant).float().mean())

    assert share((0.0, 0.0)) == 1.0
    assert 0.5 < share((0.3, 0.3)) < 0.9


def test_muon_brings_singular_values_near_one():
    generator = torch.Generator().manual_seed(0)
    for shape in ((48, 96), (96, 48)):
        values = torch.linalg.svdvals(orthogonalize(torch.randn(shape, generator=generator)))
        assert values.min() > 0.5 and values.max() < 1.5


# ---- training ------------------------------------------------------------------------------------


@pytest.fixture
def train(tmp_path: Path, references: list[shards.Utterance]) -> Callable[..., dict]:
    """Return train(name, *options): a few updates on a few sentences; the state that it saved."""
    data = tmp_path / "data"
    data.mkdir()
    kept = [dataclasses.replace(u, kind=shards.TRAINING) for u in references[:40]]
    shards.write(data / "a.npz", kept)

    def run(name: str, *options: str) -> dict:
        output = tmp_path / name
        small = "--rows 1 --row-length 256 --frames 16 --dtype float32 --no-compile --device cpu"
        arguments = ["--data", str(data), "--output", str(output), *small.split(), *options]
        train_talker.main(train_talker.parse_args(arguments))
        return torch.load(output, weights_only=True)

    return run


@pytest.mark.ci
def test_training_resumed_is_training_uninterrupted(train, monkeypatch):
    whole = train("whole.pt", "--presentations", "24")
    steps = train_talker.Training.train_step

    def interrupted(self: train_talker.Training) -> object:
        if self.step == 2:
            self.save(self.args.output)
            raise KeyboardInterrupt
        return steps(self)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train_talker.Training, "train_step", interrupted)
        train("parts.pt", "--presentations", "24")
    parts = train("parts.pt", "--presentations", "24", "--resume")
    assert parts["step"] == whole["step"] > 3
    for name, value in whole["weights"].items():
        assert torch.equal(parts["weights"][name], value), name


def test_training_goes_on_from_a_checkpoint_and_can_leave_the_talker_alone(train, weights):
    options = ("--init", str(DEMO_VOICE_FOLDER), "--presentations", "6", "--predictor-only")
    state = train("a.pt", *options)
    changed = {name for name, value in state["weights"].items() if (value != weights[name]).any()}
    assert changed and all(name.startswith("code_predictor.") for name in changed)
    assert not any("codec_embedding" in name for name in changed)
    assert state["history"][-1]["first"] < 1.5  # a fresh talker begins above 5


def test_a_package_loads_and_keeps_what_is_not_given(tmp_path, weights):
    folder = tmp_path / "voice"
    vocoder = package.load_codec(DEMO_VOICE_FOLDER)
    size = package.package(folder, weights, vocoder)
    assert size <= package.MAX_BYTES
    loaded = loading.load(loading.resolve(str(folder)))
    assert {t.dtype for t in loaded.talker.values()} == {torch.bfloat16}
    for name, value in weights.items():
        assert torch.equal(loaded.talker[name].float(), value), name
    before = (folder / "speech_tokenizer" / "model.safetensors").read_bytes()
    package.package(folder, weights)
    assert (folder / "speech_tokenizer" / "model.safetensors").read_bytes() == before


@pytest.mark.ci
@pytest.mark.parametrize("part", ["vocoder", "encoder"])
def test_a_half_of_the_codec_learns_and_resumes(official_package, tmp_path, part):
    trainer = importlib.import_module(f"tools.demo_voice.train_{part}")
    rng = np.random.default_rng(0)
    codes = torch.from_numpy(rng.integers(0, 252, (12, recipe.NUM_CODEBOOKS)))
    sound = torch.sin(torch.arange(12 * recipe.SAMPLES_PER_FRAME) / 20) * 0.3
    latents = torch.from_numpy(rng.normal(size=(12, recipe.ENCODER_WIDTH))).float()
    pair = (sound, codes) if part == "vocoder" else (sound, latents, codes[:, -1])
    common = ["--texts", "none", "--device", "cpu", "--dtype", "float32"]
    common += ["--batch", "1", "--segment", "4", "--steps", "6", "--save-minutes", "0"]
    common += ["--no-compile"]

    def training(*options: str) -> TrainingRun:
        arguments = [*common, "--output", str(tmp_path / "v.pt"), *options]
        args = trainer.parse_args(arguments)
        return trainer.Training(args, [pair], [pair])

    run = training()
    before = run.test()["test_total"]
    run.run()
    assert run.history[-1]["test_total"] < before
    resumed = training("--resume")
    resumed.resume(tmp_path / "v.pt")
    assert resumed.step == 6 and json.dumps(resumed.test()) == json.dumps(run.test())
    ours = training("--init", str(DEMO_VOICE_FOLDER)).network.state_dict()
    prefix = {"vocoder": CODEC_DECODER_PREFIX, "encoder": CODEC_ENCODER_PREFIX}[part]
    stored = package.load_codec(DEMO_VOICE_FOLDER, prefix)
    assert stored and all(torch.equal(ours[name], value) for name, value in stored.items())
