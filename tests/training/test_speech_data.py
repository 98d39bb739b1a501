"""Recordings become codes and x-vectors; what cannot be used is reported by its line."""

import copy
import json
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
import waveforms
from fixtures import module_value

from qwen_megakernel.cloning import recordings
from qwen_megakernel.cloning.voice_library import VoiceLibrary
from qwen_megakernel.errors import DatasetError, OutputError, TaskError
from qwen_megakernel.text.tokenizer import TextTokenizer
from qwen_megakernel.training import speech_data, trained_voice
from qwen_megakernel.training.speech_job import Parts
from qwen_megakernel.training.speech_trainer import SpeechTrainer, TuneOptions
from qwen_megakernel.voice import Voice

RATE = 24000
TEXT = "one two three four"


base = module_value(lambda load_checkpoint: load_checkpoint("tiny-random-base"))


def record(path, seed=0, rate=RATE, channels=1, seconds=1.5, gain=1.0):
    samples = gain * waveforms.voice_like(seconds, rate, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.repeat(samples[:, None], channels, axis=1), rate)
    return path


@pytest.fixture
def folder(tmp_path):
    """Three recordings of three formats, rates and numbers of channels, as in LJSpeech."""
    record(tmp_path / "wavs" / "a.wav", 1, 44100, 2)
    record(tmp_path / "wavs" / "b.flac", 2, 16000)
    record(tmp_path / "wavs" / "c.mp3", 3)
    (tmp_path / "metadata.csv").write_text(f"a|ONE|{TEXT}\nb|{TEXT}\nc|{TEXT}\n")
    return tmp_path


def test_codes_and_x_vectors_are_those_of_the_encoders(folder, base, tmp_path):
    report = speech_data.prepare(folder, tmp_path / "data.jsonl", base)
    assert (report.num_added, report.num_present, report.faults) == (3, 0, [])
    found = {each.id: each for each in speech_data.read(tmp_path / "data.jsonl")}
    library = VoiceLibrary(base)
    for name, file in {"a": "a.wav", "b": "b.flac", "c": "c.mp3"}.items():
        samples, rate = recordings.read(folder / "wavs" / file)
        assert np.array_equal(found[name].audio_codes, library.encode(samples, rate))
        voice = library.create(samples, rate=rate)
        assert np.array_equal(np.float32(found[name].x_vector), voice.x_vector)
        assert found[name].text == TEXT and found[name].model == library.fingerprint


def test_the_speaker_row_is_the_mean_over_all_recordings(folder, base, tmp_path):
    speech_data.prepare(folder, tmp_path / "data.jsonl", base)
    found = speech_data.read(tmp_path / "data.jsonl")
    mean = speech_data.mean_x_vector(found)
    rows = np.array([each.x_vector for each in found], np.float64)
    assert mean.dtype == np.float32 and np.array_equal(mean, np.float32(rows.mean(axis=0)))
    for count in (1, 2):  # the official script takes that of the first batch
        assert not np.array_equal(mean, np.float32(rows[:count].mean(axis=0)))


@pytest.mark.parametrize(
    ("cut", "num_present"),
    [
        (lambda whole: whole[: len(whole) * 2 // 3], 1),
        (lambda whole: whole.removesuffix(b"\n"), 3),  # a whole last line that lacks its end
    ],
)
def test_an_interrupted_run_goes_on(folder, base, tmp_path, cut, num_present):
    output = tmp_path / "data.jsonl"
    speech_data.prepare(folder, output, base)
    whole = output.read_bytes()
    output.write_bytes(cut(whole))
    report = speech_data.prepare(folder, output, base)
    assert (report.num_present, report.num_added) == (num_present, 3 - num_present)
    assert report.faults == [] and output.read_bytes() == whole


def test_workers_encode_at_once_and_their_number_changes_no_byte(
    folder, base, tmp_path, monkeypatch
):
    record(folder / "wavs" / "twin.wav", 1, 44100, 2)
    with (folder / "metadata.csv").open("a") as file:
        file.write(f"gone|{TEXT}\ntwin|{TEXT}\n")
    alone = speech_data.prepare(folder, tmp_path / "alone.jsonl", base, workers=1)
    meeting, encode = threading.Barrier(4, timeout=60), speech_data._encode

    def meet(row, place, library):
        if row.id != "gone":
            meeting.wait()  # for the three other recordings
        if row.id == "a":
            time.sleep(0.2)  # a is done after its twin
        return encode(row, place, library)

    monkeypatch.setattr(speech_data, "_encode", meet)
    shared = speech_data.prepare(folder, tmp_path / "shared.jsonl", base, workers=4)
    assert (tmp_path / "shared.jsonl").read_bytes() == (tmp_path / "alone.jsonl").read_bytes()
    assert shared == alone and alone.num_added == 3
    assert [fault.split(": ")[1][:5] for fault in alone.faults] == ["gone", "twin "]


def test_lists_of_three_forms_are_read(tmp_path, base):
    pairs = tmp_path / "pairs"
    record(pairs / "x.wav", 1)
    record(pairs / "y.wav", 2)
    (pairs / "x.txt").write_text(TEXT)
    (pairs / "y.txt").write_text("")
    rows = speech_data.list_recordings(pairs)
    assert [(row.id, row.text, row.fault) for row in rows] == [
        ("x", TEXT, ""),
        ("y", "", "y has no text"),
    ]
    official = {"audio": "pairs/x.wav", "text": TEXT, "ref_audio": "pairs/y.wav"}
    path = tmp_path / "train_raw.jsonl"
    path.write_text(json.dumps(official) + "\n[1]\n")
    rows = speech_data.list_recordings(path)
    assert [row.id for row in rows] == ["pairs/x", ""] and rows[1].number == 2
    assert "no object" in rows[1].fault
    report = speech_data.prepare(path, tmp_path / "data.jsonl", base)
    assert report.num_added == 1 and report.faults[0].startswith("train_raw.jsonl, line 2: ")


def test_every_recording_that_is_left_out_is_reported_by_its_line(folder, base, tmp_path, caplog):
    wavs = folder / "wavs"
    record(wavs / "silent.wav", 4, gain=1e-4)
    record(wavs / "long.wav", 5, 8000, seconds=61)
    record(wavs / "short.wav", 6, seconds=0.5)
    record(wavs / "twin.wav", 1, 44100, 2)
    record(wavs / "clipped.wav", 7, gain=9)
    record(wavs / "wordy.wav", 8)
    (wavs / "broken.wav").write_bytes(b"RIFF")
    faults = {
        "silent": "is silent",
        "long": "is 61.0 s long",
        "short": "is 0.5 s long",
        "twin": "twin is the same recording as a",
        "wordy": "words for",
        "broken": "cannot be read as audio",
        "gone": "there is no",
    }
    lines = [f"{name}|{TEXT * 9 if name == 'wordy' else TEXT}" for name in faults]
    with (folder / "metadata.csv").open("a") as file:
        file.write("\n".join([*lines, "empty|", f"clipped|{TEXT}", f"a|{TEXT}"]))
    report = speech_data.prepare(folder, tmp_path / "data.jsonl", base)
    wanted = [*faults.values(), "empty has no text", "a is also on line 1"]
    numbers = [*range(4, 12), 13]
    for number, words, fault in zip(numbers, wanted, report.faults, strict=True):
        assert fault.startswith(f"metadata.csv, line {number}: ") and words in fault
    assert report.num_added == 4  # the clipped one is taken
    assert "metadata.csv, line 12: clipped is clipped" in caplog.text


def test_json_nested_too_deep_is_a_fault_of_its_line(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("\n" + "[" * 100_000)
    with pytest.raises(DatasetError, match="line 2: it is damaged: maximum recursion depth"):
        speech_data.read(path)
    [row] = speech_data.list_recordings(path)
    assert (row.number, row.fault) == (2, "it is no object with `audio` and `text`")


def test_a_file_of_something_else_is_not_cut(folder, base, tmp_path):
    notes = tmp_path / "notes.txt"
    for kept in ("my only notes", "a line\nand one without an end", '{"audio": "a.wav"}'):
        notes.write_text(kept)
        with pytest.raises(DatasetError, match=r"notes\.txt is no file of `train prepare`"):
            speech_data.prepare(folder, notes, base)
        assert notes.read_text() == kept


def test_lists_that_are_no_jsonl_name_their_folder(folder):
    for path in (folder / "metadata.csv", folder / "wavs" / "a.wav"):
        with pytest.raises(DatasetError) as refused:
            speech_data.list_recordings(path)
        assert refused.value.what == f"{path} is no JSONL file."
        assert refused.value.hint == f"Name the folder that holds it: {path.parent}"


def test_transcripts_that_cannot_be_read_say_why_in_words(tmp_path):
    record(tmp_path / "a.wav")
    record(tmp_path / "b.wav")
    (tmp_path / "b.txt").write_bytes("one two".encode("utf-16"))
    faults = [row.fault for row in speech_data.list_recordings(tmp_path)]
    assert faults == [
        "a.txt cannot be read: No such file or directory",
        "b.txt cannot be read: it is not UTF-8 text",
    ]


def test_a_text_that_was_changed_since_is_reported(folder, base, tmp_path):
    output = tmp_path / "data.jsonl"
    speech_data.prepare(folder, output, base)
    (folder / "metadata.csv").write_text(f"a|{TEXT}\nb|{TEXT} five\nc|{TEXT}\n")
    report = speech_data.prepare(folder, output, base)
    assert (report.num_added, report.num_present) == (0, 2)
    assert report.faults == [
        f"metadata.csv, line 2: b is in {output} with another text; delete its line there"
    ]


def test_two_at_once_do_not_write_one_file(folder, base, tmp_path):
    output = tmp_path / "data.jsonl"

    def begin_another(rows):
        with pytest.raises(OutputError, match=f"Another process is writing {output}"):
            speech_data.prepare(folder, output, base)
        return iter(rows)

    assert speech_data.prepare(folder, output, base, begin_another).num_added == 3
    assert speech_data.prepare(folder, output, base).num_present == 3


def test_no_file_is_left_if_no_recording_can_be_used(folder, base, tmp_path):
    (folder / "metadata.csv").write_text("gone|one two three\n")
    with pytest.raises(DatasetError, match="could be used"):
        speech_data.prepare(folder, tmp_path / "data.jsonl", base)
    assert not (tmp_path / "data.jsonl").exists()


def test_data_and_models_that_cannot_be_used_are_refused(folder, base, tmp_path, load_checkpoint):
    output = tmp_path / "data.jsonl"
    with pytest.raises(TaskError, match="cannot clone"):
        speech_data.prepare(folder, output, load_checkpoint("tiny-random"))
    with pytest.raises(DatasetError, match="There is no"):
        speech_data.list_recordings(tmp_path / "nowhere")
    speech_data.prepare(folder, output, base)
    with pytest.raises(DatasetError, match="a was prepared with another model"):
        speech_data.prepare(folder, output, load_checkpoint("tiny-random-base-1.7b"))
    with output.open("a") as file:
        file.write('{"id": 3}\n')
    with pytest.raises(DatasetError, match="line 4: it is damaged"):
        speech_data.read(output)


def test_the_command_prepares_and_prints_what_is_left_out(folder, run_here):
    with (folder / "metadata.csv").open("a") as file:
        file.write(f"gone|{TEXT}\n")
    words = ["train", "prepare", folder, "-o", folder / "data.jsonl", "--model", "tiny-random-base"]
    done = run_here("-m", "qwen_megakernel", *words, "--quiet")
    assert done.returncode == 0, done.stderr
    assert "3 recordings added (4.5 s), 0 were there, 1 left out" in done.stdout
    assert "metadata.csv, line 4: gone: there is no" in done.stdout


def test_without_a_speaker_encoder_the_row_is_that_of_the_only_speaker(
    folder, load_checkpoint, tmp_path
):
    loaded = copy.copy(load_checkpoint("tiny-random"))
    talker = replace(loaded.config.talker, speakers={"ryan": 3061})
    loaded.config = replace(loaded.config, talker=talker)
    speech_data.prepare(folder, tmp_path / "data.jsonl", loaded)
    samples = speech_data.read(tmp_path / "data.jsonl")
    row = loaded.talker["model.codec_embedding.weight"][3061].float().numpy()
    assert np.array_equal(speech_data.mean_x_vector(samples), row)
    fingerprint = VoiceLibrary(loaded).fingerprint
    assert fingerprint != VoiceLibrary(load_checkpoint("tiny-random-base")).fingerprint
    assert all(each.model == fingerprint for each in samples)
    tokenizer = TextTokenizer(loaded.files.folder, loaded.config)
    parts = Parts(loaded, tokenizer, fingerprint, torch.device("cpu"))
    options = TuneOptions(max_steps=2, method="full", precision="fp32", gradient_accumulation=2)
    spoken = [parts.spoken(each) for each in samples]
    speaker = parts.speaker(Voice("anna", row))
    trainer = SpeechTrainer(parts.new_model(options), spoken, [], speaker, options)
    trainer.run()
    assert speaker == "ryan" and trainer.step == 2
    merged = trained_voice.merge_tensors(loaded, {}, "Anna")
    assert merged["talker_config"]["spk_id"] == {"anna": 3061}
    assert loaded.config.talker.speakers == {"anna": 3061}
    loaded.has_codec_encoder = False
    with pytest.raises(TaskError, match="has no encoder"):
        VoiceLibrary(loaded).check_encoders()
