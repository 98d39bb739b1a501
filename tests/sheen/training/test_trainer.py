"""Training: it learns in every precision, resumes exactly, and writes a complete voice."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from sheen_toys import BY_HEART
from tolerances import ADAM_STEP_F32, LOSS_F32, nearly

from qwen_megakernel.errors import DatasetError, GenerationError, OutputError, UsageError
from qwen_megakernel.installing import install_command
from qwen_megakernel.sheen import model_folder
from qwen_megakernel.sheen.training.job import Job, load_parts, train_voice
from qwen_megakernel.sheen.training.trainer import Trainer
from qwen_megakernel.training.job import plot
from qwen_megakernel.training.trainer import StepRecord, TrainOptions, Watch


@pytest.fixture
def job(dataset_file, base_folder, snac_folder, tmp_path):
    return Job(dataset_file, tmp_path / "voice", str(base_folder), str(snac_folder), device="cpu")


@pytest.fixture
def parts(job):
    return load_parts(job, seed=0)


def trainer_of(parts, **changes):
    return Trainer(parts.model, parts.sequences, 0, replace(BY_HEART, **changes))


def test_the_defaults_are_the_published_ones():
    options = TrainOptions()
    assert (options.learning_rate, options.max_length) == (2e-5, 1024)
    assert options.batch_size * options.gradient_accumulation == 16 and options.batch_size == 4
    assert options.precision == "fp16"


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_the_loss_falls_on_two_samples(parts, precision):
    trainer = trainer_of(parts, precision=precision, epochs=6)
    trainer.run()
    losses = [record.loss for record in trainer.records]
    assert len(losses) == 6 and losses[-1] < 0.7 * losses[0]
    assert next(trainer.model.parameters()).dtype == torch.float32


def test_the_first_loss_is_that_of_transformers(parts):
    labels = [torch.tensor([sequence.ids]) for sequence in parts.sequences]
    total, count = 0.0, 0
    with torch.no_grad():
        for sequence, label in zip(parts.sequences, labels, strict=True):
            masked = label.clone()
            masked[:, : sequence.num_text] = -100
            num = int((masked != -100).sum())
            total += float(parts.model(label, labels=masked).loss) * num
            count += num
    trainer = trainer_of(parts, epochs=1)
    trainer.run()
    assert trainer.records[0].loss == pytest.approx(total / count, rel=LOSS_F32)


def test_cutting_a_step_into_passes_changes_nothing(job):
    """One row of two sequences, two rows in one pass, and two passes give the same gradient."""
    longest = max(map(len, load_parts(job, 0).sequences))
    weights = []
    for changes in (
        {"max_length": 1024},
        {"max_length": longest, "batch_size": 2},
        {"max_length": longest, "gradient_accumulation": 2},
    ):
        trainer = trainer_of(load_parts(job, 0), epochs=1, learning_rate=1e-3, **changes)
        trainer.run()
        assert trainer.num_steps == 1
        weights.append(trainer.model.model.layers[0].mlp.up_proj.weight.detach().clone())
    for other in weights[1:]:
        # Adam's first step is the sign of the gradient: it may differ only where that is about 0.
        assert torch.isclose(weights[0], other, atol=ADAM_STEP_F32, rtol=0).float().mean() > 0.999


def test_a_resumed_training_is_the_same_training(job, parts, tmp_path):
    straight = trainer_of(parts, epochs=4, precision="fp16", batch_size=1)
    straight.run()
    first = trainer_of(load_parts(job, 0), epochs=4, precision="fp16", batch_size=1)
    first.run(until=2)
    first.save_state(tmp_path / "state.pt")
    second = trainer_of(load_parts(job, 5), epochs=4, precision="fp16", batch_size=1)
    second.load_state(tmp_path / "state.pt")
    assert second.step == 2
    second.run()
    assert second.records == straight.records
    ours, theirs = second.model.state_dict(), straight.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_state_of_other_options_is_refused(parts, tmp_path):
    trainer = trainer_of(parts, epochs=2)
    trainer.run(until=1)
    path = tmp_path / "state.pt"
    trainer.save_state(path)
    with pytest.raises(UsageError, match=r"learning_rate was 0\.0\d* and is 1\.0"):
        trainer_of(parts, epochs=2, learning_rate=1.0).load_state(path)
    trainer_of(parts, epochs=9).load_state(path)  # longer is fine
    state = torch.load(path, weights_only=True)
    del state["options"]["max_grad_norm"]  # as if it were an option of a later version
    torch.save(state, path)
    trainer_of(parts, epochs=2).load_state(path)
    with pytest.raises(UsageError, match=r"max_grad_norm was 1\.0 and is 2\.0"):
        trainer_of(parts, epochs=2, max_grad_norm=2.0).load_state(path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UsageError, match="cannot be resumed"):
        trainer.load_state(path)
    with pytest.raises(OutputError, match="Cannot write"):
        trainer.save_state(tmp_path / "none" / "state.pt")


def test_the_learning_rate_rises_and_then_falls_to_nothing(parts):
    trainer = trainer_of(parts, epochs=10, warmup_steps=4, learning_rate=1.0)
    rates = []
    for step in range(10):
        trainer.records = [None] * step
        rates.append(trainer._learning_rate())
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == nearly([1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_too_long_samples_are_left_out_and_counted(parts, caplog):
    lengths = sorted(map(len, parts.sequences))
    assert lengths[0] < lengths[1]
    trainer_of(parts, max_length=lengths[0])
    assert f"1 of 2 recordings are left out, because they have more than {lengths[0]} tok" in (
        caplog.text
    )
    with pytest.raises(DatasetError, match=f"None of 2 .* the shortest has {lengths[0]}"):
        trainer_of(parts, max_length=lengths[0] - 1)


def test_a_loss_that_breaks_down_ends_the_training(parts):
    with torch.no_grad():
        parts.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(GenerationError, match="loss of step 1 is nan"):
        trainer_of(parts).run()


@pytest.mark.parametrize(
    ("name", "value"),
    [("precision", "int8"), ("batch_size", 0), ("learning_rate", -1.0), ("max_steps", 0)],
)
def test_options_that_cannot_work_are_refused(name, value):
    with pytest.raises(UsageError, match=f"{name} is"):
        TrainOptions(**{name: value})


def test_a_voice_is_complete(trained, base_folder):
    from transformers import Qwen2ForCausalLM

    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "snac"} <= names
    assert {"sheen.json", "trainer.pt", "losses.jsonl", "loss.png", "tokenizer.json"} <= names
    assert json.loads((trained / "sheen.json").read_text()) == {"max_length": 1024, "espeak": None}
    records = [json.loads(line) for line in (trained / "losses.jsonl").read_text().splitlines()]
    assert len(records) == BY_HEART.epochs and records[-1]["loss"] < 0.1 < records[0]["loss"]
    assert (trained / "loss.png").read_bytes()[:4] == b"\x89PNG"
    model = Qwen2ForCausalLM.from_pretrained(trained)
    tokenizer = model_folder.load_tokenizer(trained)
    end = model_folder.audio_tokens(trained, tokenizer).end_id
    assert model.generation_config.eos_token_id == end == model.config.eos_token_id
    assert model.config.vocab_size == end + 1


def test_an_interrupted_training_is_kept_and_can_be_resumed(job):
    def stop(record):
        if record.step == 3:
            raise KeyboardInterrupt

    options = replace(BY_HEART, epochs=5)
    with pytest.raises(KeyboardInterrupt):
        train_voice(job, options, Watch(step=stop))
    assert model_folder.is_sheen(str(job.output))
    with pytest.raises(UsageError, match="holds a training already"):
        train_voice(job, options)
    resumed = train_voice(replace(job, resume=True), options)
    whole = train_voice(replace(job, output=job.output.with_name("other")), options)
    assert list(map(asdict, resumed.records)) == list(map(asdict, whole.records))


def test_there_must_be_something_to_resume(job):
    with pytest.raises(UsageError, match="holds no training"):
        train_voice(replace(job, resume=True), BY_HEART)


def test_without_matplotlib_there_is_no_plot_and_no_error(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    plot([StepRecord(1, 2.0, 1e-3)], tmp_path / "loss.png")
    assert not (tmp_path / "loss.png").exists()
    assert install_command("plots") in caplog.text
