"""`sheen verify`: every check passes on sound files and fails on a planted fault."""

import json
import shutil

import numpy as np
import pytest
import torch
from commands import checked
from sheen_toys import BY_HEART
from sheen_toys import CODEBOOK_SIZE as SIZE
from tokenizers import normalizers

from qwen_megakernel.sheen import codec, model_folder
from qwen_megakernel.sheen.noise import AddressedNoise
from qwen_megakernel.sheen.training import sequences, verify

STEPS = ["--max-steps", "4", "--precision", "fp32", "--warmup-steps", "0", "--device", "cpu"]


def run(capsys, *words):
    return checked(capsys, "sheen", "verify", *words)


def test_all_pass_on_what_is_sound(capsys, dataset_file, trained, base_folder, snac_folder):
    checks = ["lines", "ids", "phonemes", "codes", "lengths"]
    assert run(capsys, "dataset", dataset_file) == (0, checks, [])
    code, passed, failed = run(capsys, "tokenizer", trained)
    assert (code, len(passed), failed) == (0, 7, [])
    code, passed, failed = run(capsys, "snac", "--snac", snac_folder)
    assert (code, len(passed), failed) == (0, 6, [])
    options = ["--model", base_folder, "--snac", snac_folder, "--learning-rate", "0.01", *STEPS]
    checks = ["labels", "packing", "loss", "resume"]
    assert run(capsys, "training", dataset_file, *options) == (0, checks, [])


# ---- dataset -------------------------------------------------------------------------------------


def planted(dataset_file, tmp_path, change):
    rows = [json.loads(line) for line in dataset_file.read_text("utf-8").splitlines()]
    change(rows)
    path = tmp_path / "planted.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        (lambda rows: rows[1]["snac_codes"][2].pop(), "lines"),
        (lambda rows: rows[0].update(text=""), "lines"),
        (lambda rows: rows[1].update(id="0001"), "ids"),
        (lambda rows: rows[1].update(espeak="de"), "phonemes"),
        (lambda rows: [r["snac_codes"].__setitem__(0, [5] * 6) for r in rows], "codes"),
        (
            lambda rows: [r.update(snac_codes=[c * 30 for c in r["snac_codes"]]) for r in rows],
            "len",
        ),
    ],
    ids=["ratio", "text", "id", "espeak", "stuck", "long"],
)
def test_a_planted_fault_of_a_dataset_is_found(capsys, dataset_file, tmp_path, change, failed):
    code, _, found = run(capsys, "dataset", planted(dataset_file, tmp_path, change))
    assert code == 1 and len(found) == 1 and found[0].startswith(failed)


def test_no_dataset_is_a_failed_check(capsys, tmp_path):
    assert run(capsys, "dataset", tmp_path / "none.jsonl") == (1, [], ["lines"])


# ---- tokenizer -----------------------------------------------------------------------------------


def test_a_tokenizer_without_audio_tokens_fails(capsys, voice_folder, base_folder):
    for path in base_folder.glob("*token*"):
        shutil.copy(path, voice_folder)
    assert run(capsys, "tokenizer", voice_folder) == (1, [], ["audio tokens"])


def test_a_model_without_their_rows_fails(capsys, voice_folder, base_folder):
    for name in ("model.safetensors", "config.json"):
        shutil.copy(base_folder / name, voice_folder)
    code, passed, failed = run(capsys, "tokenizer", voice_folder)
    assert (code, len(passed), failed) == (1, 6, ["embeddings"])


def test_a_tokenizer_that_changes_text_fails(capsys, voice_folder, monkeypatch):
    """The replacement changes a phoneme, but no English text."""
    load = model_folder.load_tokenizer

    def planted(*arguments, **options):
        tokenizer = load(*arguments, **options)
        tokenizer.backend_tokenizer.normalizer = normalizers.Replace("ə", "e")
        return tokenizer

    monkeypatch.setattr(model_folder, "load_tokenizer", planted)
    code, _, failed = run(capsys, "tokenizer", voice_folder)
    assert code == 1 and "phonemes" in failed


def test_marks_that_act_in_a_text_fail(capsys, voice_folder):
    """Marks that are added as ordinary tokens are found in any text that a user types."""
    path = voice_folder / "tokenizer.json"
    values = json.loads(path.read_text("utf-8"))
    for token in values["added_tokens"]:
        token["special"] = False
    path.write_text(json.dumps(values), "utf-8")
    path = voice_folder / "tokenizer_config.json"
    values = json.loads(path.read_text("utf-8"))
    for token in values.get("added_tokens_decoder", {}).values():  # until transformers 5
        token["special"] = False
    for name in {"additional_special_tokens", "extra_special_tokens"} & values.keys():
        values[name] = type(values[name])()  # a list, or in some versions a dict
    path.write_text(json.dumps(values), "utf-8")
    (voice_folder / "special_tokens_map.json").unlink(missing_ok=True)
    code, _, failed = run(capsys, "tokenizer", voice_folder)
    assert code == 1 and "marks typed in a text" in failed


# ---- snac ----------------------------------------------------------------------------------------


def test_damaged_weights_of_a_snac_fail(capsys, snac_folder, tmp_path):
    folder = shutil.copytree(snac_folder, tmp_path / "snac")
    state = torch.load(folder / "pytorch_model.bin")
    name = next(name for name in state if name.startswith("decoder") and name.endswith("bias"))
    state[name].fill_(float("nan"))
    torch.save(state, folder / "pytorch_model.bin")
    code, _, failed = run(capsys, "snac", "--snac", folder)
    assert code == 1 and "sound" in failed
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vq_strides": [2, 1]}))
    assert run(capsys, "snac", "--snac", folder) == (1, [], ["files"])


def test_noise_that_is_drawn_anew_fails(capsys, snac_folder, monkeypatch):
    """The package itself draws noise anew, so that the same codes sound different each time."""

    def forward(self, x):
        return x + torch.randn(1, 1, x.shape[-1]) * self.linear(x)

    monkeypatch.setattr(AddressedNoise, "forward", forward)
    code, _, failed = run(capsys, "snac", "--snac", snac_folder)
    assert (code, failed) == (1, ["deterministic", "chunks and the whole"])


def test_a_context_that_is_too_small_fails(capsys, snac_folder, monkeypatch):
    monkeypatch.setattr(codec, "_context", lambda decoder, samples: (2, 2))
    code, _, failed = run(capsys, "snac", "--snac", snac_folder)
    assert (code, failed) == (1, ["chunks and the whole"])


# ---- training ------------------------------------------------------------------------------------


@pytest.fixture
def training(capsys, dataset_file, base_folder, snac_folder):
    def check(*options, model=base_folder, rate="0.01"):
        words = ["--model", model, "--snac", snac_folder, "--learning-rate", rate, *STEPS]
        return run(capsys, "training", dataset_file, *words, *options)

    return check


def test_a_loss_that_does_not_fall_fails(training):
    assert training(rate="0") == (1, ["labels", "packing", "resume"], ["loss"])


def test_a_damaged_model_fails(training, base_folder, tmp_path):
    model = model_folder.load_language_model(base_folder)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    folder = shutil.copytree(base_folder, tmp_path / "model")
    model.save_pretrained(folder)
    assert training(model=folder)[2] == ["packing", "loss"]


def test_sequences_that_see_each_other_fail(training, monkeypatch):
    def leaking(rows, pad_id, collate=sequences.collate):
        batch = collate(rows, pad_id)
        batch.attention_mask[:] = torch.ones_like(batch.attention_mask).tril()
        return batch

    monkeypatch.setattr(verify, "collate", leaking)
    assert training()[2] == ["packing"]


def test_labels_on_the_text_fail(training, monkeypatch):
    def unmasked(rows, pad_id, collate=sequences.collate):
        batch = collate(rows, pad_id)
        batch.labels[:, :-1] = batch.input_ids[:, 1:]
        return batch

    monkeypatch.setattr(verify, "collate", unmasked)
    assert "labels" in training()[2]


def test_a_resume_that_forgets_fails(training, monkeypatch):
    load = verify.Trainer.load_state

    def forgetful(self, path):
        load(self, path)
        self._optimizer.state.clear()

    monkeypatch.setattr(verify.Trainer, "load_state", forgetful)
    assert training()[2] == ["resume"]


def test_the_toys_are_what_they_say(samples):
    assert BY_HEART.max_length == 1024 and SIZE == 4096
    assert np.concatenate([sample.frames for sample in samples]).max() < SIZE
