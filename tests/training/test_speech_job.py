"""Fine-tuning: recordings learned by heart, resumed exactly, merged into a checkpoint."""

import errno
import json
import os
import sys
import types
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import soundfile
import tiny_training
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tiny_training import BASE, JOB
from tolerances import TEACHER_FORCED

from qwen_megakernel.audio import to_int16
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.cli import main
from qwen_megakernel.errors import DatasetError, ModelFilesError, OutputError, UsageError
from qwen_megakernel.printable import printable
from qwen_megakernel.speech_options import Sampling, SpeechOptions
from qwen_megakernel.text.tokenizer import TextTokenizer
from qwen_megakernel.training import own_speech, speech_job, trained_voice
from qwen_megakernel.training.job import EVENTS
from qwen_megakernel.training.speech_data import mean_x_vector
from qwen_megakernel.training.speech_job import merge, tune
from qwen_megakernel.training.speech_model import SpeechModel
from qwen_megakernel.training.speech_trainer import SpeechTrainer, TuneOptions
from qwen_megakernel.training.trained_voice import TrainedVoice
from qwen_megakernel.training.trainer import Watch
from qwen_megakernel.tts_engine import TTSEngine
from qwen_megakernel.voice import Voice
from tools.validation import official

pytestmark = pytest.mark.usefixtures("without_plots")

CPU = torch.device("cpu")
METHODS = ("lora", "full")
QUICK = TuneOptions(
    epochs=3, batch_size=2, gradient_accumulation=1, warmup_steps=0, precision="fp32", rank=4
)
BY_HEART = replace(QUICK, method="full", epochs=30, learning_rate=4e-3, warmup_steps=3)


@pytest.fixture(autouse=True)
def peft_is_there(request):
    if "lora" in request.node.name:
        pytest.importorskip("peft")


def greedy(loaded, text, voice, feed, num_frames):
    ids = TextTokenizer(loaded.files.folder, loaded.config).encode(text)
    how = Sampling.greedy()
    request = SpeechOptions(voice=voice, text_feed=feed, sampling=how)
    return own_speech.draw(loaded, ids, request, num_frames, CPU, torch.float32)


@pytest.fixture(scope="module")
def by_heart(samples, tmp_path_factory):
    """A checkpoint that has learned the recordings by heart."""
    folder = tmp_path_factory.mktemp("by-heart")
    tiny_training.write(folder / "data.jsonl", samples)
    job = replace(JOB, data=folder / "data.jsonl", output=folder / "voice")
    trainer = tune(job, BY_HEART)
    assert trainer.records[-1].loss < 0.1 < trainer.records[0].loss
    merge(folder / "voice", folder / "merged", dtype=torch.float32)
    return folder / "merged"


def test_recordings_learned_by_heart_are_spoken_and_end(by_heart, samples):
    loaded = loading.load(loading.resolve(by_heart))
    for feed in ("stepwise", "full"):
        for each in samples:
            codes = each.audio_codes
            result = greedy(loaded, each.text, "anna", feed, len(codes) + 2)
            assert result.ended == (True,) and result.num_frames == (len(codes),)
            assert result.codes[0, : len(codes)].tolist() == codes


def test_the_official_package_speaks_with_a_merged_voice(by_heart, samples, official_package):
    model = official.load(by_heart)
    for each in samples:
        prompt = {
            "input_ids": model._tokenize_texts([model._build_assistant_text(each.text)]),
            "languages": ["auto"],
            "speakers": ["anna"],
            "non_streaming_mode": True,
        }
        run = official.generate(model, Sampling.greedy(), len(each.audio_codes) + 2, **prompt)
        assert run.codes.tolist() == each.audio_codes


@pytest.mark.parametrize("method", METHODS)
def test_a_merged_voice_has_the_logits_of_the_trained_model(job, samples, tmp_path, method):
    options = replace(QUICK, method=method, learning_rate=1e-2)
    trainer = tune(job, options)
    merge(job.output, tmp_path / "merged", dtype=torch.float32)
    loaded = loading.load(loading.resolve(tmp_path / "merged"))
    assert loaded.config.talker.speakers == {"anna": trained_voice.SPEAKER_ID}
    spoken = trainer._spoken[0]
    voice = Voice("anna", mean_x_vector(samples))
    trained = trainer.model.double()
    merged = SpeechModel(loaded, dtype=torch.float64)
    base = SpeechModel(loading.load(loading.resolve(BASE)), dtype=torch.float64)
    with torch.no_grad():
        for feed in ("stepwise", "full"):
            request = SpeechOptions(voice=voice, text_feed=feed)
            wanted = trained(spoken.ids, request, spoken.codes)
            before = base(spoken.ids, request, spoken.codes)
            found = merged(spoken.ids, replace(request, voice="anna"), spoken.codes)
            for ours, theirs, others in zip(found, wanted, before, strict=True):
                assert torch.allclose(ours, theirs, atol=TEACHER_FORCED, rtol=0)
                assert (others - theirs).abs().max() > 0.1  # training has changed something


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_training_is_the_same_training(job, method):
    options = replace(QUICK, method=method, batch_size=1, eval_steps=2)
    job = replace(job, held_out=0.5)
    whole = tune(job, options)

    def stop(record):
        if record.step == 2:
            raise KeyboardInterrupt

    cut = replace(job, output=job.output.with_name("cut"))
    with pytest.raises(KeyboardInterrupt):
        tune(cut, options, Watch(step=stop))
    resumed = tune(replace(cut, resume=True), options)
    assert resumed.records == whole.records and resumed.evaluations == whole.evaluations
    ours, theirs = resumed.learned(), whole.learned()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


@pytest.mark.ci
@pytest.mark.parametrize("step", [2, 4])
def test_an_evaluation_that_ctrl_c_ends_is_made_up_for(job, step, monkeypatch):
    options = replace(QUICK, method="full", eval_steps=2, max_steps=4, epochs=4)
    job = replace(job, held_out=0.5)
    whole = tune(job, options)
    evaluate = SpeechTrainer.evaluate

    def stop(self):
        if self.step == step:
            raise KeyboardInterrupt
        return evaluate(self)

    monkeypatch.setattr(SpeechTrainer, "evaluate", stop)
    cut = replace(job, output=job.output.with_name("cut"))
    with pytest.raises(KeyboardInterrupt):
        tune(cut, options)
    monkeypatch.undo()
    resumed = tune(replace(cut, resume=True), options)
    assert resumed.evaluations == whole.evaluations and resumed.records == whole.records


def test_peft_loads_a_lora_adapter(job, tmp_path):
    from peft import PeftModel

    trainer = tune(job, replace(QUICK, learning_rate=1e-2))
    base = SpeechModel(loading.load(loading.resolve(BASE)))
    loaded = PeftModel.from_pretrained(base, job.output)
    spoken = trainer._spoken[0]
    request = trainer._requests["full"]
    with torch.no_grad():
        ours = trainer.model(spoken.ids, request, spoken.codes)
        theirs = loaded(spoken.ids, request, spoken.codes)
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_lora_learns_in_the_layers_of_both_stacks_alone(job):
    trainer = tune(job, replace(QUICK, precision="bf16", checkpointing=True))
    names = trainer.learned()
    config = loading.load(loading.resolve(BASE)).config
    layers = config.talker.stack.num_layers + config.predictor.stack.num_layers
    assert len(names) == layers * 7 * 2 and all("lora_" in name for name in names)
    assert {value.dtype for value in names.values()} == {torch.float32}
    assert trainer.model.codec_head.weight.dtype == torch.bfloat16


def test_held_out_losses_stand_beside_the_base_models_and_stop_the_training(job):
    options = replace(QUICK, method="full", epochs=50, eval_steps=1, patience=2, learning_rate=4e-3)
    heads = []
    seen = []

    def keep(record):
        heads.append(seen[0].model.codec_head.weight.detach().clone())

    trainer = tune(replace(job, held_out=0.5), options, Watch(seen.append, keep))
    lines = (job.output / trained_voice.HELD_OUT).read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == list(range(trainer.step + 1)) and trainer.step < trainer.num_steps
    losses = [json.loads(line)["losses"] for line in lines]
    assert all(len(each) == 16 for each in losses) and losses[0] != losses[1]
    # The voice is that of the lowest loss.
    best = int(np.argmin([each[0] + 0.3 * np.mean(each[1:]) for each in losses[1:]]))
    assert best < trainer.step - 1
    saved = load_file(job.output / trained_voice.TENSORS)["codec_head.weight"]
    assert torch.equal(saved, heads[best])


class Board(list):
    """Stands in for the writer of TensorBoard, which may not be installed."""

    opened: ClassVar = []

    def __init__(self, folder, purge_step):
        self.place = folder, purge_step
        self.opened.append(self)

    def add_scalar(self, name, value, step):
        self.append((name, value, step))

    def close(self):
        self.append("closed")


@pytest.mark.parametrize("method", METHODS)
def test_each_evaluation_speaks_as_the_merged_voice_does(job, tmp_path, method, monkeypatch):
    text, seconds = "Hello.", 0.4
    monkeypatch.setattr(speech_job, "SAMPLE_SECONDS", seconds)
    job = replace(job, sample_text=text)
    tune(job, replace(QUICK, method=method, learning_rate=1e-2, max_steps=3, eval_steps=2))
    paths = sorted(job.output.glob("*.wav"))
    assert [path.name for path in paths] == ["sample-000002.wav", "sample-000003.wav"]
    merge(job.output, tmp_path / "merged")
    loaded = loading.load(loading.resolve(tmp_path / "merged"))
    ids = TextTokenizer(loaded.files.folder, loaded.config).encode(text)
    request = SpeechOptions(voice="anna", sampling=loaded.sampling)
    merged = own_speech.speak(loaded, ids, request, seconds, CPU, torch.float32)
    early, late = (soundfile.read(path, dtype="int16")[0] for path in paths)
    assert np.array_equal(late, to_int16(merged)) and not np.array_equal(late, early)


@pytest.mark.ci
def test_scalars_are_written_if_tensorboard_is_installed(job, monkeypatch):
    board = types.ModuleType("tensorboard")
    board.SummaryWriter = Board
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setattr(Board, "opened", [])
    job = replace(job, held_out=0.5)
    options = replace(QUICK, method="full", max_steps=2, eval_steps=2)
    trainer = tune(job, options)
    trainer = tune(replace(job, resume=True), replace(options, max_steps=3))
    first, second = Board.opened
    assert first.place == (job.output / EVENTS, 1) and second.place == (job.output / EVENTS, 3)
    written = {(name, step): value for name, value, step in first[:-1] + second[:-1]}
    assert first[-1] == second[-1] == "closed" and len(written) == 3 * 2 + 2 * 16
    assert [written["loss", step] for step in (1, 2, 3)] == [each.loss for each in trainer.records]
    for step, losses in trainer.evaluations[1:]:
        assert [written[f"held_out/codebook_{group:02}", step] for group in range(16)] == losses


def test_a_resumed_training_holds_out_the_same_recordings_and_says_that_it_is_finished(job, capsys):
    words = ["train", "run", str(job.data), "--model", BASE, "-o", str(job.output), "--held-out"]
    words += [".5", "--steps", "1", "--sample-text", "", "--precision", "fp32", "--method", "full"]
    assert main.main(words) == 0 and "finished" not in capsys.readouterr().err
    assert main.main([*words, "--resume"]) == 0
    assert "voice is finished: step 1 was its last; a higher --epochs" in capsys.readouterr().err
    assert main.main([*words, "--resume", "--held-out", "0"]) == 2
    assert "other recordings or texts: 1, with 1 held out" in capsys.readouterr().err


def test_a_full_disk_is_an_error_and_leaves_the_state(job, monkeypatch):
    def fill(tensors, path, metadata):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    options = replace(QUICK, method="full")
    monkeypatch.setattr(speech_job, "save_file", fill)
    with pytest.raises(OutputError, match=r"Cannot write .*No space left"):
        tune(job, options)
    monkeypatch.undo()
    tune(replace(job, resume=True), options)
    assert (job.output / trained_voice.TENSORS).is_file()


def test_an_output_that_cannot_be_written_is_refused_before_the_model_is_loaded(job, tmp_path):
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file" / "voice"):
        with pytest.raises(OutputError, match=f"Cannot write {output}: "):
            tune(replace(job, model="owner/never-loaded", output=output), QUICK)


def test_a_link_to_nothing_is_no_new_folder(job, tmp_path):
    (tmp_path / "merged").symlink_to("nowhere")
    with pytest.raises(OutputError, match=r"merged exists\."):
        merge(tmp_path / "no-voice", tmp_path / "merged")


def test_a_full_disk_is_one_line_without_the_names_of_drafts(job, tmp_path, monkeypatch):
    tune(job, replace(QUICK, method="full", max_steps=1))

    def fill(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source, None, target)

    monkeypatch.setattr(speech_job.shutil, "copy", fill)
    with pytest.raises(OutputError) as caught:
        merge(job.output, tmp_path / "merged")
    assert str(caught.value) == f"Cannot write {tmp_path / 'merged'}: No space left on device."
    assert not list(tmp_path.glob("*merged*"))


def test_a_training_is_not_resumed_with_other_recordings(job, tmp_path):
    options = replace(QUICK, method="full", max_steps=1)
    tune(job, options)
    state = (job.output / "trainer.pt").read_bytes()
    data = tmp_path / "other.jsonl"
    data.write_text("".join(reversed(job.data.read_text().splitlines(keepends=True))))
    with pytest.raises(UsageError, match="it has learned from other recordings"):
        tune(replace(job, data=data, resume=True), replace(options, max_steps=2))
    assert (job.output / "trainer.pt").read_bytes() == state


@pytest.mark.parametrize("what", ["text", "audio_codes"])
def test_recordings_of_the_same_lengths_are_noticed_to_be_others(job, samples, tmp_path, what):
    options = replace(QUICK, method="full", max_steps=1)
    tune(job, options)
    others = {"text": "Good evening.", "audio_codes": samples[0].audio_codes[::-1]}
    changed = replace(samples[0], **{what: others[what]})
    data = tiny_training.write(tmp_path / "other.jsonl", [changed, *samples[1:]])
    with pytest.raises(UsageError, match="it has learned from other recordings or texts"):
        tune(replace(job, data=data, resume=True), replace(options, max_steps=2))


def test_a_share_of_few_recordings_holds_out_one(job):
    trainer = tune(replace(job, held_out=0.1), replace(QUICK, method="full", max_steps=1))
    assert [step for step, _ in trainer.evaluations] == [0, 1]


def test_a_resumed_training_with_another_rank_says_which_it_had(job):
    pytest.importorskip("peft")
    options = replace(QUICK, max_steps=1)
    tune(job, options)
    with pytest.raises(UsageError, match=r"resumed: rank was 4 and is 2\.\nGive the same options"):
        tune(replace(job, resume=True), replace(options, rank=2))


def test_a_resumed_training_keeps_the_speakers_name(job):
    options = replace(QUICK, method="full", max_steps=1)
    tune(job, options)
    with pytest.raises(UsageError, match=r"of 'anna', and name is 'speaker'\.\nGive --name anna"):
        tune(replace(job, name="speaker", resume=True), replace(options, max_steps=2))
    assert TrainedVoice.read(job.output).speaker.name == "anna"


def test_a_voice_of_a_base_model_in_a_folder_is_merged_from_any_working_directory(
    job, model_folder, tmp_path, monkeypatch
):
    (tmp_path / "base").symlink_to(model_folder(BASE))
    monkeypatch.chdir(tmp_path)
    tune(replace(job, model="base"), replace(QUICK, method="full", max_steps=1))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    merge(job.output, tmp_path / "merged")
    assert TrainedVoice.read(job.output).model == str(tmp_path / "base")


def test_what_does_not_fit_is_refused(job, tmp_path):
    with pytest.raises(UsageError, match="method is"):
        TuneOptions(method="prefix")
    with pytest.raises(UsageError, match="rank is 0"):
        TuneOptions(rank=0)
    with pytest.raises(UsageError, match="held_out is 1"):
        replace(job, held_out=1)
    everything = "held_out is 0.9 of 2 recordings, which leaves none to learn from"
    with pytest.raises(UsageError, match=everything):
        tune(replace(job, held_out=0.9), QUICK)
    assert not job.output.exists()
    with pytest.raises(DatasetError, match="prepared with another model"):
        tune(replace(job, model="tiny-random-base-1.7b"), QUICK)
    with pytest.raises(DatasetError, match="None of 2 recordings"):
        tune(job, replace(QUICK, method="full", max_length=3))
    with pytest.raises(ModelFilesError):
        merge(tmp_path, tmp_path / "merged")
    described = {"model": BASE, "method": "full"}
    (tmp_path / trained_voice.VOICE).write_text(json.dumps(described))
    with pytest.raises(ModelFilesError, match=r"has no speaker.voice.safetensors, tensors"):
        merge(tmp_path, tmp_path / "merged")
    for name in (trained_voice.SPEAKER, trained_voice.TENSORS):
        (tmp_path / name).touch()
    with pytest.raises(ModelFilesError, match="'name' is missing"):
        merge(tmp_path, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_tensors_that_are_no_adapters_are_refused(job):
    """They were left out, and the base model spoke as if nothing had been learned."""
    tune(job, replace(QUICK, method="full", max_steps=1))
    described = json.loads((job.output / trained_voice.VOICE).read_text()) | {"method": "lora"}
    (job.output / trained_voice.VOICE).write_text(json.dumps(described))
    (job.output / trained_voice.ADAPTER_CONFIG).write_text('{"lora_alpha": 32, "r": 16}')
    q_proj = f"{trained_voice.PEFT_PREFIX}model.layers.0.self_attn.q_proj"
    base = loading.load(loading.resolve(BASE))
    for names in ([], [f"{q_proj}.lora_A.default.weight", f"{q_proj}.lora_B.default.weight"]):
        save_file({name: torch.ones(1) for name in names}, job.output / trained_voice.ADAPTER)
        with pytest.raises(ModelFilesError, match="cannot be merged: it has"):
            TrainedVoice.read(job.output).merge_into(base)


@pytest.mark.parametrize("method", METHODS)
def test_an_adapter_merged_at_load_is_the_merged_checkpoint(job, tmp_path, method):
    tune(job, replace(QUICK, method=method, learning_rate=1e-2, max_steps=2))
    merge(job.output, tmp_path / "merged")
    merged = loading.load(loading.resolve(tmp_path / "merged"))
    base = loading.load(loading.resolve(BASE))
    TrainedVoice.read(job.output).merge_into(base)
    assert base.config == merged.config and base.talker.keys() == merged.talker.keys()
    for name, tensor in merged.talker.items():
        assert base.talker[name].dtype == tensor.dtype == torch.bfloat16  # as the base stores it
        assert torch.equal(base.talker[name], tensor)


def test_an_engine_speaks_with_an_adapter_as_with_the_merged_checkpoint(job, tmp_path):
    tune(job, replace(QUICK, method="full", learning_rate=1e-2, max_steps=2))
    merge(job.output, tmp_path / "merged")
    spoken = []
    for model, adapter in ((tmp_path / "merged", None), (BASE, f"eve={job.output}")):
        with TTSEngine.from_pretrained(
            model, adapter=adapter, device="cpu", warmup=False, weights="int8"
        ) as tts:
            assert tts.default_voice == ("eve" if adapter else "anna") and not tts.can_clone
            spoken.append(tts.synthesize("Good morning.", max_frames=4, seed=1).codes)
    assert np.array_equal(*spoken)


def test_an_adapter_that_does_not_fit_is_refused_before_its_model_is_merged(job, tmp_path, capsys):
    for place in ("~no_such_user/voice", "a" * 300, "a\0b"):
        for named in (place, f"eve={place}"):
            with pytest.raises(ModelFilesError) as caught:
                TrainedVoice.read(named)
            assert caught.value.what.startswith(f"{printable(place, 300)} is no trained voice")
    for place in ("", "eve="):
        with pytest.raises(UsageError, match=f"adapter is '{place}', which names no folder"):
            TTSEngine.from_pretrained("owner/never-loaded", adapter=place)
    (tmp_path / "a.voice.safetensors").touch()
    for place, why, hint in (
        (tmp_path, "it has no voice.json", "Name a folder that `train run` wrote."),
        (tmp_path / "b", "there is no such folder", "Name a folder that `train run` wrote."),
        (tmp_path / "a.voice.safetensors", "it is a voice file", "as the voice, without adapter."),
    ):
        with pytest.raises(ModelFilesError, match=f"{place} is no trained voice: {why}") as caught:
            TTSEngine.from_pretrained("owner/never-loaded", adapter=place)
        assert caught.value.hint.endswith(hint)
    tune(job, replace(QUICK, method="full", max_steps=1))
    voice = TrainedVoice.read(job.output)
    changed = loading.load(loading.resolve(BASE))  # with the encoders of the base model
    last = changed.config.talker.stack.num_layers - 1
    for name in ("codec_embedding.weight", f"layers.{last}.mlp.down_proj.weight"):
        own = changed.talker[f"model.{name}"]
        changed.talker[f"model.{name}"] = own + 1
        with pytest.raises(UsageError, match=r"was trained on .*, not on .*\nUse --model tiny-"):
            voice.merge_into(changed)
        changed.talker[f"model.{name}"] = own
    for model, problem in (
        ("tiny-random-base-1.7b", "was trained on tiny-random-base "),
        ("tiny-random", r"was trained on tiny-random-base .*, not on tiny-random "),
        ("demo-voice", r"not on demo-voice .*\nUse --model tiny-random-base"),
        ("drawn:tiny-random-base", "has drawn weights"),
    ):
        with pytest.raises(UsageError, match=problem):
            voice.merge_into(loading.load(loading.resolve(model)))
    base = loading.load(loading.resolve(BASE))
    talker = replace(base.config.talker, vocab_size=2048)
    base.config = replace(base.config, talker=talker)
    with pytest.raises(UsageError, match="has 2048 codec ids; a trained speaker has id 3000"):
        voice.merge_into(base)
    with pytest.raises(UsageError, match="keep_packed keeps the weights"):
        TTSEngine.from_pretrained(
            BASE, adapter=job.output, backend="cpu", device="cpu", keep_packed=True
        )
    words = ["speak", "Hello.", "--adapter", "a", "--adapter", "b"]
    assert main.main(words) == 2
    assert "--adapter is given 2 times" in capsys.readouterr().err
